"""Numbers of several processes in one piece of memory: each writes its own slot and reads all, without lock or message.

A row is named by a key and lies at the same place in each slot. Three columns only count, and stay when their process
ends; one says what the process holds now, and the owner of the memory clears it at its end; the rest is told as it is.
"""

from __future__ import annotations

import mmap
import os
from hashlib import blake2b
from typing import NamedTuple

LAYOUT = 1
MAX_SLOTS = 256
MAX_ROWS = 4096
NUM_COLUMNS = 8
HELD = 3
"""The column of what a process holds now; the counters stand before it."""
_NUM_TOLD = NUM_COLUMNS - HELD - 1

_WORD_BYTES = 8
_HEADER_WORDS = 8  # layout, number of slots that were ever in use
_SLOT_WORDS = MAX_ROWS * NUM_COLUMNS
_CELLS_AT = (_HEADER_WORDS + MAX_ROWS) * _WORD_BYTES
SIZE_BYTES = _CELLS_AT + MAX_SLOTS * _SLOT_WORDS * _WORD_BYTES  # 64 MiB, of which only what is written takes memory


class Totals(NamedTuple):
    """Sums of a row over slots."""

    first: float
    second: float
    third: float
    held: float


NO_TOTALS = Totals(0.0, 0.0, 0.0, 0.0)


class CounterMemory:
    """The memory's owner, who outlives all that write into it and knows which of them run."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("shared-counters", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, SIZE_BYTES)
        self._words, self._cells = _map(self.fd)
        self._words[0] = LAYOUT
        self._free = list(range(MAX_SLOTS - 1, -1, -1))

    def claim(self) -> int | None:
        """A slot for one more process; None when all are taken."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._words[1] = max(self._words[1], slot + 1)
        return slot

    def release(self, slot: int) -> None:
        """Its process has ended: it holds nothing any more. What it counted stays."""
        first = slot * _SLOT_WORDS + HELD
        for row, digest in enumerate(self._words[_HEADER_WORDS:].tolist()):
            if digest:
                self._cells[first + row * NUM_COLUMNS] = 0.0
        self._free.append(slot)

    def close(self) -> None:
        """Let go of it; it ends with the last process that has it."""
        os.close(self.fd)


class SharedCounters:
    """One process' view of the memory. Threading: its slot is written by one thread only."""

    def __init__(self, fd: int, slot: int) -> None:
        """Raises ValueError when the memory was laid out by other code."""
        if os.fstat(fd).st_size != SIZE_BYTES:
            raise ValueError("shared counters of another layout")
        self._words, self._cells = _map(fd)
        if self._words[0] != LAYOUT:
            raise ValueError("shared counters of another layout")
        self._slot = slot

    def row(self, key: str) -> CounterRow | None:
        """The row of the key in all slots; None when there is no room for one more."""
        digest = int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True) or 1
        for step in range(MAX_ROWS):
            at = (digest + step) % MAX_ROWS
            found = self._words[_HEADER_WORDS + at]
            if not found:
                self._words[_HEADER_WORDS + at] = digest
            if not found or found == digest:
                return CounterRow(self._words, self._cells, self._slot, at)
        return None


class CounterRow:
    """The numbers of one key: this process' own, and those of the others."""

    __slots__ = ("_at", "_cells", "_num_slots", "_others", "_own", "_slot", "_words")

    def __init__(self, words: memoryview[int], cells: memoryview[float], slot: int, at: int) -> None:
        self._words, self._cells, self._slot, self._at = words, cells, slot, at
        self._own = slot * _SLOT_WORDS + at * NUM_COLUMNS
        self._num_slots = -1
        self._others: list[int] = []

    def add(self, column: int, amount: float) -> None:
        """Add to a number of our own."""
        self._cells[self._own + column] += amount

    def add_all(self, first: float, second: float, third: float, held: float) -> None:
        """Add to all numbers of our own."""
        cells, at = self._cells, self._own
        cells[at] += first
        cells[at + 1] += second
        cells[at + 2] += third
        cells[at + 3] += held

    def own(self) -> Totals:
        """Counters and what is held, of our slot: also of the processes that had it before."""
        return Totals(*self._cells[self._own : self._own + HELD + 1])

    def others(self) -> Totals:
        """Counters and what is held, of all slots but ours."""
        if self._words[1] != self._num_slots:
            self._find_others()
        if not self._others:
            return NO_TOTALS
        cells = self._cells
        first = second = third = held = 0.0
        for at in self._others:
            first += cells[at]
            second += cells[at + 1]
            third += cells[at + 2]
            held += cells[at + 3]
        return Totals(first, second, third, held)

    def tell(self, *values: float) -> None:
        """Leave values beside the counters for who comes later; the first one is not 0."""
        assert len(values) <= _NUM_TOLD
        first = self._own + HELD + 1
        for column, value in enumerate(values):
            self._cells[first + column] = value

    def told(self) -> list[tuple[float, ...]]:
        """What was told last in each slot, ours before us too."""
        self._find_others()
        cells, first = self._cells, HELD + 1
        rows = (tuple(cells[at + first : at + NUM_COLUMNS]) for at in (self._own, *self._others))
        return [row for row in rows if row[0]]

    def _find_others(self) -> None:
        self._num_slots = self._words[1]
        bases = (slot * _SLOT_WORDS + self._at * NUM_COLUMNS for slot in range(self._num_slots))
        self._others = [base for base in bases if base != self._own]


def _map(fd: int) -> tuple[memoryview[int], memoryview[float]]:
    memory = memoryview(mmap.mmap(fd, SIZE_BYTES))
    return memory[:_CELLS_AT].cast("q"), memory[_CELLS_AT:].cast("d")
