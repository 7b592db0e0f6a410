"""Consistent hashing for large fleets: the nodes that a prefix or session is nearest to, without asking each of them.

A node that joins or leaves moves only its own share. Small fleets ask each node's affinity instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache

from fleetctl.gateway.routing.pick import affinity, node_hash

POINTS = 16  # of a node: the load is part of the choice, so the ring need not be even


class Ring:
    """The points of some nodes on a circle of 64 bits. It is never changed: a new set of nodes is a new ring."""

    def __init__(self, nodes: Iterable[str]) -> None:
        points = sorted((point, node) for node in nodes for point in _points(node))
        self._at = [point for point, _ in points]
        self._nodes = [node for _, node in points]

    def nearest(self, key: int, count: int) -> list[str]:
        """Up to `count` different nodes, the nearest to `key` (64 bits) first."""
        size = len(self._nodes)
        found: dict[str, None] = {}
        at = bisect_left(self._at, key)
        for step in range(min(size, count * POINTS)):
            found[self._nodes[(at + step) % size]] = None
            if len(found) == count:
                break
        return list(found)


@lru_cache(maxsize=16_384)
def _points(node: str) -> tuple[int, ...]:
    own = node_hash(node)
    return tuple(affinity(own, number) for number in range(1, POINTS + 1))
