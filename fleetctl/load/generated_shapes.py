"""Made-up traffic of a known kind: Poisson arrivals, lognormal lengths, shared system prompts. The same for a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from fleetctl.load.shape import RequestShape

SYSTEM_PROMPT_IDS = 1_000_000_000  # ids of system prompts start here, away from those of traces


@dataclass(frozen=True, slots=True)
class TrafficKind:
    """The kind of traffic. Medians are of lognormal lengths; a sigma of 0 makes them all equal."""

    rate_per_s: float = 4.0
    prompt_tokens_median: int = 64
    prompt_sigma: float = 0.6
    output_tokens_median: int = 32
    output_sigma: float = 0.5
    max_prompt_tokens: int = 512  # without the system prompt
    max_output_tokens: int = 128
    num_system_prompts: int = 3  # each request begins with one of them; 0: none
    system_prompt_tokens: int = 128
    long_share: float = 0.0  # of the requests: these have prompts of `long_prompt_tokens`
    long_prompt_tokens: int = 2048  # without the system prompt, whatever `max_prompt_tokens` says
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.rate_per_s > 0 and math.isfinite(self.rate_per_s)):
            raise ValueError(f"traffic: rate_per_s must be positive, got {self.rate_per_s}")
        if not 0 <= self.long_share <= 1:
            raise ValueError(f"traffic: long_share must be from 0 to 1, got {self.long_share}")
        for name in (
            "prompt_tokens_median",
            "output_tokens_median",
            "max_prompt_tokens",
            "max_output_tokens",
            "long_prompt_tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"traffic: {name} must be at least 1, got {getattr(self, name)}")
        for name in ("prompt_sigma", "output_sigma", "num_system_prompts", "system_prompt_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"traffic: {name} must not be negative, got {getattr(self, name)}")


def generate_shapes(traffic: TrafficKind) -> Iterator[RequestShape]:
    """Shapes without end, in order of arrival."""
    rng = random.Random(traffic.seed)
    at_s = 0.0
    while True:
        at_s += rng.expovariate(traffic.rate_per_s)
        own = _length(rng, traffic.prompt_tokens_median, traffic.prompt_sigma, traffic.max_prompt_tokens)
        if traffic.long_share and rng.random() < traffic.long_share:
            own = traffic.long_prompt_tokens
        output = _length(rng, traffic.output_tokens_median, traffic.output_sigma, traffic.max_output_tokens)
        if traffic.num_system_prompts and traffic.system_prompt_tokens:
            system_prompt = SYSTEM_PROMPT_IDS + rng.randrange(traffic.num_system_prompts)
            yield RequestShape(
                at_s, traffic.system_prompt_tokens + own, output, (system_prompt,), traffic.system_prompt_tokens
            )
        else:
            yield RequestShape(at_s, own, output)


def _length(rng: random.Random, median: int, sigma: float, limit: int) -> int:
    return max(1, min(limit, round(median * math.exp(rng.gauss(0.0, sigma)))))
