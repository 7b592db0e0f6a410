"""Sequences in the order in which they are served."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from engine.core.sequence import CoreSequence


def serving_order(priority: int, arrived_at: float, ageing_s: float, number: int) -> tuple[float, int]:
    """The place of a sequence among all others; smaller is served first.

    A sequence gains one priority level for every `ageing_s` seconds since it arrived. As all gain at the same rate,
    the order of two sequences never changes, so it is one number: a sequence of priority 1 stands where one of
    priority 0 that arrives `ageing_s` later would. Only finitely many can ever stand before it, so none starves.
    """
    return (priority * ageing_s + arrived_at, number)


class SequenceQueue:
    """Sequences sorted by their `order`. The last in O(1), others found by bisection."""

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[float, int], CoreSequence]] = []  # orders are unique: sequences never compare

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CoreSequence]:
        return (sequence for _, sequence in self._entries)

    def __reversed__(self) -> Iterator[CoreSequence]:
        return (sequence for _, sequence in reversed(self._entries))

    def add(self, sequence: CoreSequence) -> None:
        """Put a sequence where its order says."""
        insort(self._entries, (sequence.order, sequence))

    def remove(self, sequence: CoreSequence) -> None:
        """Take a sequence out.

        Raises:
            KeyError: it is not here.
        """
        index = bisect_left(self._entries, sequence.order, key=lambda entry: entry[0])
        if index == len(self._entries) or self._entries[index][1] is not sequence:
            raise KeyError(sequence.seq_id)
        del self._entries[index]
