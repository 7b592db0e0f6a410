"""What is known of a request before it is made into text: when it comes, how long it is, and what it shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

BLOCK_TOKENS = 512  # tokens of one prefix id, as in Mooncake's traces


@dataclass(frozen=True, slots=True)
class RequestShape:
    """One request of a trace. Equal `prefix_ids` mean equal leading blocks; the rest of the prompt is its own."""

    at_s: float  # since the trace began
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    block_tokens: int = BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Scale:
    """How a trace is fitted to a fleet. Ratios multiply; `max_` values cut."""

    time_ratio: float = 1.0  # 0.5 plays twice as fast
    length_ratio: float = 1.0
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        if not (self.time_ratio > 0 and self.length_ratio > 0):
            raise ValueError(f"scale: ratios must be positive, got {self.time_ratio} and {self.length_ratio}")
        for limit in (self.max_prompt_tokens, self.max_output_tokens):
            if limit is not None and limit < 1:
                raise ValueError(f"scale: limits must be at least 1 token, got {limit}")


def scale_shapes(shapes: Iterable[RequestShape], scale: Scale) -> Iterator[RequestShape]:
    """The shapes with times and lengths scaled. Blocks shrink with the lengths, so what was shared stays shared."""
    for shape in shapes:
        prompt_tokens = _scaled(shape.prompt_tokens, scale.length_ratio, scale.max_prompt_tokens)
        block_tokens = max(1, round(shape.block_tokens * scale.length_ratio))
        num_blocks = -(-prompt_tokens // block_tokens)
        yield replace(
            shape,
            at_s=shape.at_s * scale.time_ratio,
            prompt_tokens=prompt_tokens,
            output_tokens=_scaled(shape.output_tokens, scale.length_ratio, scale.max_output_tokens),
            prefix_ids=shape.prefix_ids[:num_blocks],
            block_tokens=block_tokens,
        )


def _scaled(tokens: int, ratio: float, limit: int | None) -> int:
    scaled = max(1, round(tokens * ratio))
    return scaled if limit is None else min(scaled, limit)
