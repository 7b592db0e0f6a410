"""N-gram drafts, also called prompt lookup: what came after the last few tokens when they came before.

Summaries, edits and code repeat their prompt and themselves, so that the end of what there is has often been seen, and
what followed follows again. Costs no model, only a pass over a sequence's token ids (Saxena 2023, "Prompt Lookup
Decoding").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_GROWTH = 1.5
_LEAST_ROOM = 256


class Proposal(NamedTuple):
    """Proposed tokens, and how many tokens before them were found again: the more, the likelier they are right."""

    token_ids: tuple[int, ...]
    match_length: int


class TokenHistory:
    """A sequence's token ids as an array that grows with it."""

    __slots__ = ("_ids", "_size")

    def __init__(self) -> None:
        self._ids = np.empty(0, dtype=np.int64)
        self._size = 0

    def follow(self, token_ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """Takes in what `token_ids` has more than at the last call; returns all of it, good until the next one."""
        size = len(token_ids)
        if size > len(self._ids):
            grown = np.empty(max(int(size * _GROWTH), _LEAST_ROOM), dtype=np.int64)
            grown[: self._size] = self._ids[: self._size]
            self._ids = grown
        self._ids[self._size : size] = token_ids[self._size :]
        self._size = size
        return self._ids[:size]


def find_draft(tokens: npt.NDArray[np.int64], *, min_match: int, max_match: int, num_tokens: int) -> Proposal | None:
    """What followed the latest of the longest earlier occurrences of the last tokens; None if there is none.

    Where what followed ends with `tokens`, it goes on with itself: a text that repeats with a period is drafted for as
    long as asked.
    """
    end = len(tokens)
    best = match_length = 0
    # where a copy of the last 1, 2, 3... tokens ends
    ends = np.flatnonzero(tokens[:-1] == tokens[-1]) + 1 if end > min_match else np.empty(0, dtype=np.int64)
    for length in range(1, max_match + 1):
        if length > 1:
            ends = ends[ends >= length]
            ends = ends[tokens[ends - length] == tokens[end - length]]
        if not len(ends):
            break
        if length >= min_match:
            best, match_length = int(ends[-1]), length
    if not best or num_tokens < 1:
        return None
    period = end - best
    found: list[int] = tokens[best : best + num_tokens].tolist()
    while len(found) < num_tokens:
        found.append(found[len(found) - period])
    return Proposal(tuple(found), match_length)
