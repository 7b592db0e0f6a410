"""The requests that every engine is given: the same tokens in the same order.

A row ends by time, and who is faster gets further in it. Of lengths drawn at random the first 7 prompts had 166 tokens
in the middle and the first 27 had 225, so that the faster engine's first tokens were later for that alone; lengths are
spread evenly over any of the first few (Roberts 2018, "The Unreasonable Effectiveness of Quasirandom Sequences").
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine.bench.bench_model import FIRST_WORD_ID, VOCAB_SIZE

PREFIX_TOKENS = 256
LEAST_OWN_TOKENS, MOST_OWN_TOKENS = 100, 300
LEAST_OUTPUT_TOKENS = 16
_PLASTIC = 1.3247179572447460  # the root of x^3 = x + 1: its powers are the steps of an even spread in two dimensions


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One prompt in token ids, and how long its answer is."""

    prompt: tuple[int, ...]
    output_tokens: int  # exactly as many are generated
    has_prefix: bool


def make_workload(num_requests: int, *, max_output_tokens: int = 256, seed: int = 0) -> tuple[BenchRequest, ...]:
    """About 200 own prompt tokens and 16 to `max_output_tokens` output tokens each; every second one starts with the
    same 256 tokens."""
    rng = random.Random(seed)
    prefix = random_words(rng, PREFIX_TOKENS)
    requests = []
    for i in range(num_requests):
        own = random_words(rng, _spread(LEAST_OWN_TOKENS, MOST_OWN_TOKENS, 0.5 + i / _PLASTIC))
        output_tokens = _spread(min(LEAST_OUTPUT_TOKENS, max_output_tokens), max_output_tokens, 0.5 + i / _PLASTIC**2)
        has_prefix = i % 2 == 1
        requests.append(BenchRequest(prefix + own if has_prefix else own, output_tokens, has_prefix))
    return tuple(requests)


def _spread(least: int, most: int, at: float) -> int:
    """The number at a share of the way from `least` to `most`, both among them; whole turns of `at` are left out."""
    return least + int(at % 1.0 * (most - least + 1))


def random_words(rng: random.Random, count: int) -> tuple[int, ...]:
    """So many token ids of whole words."""
    return tuple(rng.randrange(FIRST_WORD_ID, VOCAB_SIZE) for _ in range(count))
