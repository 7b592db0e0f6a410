"""The requests that every engine is given: the same tokens in the same order."""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine.bench.bench_model import FIRST_WORD_ID, VOCAB_SIZE

PREFIX_TOKENS = 256


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
        own, has_prefix = random_words(rng, rng.randint(100, 300)), i % 2 == 1
        prompt = prefix + own if has_prefix else own
        requests.append(BenchRequest(prompt, rng.randint(min(16, max_output_tokens), max_output_tokens), has_prefix))
    return tuple(requests)


def random_words(rng: random.Random, count: int) -> tuple[int, ...]:
    """So many token ids of whole words."""
    return tuple(rng.randrange(FIRST_WORD_ID, VOCAB_SIZE) for _ in range(count))
