"""Which node was sent which prefix: a radix tree of block chains, each node's part as large as its own KV cache.

What the gateway itself routed stands for what a node has cached: nobody asks the nodes. Per node the least recently
used parts are forgotten as its cache would evict them. A part that several nodes hold is stored once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from fleetctl.gateway.routing.prefix_blocks import Blocks, tokens_before

DEFAULT_CACHE_TOKENS = 256 * 1024  # of a node that does not say how large its KV cache is
MAX_PARTS = 100_000  # held by all nodes together; about 1.3 KiB each with everything it refers to
MAX_TOKENS = 512 * 1024 * 1024  # held by all nodes together; 40 bytes for 32 to 256 of them


class Segment:
    """Consecutive blocks of a chain that always occur together. `first`: index of its first block in the chain."""

    __slots__ = ("blocks", "children", "first", "nodes", "parent")

    def __init__(self, parent: Segment | None, first: int, blocks: Blocks) -> None:
        self.parent = parent
        self.first = first
        self.blocks = blocks
        self.children: dict[int, Segment] = {}
        self.nodes: dict[str, None] = {}

    @property
    def end(self) -> int:
        """Index behind its last block in the chain."""
        return self.first + len(self.blocks)

    @property
    def tokens(self) -> int:
        """Tokens in its blocks."""
        return tokens_before(self.end) - tokens_before(self.first)


@dataclass(slots=True)
class _Held:
    """What one node holds, the least recently used first."""

    parts: OrderedDict[Segment, None] = field(default_factory=OrderedDict)
    tokens: int = 0


class PrefixMatch(NamedTuple):
    """How much of one prompt nodes hold. `path`: segments from the root, each with the block up to which it matches."""

    path: tuple[tuple[Segment, int], ...] = ()

    def tokens_of(self, node: str) -> int:
        """Tokens of the prompt that the node was sent before."""
        return next((tokens for nodes, tokens in self.held() if node in nodes), 0)

    def held(self) -> list[tuple[Collection[str], int]]:
        """Nodes with the tokens that they were sent before, the longest part first: a node's first one counts."""
        return [(segment.nodes, tokens_before(end)) for segment, end in reversed(self.path)]

    def shared_tokens(self, least: int) -> int:
        """Tokens that are the beginning of many prompts: so many nodes hold it, or so many prompts go on from there."""
        for segment, end in reversed(self.path):
            if len(segment.nodes) >= least or (len(segment.children) >= least and end == segment.end):
                return tokens_before(end)
        return 0

    def holders(self, most: int) -> list[str]:
        """Nodes that hold some of it, those with the longest part first; at most about `most`.

        A part that more nodes hold than that tells none of them apart, and neither do the parts before it.
        """
        found: dict[str, None] = {}
        for segment, _ in reversed(self.path):
            if len(segment.nodes) + len(found) > most and found:
                break
            if len(segment.nodes) > most:
                break
            found.update(segment.nodes)
        return list(found)


NO_MATCH = PrefixMatch()


class PrefixIndex:
    """Owner of the tree. Threading: event loop only."""

    def __init__(self, *, max_parts: int = MAX_PARTS, max_tokens: int = MAX_TOKENS) -> None:
        self._root = Segment(None, 0, ())
        self._held: dict[str, _Held] = {}
        self._cache_tokens: dict[str, int] = {}
        self._max_parts = max_parts
        self._max_tokens = max_tokens

    @property
    def num_parts(self) -> int:
        """Parts that nodes hold; one that two hold counts twice."""
        return sum(len(held.parts) for held in self._held.values())

    @property
    def num_tokens(self) -> int:
        """Tokens in those parts."""
        return sum(held.tokens for held in self._held.values())

    def set_cache_tokens(self, node: str, tokens: int | None) -> None:
        """How many tokens the node's KV cache holds; None: not known."""
        if tokens is None:
            self._cache_tokens.pop(node, None)
        else:
            self._cache_tokens[node] = tokens

    def match(self, blocks: Blocks) -> PrefixMatch:
        """What nodes hold of a prompt."""
        if not self._root.children:
            return NO_MATCH
        return PrefixMatch(tuple(self._walk(blocks)))

    def note_routed(self, node: str, blocks: Blocks) -> None:
        """The prompt goes to the node, which will have all of it in its cache."""
        if not blocks:
            return
        held = self._held.get(node)
        if held is None:
            held = self._held[node] = _Held()
        path = self._walk(blocks)
        segment, end = path[-1] if path else (self._root, 0)
        if end < segment.end:
            segment = self._split(segment, end)
        if end < len(blocks):
            grown = Segment(segment, end, blocks[end:])
            segment.children[grown.blocks[0]] = grown
            segment = grown
        # From the leaf to the root: the root's parts are the youngest, so that a leaf is always forgotten first.
        one: Segment | None = segment
        while one is not None and one is not self._root:
            if node in one.nodes:
                held.parts.move_to_end(one)
            else:
                one.nodes[node] = None
                held.parts[one] = None
                held.tokens += one.tokens
            one = one.parent
        self._evict(node, held)

    def forget_node(self, node: str) -> None:
        """Its cache is gone: it ended, or another process has its name."""
        held = self._held.pop(node, None)
        if held is not None:
            for segment in held.parts:
                self._let_go(segment, node)

    def keep_only(self, nodes: Collection[str]) -> None:
        """Forget nodes that are gone."""
        for node in [node for node in self._held if node not in nodes]:
            self.forget_node(node)
        for node in [node for node in self._cache_tokens if node not in nodes]:
            del self._cache_tokens[node]

    def _walk(self, blocks: Blocks) -> list[tuple[Segment, int]]:
        path: list[tuple[Segment, int]] = []
        segment, at, size = self._root, 0, len(blocks)
        while at < size:
            child = segment.children.get(blocks[at])
            if child is None:
                break
            end = child.end
            if end <= size and child.blocks[-1] == blocks[end - 1]:
                path.append((child, end))
                segment, at = child, end
                continue
            path.append((child, at + _num_common(child.blocks, blocks[at : at + len(child.blocks)])))
            break
        return path

    def _split(self, segment: Segment, at: int) -> Segment:
        """The segment's part before block `at` as one of its own; the rest stays what it was, below it."""
        count = at - segment.first
        upper = Segment(segment.parent, segment.first, segment.blocks[:count])
        assert segment.parent is not None
        segment.parent.children[upper.blocks[0]] = upper
        segment.parent, segment.first, segment.blocks = upper, at, segment.blocks[count:]
        upper.children[segment.blocks[0]] = segment
        upper.nodes = dict(segment.nodes)
        for node in upper.nodes:  # the new part and all before it are the youngest again
            parts = self._held[node].parts
            parts[upper] = None
            one = upper.parent
            while one is not None and one is not self._root:
                parts.move_to_end(one)
                one = one.parent
        return upper

    def _evict(self, node: str, held: _Held) -> None:
        num_nodes = len(self._held)
        own = self._cache_tokens.get(node, DEFAULT_CACHE_TOKENS)
        max_tokens = min(own, self._max_tokens // num_nodes)
        max_parts = max(1, self._max_parts // num_nodes)
        while len(held.parts) > 1 and (held.tokens > max_tokens or len(held.parts) > max_parts):
            segment, _ = held.parts.popitem(last=False)
            held.tokens -= segment.tokens
            self._let_go(segment, node)

    def _let_go(self, segment: Segment, node: str) -> None:
        del segment.nodes[node]
        if not segment.nodes and segment.parent is not None:
            del segment.parent.children[segment.blocks[0]]

    def check_integrity(self) -> None:
        """Raises AssertionError when tree and holdings do not fit together."""
        seen: dict[str, int] = {}
        stack = list(self._root.children.values())
        while stack:
            segment = stack.pop()
            assert segment.blocks
            assert segment.nodes
            for node in segment.nodes:
                assert segment in self._held[node].parts
                assert segment.parent is self._root or (segment.parent and node in segment.parent.nodes)
                seen[node] = seen.get(node, 0) + segment.tokens
            for key, child in segment.children.items():
                assert child.parent is segment
                assert child.blocks[0] == key
                assert child.first == segment.end
            stack.extend(segment.children.values())
        assert seen == {node: held.tokens for node, held in self._held.items() if held.parts}


def _num_common(one: Blocks, other: Blocks) -> int:
    """How many blocks two chains share from their beginning; at least the first. Equal hashes mean equal all before."""
    low, high = 1, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
