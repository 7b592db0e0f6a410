"""Prefix caching, as a sequence sees it: which cached KV blocks it may start from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.core.block_pool import BlockPool
from engine.core.pending_step import StepRow
from engine.core.sequence import CoreSequence, SequenceState


class CachedPrefix(NamedTuple):
    """A cached beginning: blocks to share, and perhaps one more of which a copy is taken."""

    shared: list[int]
    copied: int | None
    num_tokens: int  # whose KV need not be computed

    @property
    def block_ids(self) -> list[int]:
        """All cached blocks that it reads, a copied one among them."""
        return self.shared if self.copied is None else [*self.shared, self.copied]

    def without_copy(self, block_size: int) -> CachedPrefix:
        """The same, with the last block computed again: it needs one free block where a copy needs two."""
        return CachedPrefix(self.shared, None, len(self.shared) * block_size)


def find_cached_prefix(sequence: CoreSequence, pool: BlockPool) -> CachedPrefix:
    """The longest cached beginning of a sequence without device blocks; always leaves a token to compute."""
    size = pool.block_size
    contents = sequence.contents_for(size)
    found = pool.match(contents)
    if sequence.state is SequenceState.SWAPPED:
        usable = found[: (sequence.num_tokens - 1) // size]
        if len(usable) * size > sequence.num_computed_tokens:
            return CachedPrefix(usable, None, len(usable) * size)  # somebody else came further meanwhile
        # What is still on the device need not come back from the host.
        return CachedPrefix(found[: sequence.num_computed_tokens // size], None, sequence.num_computed_tokens)
    if len(found) * size < sequence.num_tokens:
        return CachedPrefix(found, None, len(found) * size)
    # All tokens are cached, but the last must be computed to get its logits: into a copy of its block.
    return CachedPrefix(found[:-1], found[-1], sequence.num_tokens - 1)


class PrefixesInStep:
    """The full blocks that the step being planned computes, by hash: the next step will find them in the cache."""

    def __init__(self, rows: Sequence[StepRow], block_size: int) -> None:
        """`rows` may grow: those that came since are looked at when somebody asks."""
        self._rows, self._size = rows, block_size
        self._num_seen = 0
        self._hashes: set[bytes] = set()

    def computes_most_of(self, num_tokens: int, prefix: CachedPrefix, sequence: CoreSequence) -> bool:
        """Whether at least half of a sequence's next tokens, from `prefix` on, are computed for somebody else."""
        if sequence.state is SequenceState.SWAPPED:  # its own are on the host
            return False
        self._look_at_new_rows()
        contents = sequence.contents_for(self._size)
        first = last = len(prefix.block_ids)
        while last < len(contents) and contents[last].hash in self._hashes:
            last += 1
        return 0 < num_tokens <= 2 * (last - first) * self._size

    def _look_at_new_rows(self) -> None:
        for sequence, scheduled in self._rows[self._num_seen :]:
            if sequence.is_probe:  # what it computes is never offered to others
                continue
            first, last = scheduled.start // self._size, (scheduled.start + scheduled.num_tokens) // self._size
            if first < last:
                self._hashes.update(content.hash for content in sequence.contents_for(self._size)[first:last])
        self._num_seen = len(self._rows)
