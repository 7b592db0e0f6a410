"""One KV block, what may be known of its content, and the linked list that free blocks live in.

The list runs through the blocks themselves, so a block that a prefix hit takes back leaves from the middle in O(1).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

TOKEN_BYTES = 4  # token ids are stored as unsigned 32 bit
_HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class BlockContent:
    """A full block's place in a prefix: the hash chain up to it, and its own token ids for comparison on a hit."""

    hash: bytes
    parent_hash: bytes
    token_bytes: bytes


def root_hash(salt: str) -> bytes:
    """The parent hash of a first block. Prefixes of different salts never meet."""
    return blake2b(salt.encode(), digest_size=_HASH_BYTES, person=b"kv-root").digest()


def chain_hash(parent_hash: bytes, token_bytes: bytes) -> bytes:
    """The hash of a block that follows `parent_hash` and holds these tokens."""
    return blake2b(token_bytes, digest_size=_HASH_BYTES, key=parent_hash).digest()


def extend_contents(contents: list[BlockContent], token_ids: Sequence[int], block_size: int, salt: str) -> None:
    """Append the contents of the full blocks of `token_ids` that `contents` does not have yet."""
    first, last = len(contents), len(token_ids) // block_size
    if first >= last:
        return
    parent = contents[-1].hash if contents else root_hash(salt)
    data = array("I", token_ids[first * block_size : last * block_size]).tobytes()
    width = block_size * TOKEN_BYTES
    for offset in range(0, len(data), width):
        token_bytes = data[offset : offset + width]
        digest = chain_hash(parent, token_bytes)
        contents.append(BlockContent(digest, parent, token_bytes))
        parent = digest


class Block:
    """A slot for the KV of `block_size` tokens. Free exactly when `ref_count` is 0; then it is in one free list."""

    __slots__ = ("block_id", "content", "following", "home", "is_reused", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.content: BlockContent | None = None  # set while the block can be found by prefix
        self.is_reused = False  # found by prefix again after it was cached
        self.home: FreeList | None = None
        self.previous: Block = self
        self.following: Block = self


class FreeList:
    """Free blocks in order of use, oldest first. Every operation but iteration is O(1)."""

    __slots__ = ("_end", "_length", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._end = Block(-1)  # sentinel: its `following` is the first block
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._end.following
        while block is not self._end:
            yield block
            block = block.following

    def append(self, block: Block) -> None:
        """Put a block last: it will be taken after all others."""
        assert block.home is None, f"block {block.block_id} is in list {block.home and block.home.name}"
        last = self._end.previous
        last.following = block
        block.previous = last
        block.following = self._end
        self._end.previous = block
        block.home = self
        self._length += 1

    def remove(self, block: Block) -> None:
        """Take a block out from wherever it stands."""
        assert block.home is self, f"block {block.block_id} is not in list {self.name}"
        block.previous.following = block.following
        block.following.previous = block.previous
        block.previous = block.following = block
        block.home = None
        self._length -= 1

    def pop_first(self) -> Block:
        """Take out the block that has waited longest.

        Raises:
            IndexError: the list is empty.
        """
        if not self._length:
            raise IndexError(f"free list {self.name} is empty")
        block = self._end.following
        self.remove(block)
        return block

    def find_problem(self) -> str | None:
        """What is wrong with the links, or None."""
        count = 0
        previous = self._end
        block = self._end.following
        while block is not self._end:
            if block.previous is not previous:
                return f"list {self.name}: block {block.block_id} does not point back to its predecessor"
            if block.home is not self:
                return f"list {self.name}: block {block.block_id} does not name this list as its home"
            count += 1
            if count > self._length:
                return f"list {self.name}: more blocks are linked than its length {self._length}"
            previous, block = block, block.following
        if self._end.previous is not previous:
            return f"list {self.name}: its end does not point back to its last block"
        if count != self._length:
            return f"list {self.name}: {count} blocks are linked, its length is {self._length}"
        return None
