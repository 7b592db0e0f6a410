"""When an output counts as one that says the same again and again."""

from __future__ import annotations

import random

import pytest

from engine.core.repetition import repeats
from engine.protocol.step import RepetitionLimit


@pytest.mark.parametrize(
    ("output", "limit", "expected"),
    [
        ([5, 5, 5], (1, 1, 3), True),
        ([5, 5], (1, 1, 3), False),
        ([1, 5, 6, 5, 6, 5, 6], (1, 2, 3), True),
        ([1, 5, 6, 5, 6, 5, 6], (1, 1, 3), False),
        ([5, 6, 5, 6, 5, 6, 7], (1, 3, 3), False),
        ([5, 5, 5, 5], (2, 2, 2), True),
        ([5, 5, 5], (2, 2, 2), False),
        ([], (1, 3, 2), False),
    ],
)
def test_the_last_tokens_decide(output: list[int], limit: tuple[int, int, int], expected: bool) -> None:
    assert repeats([9, 9, 9, *output], 3, RepetitionLimit(*limit)) is expected


def test_the_prompt_is_not_counted() -> None:
    assert not repeats([5, 5, 5, 5], 2, RepetitionLimit(1, 1, 3))


def test_agrees_with_looking_at_every_pattern() -> None:
    drawn = random.Random(3)
    for _ in range(3000):
        output = [drawn.randrange(2) for _ in range(drawn.randrange(14))]
        smallest = drawn.randrange(1, 4)
        limit = RepetitionLimit(smallest, smallest + drawn.randrange(3), drawn.randrange(2, 5))
        expected = any(
            len(output) >= size * limit.min_count
            and output[-size * limit.min_count :] == output[-size:] * limit.min_count
            for size in range(limit.min_pattern_tokens, limit.max_pattern_tokens + 1)
        )
        assert repeats(output, 0, limit) is expected, (output, limit)
