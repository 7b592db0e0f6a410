"""Answers that several rules ask for: evaluated once a tick.

Rules repeat each other's parts, such as a rate that one divides by and the other shows. An answer stays good within its
tick until a rule writes a metric that it was read from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from alerts.promql import nodes as n

if TYPE_CHECKING:
    from alerts.promql.values import Value

_Key = tuple[int, int, int]


class SharedExpr:
    """One expression that occurs in several places."""

    __slots__ = ("names", "number")

    def __init__(self, number: int, names: frozenset[str]) -> None:
        self.number = number
        self.names = names


class SharedResults:
    """Belongs to one rule engine, and holds answers only while it evaluates."""

    def __init__(self, roots: Iterable[n.Node]) -> None:
        self._roots = list(roots)  # parts are known by their identity, so the nodes must live
        nodes = [node for root in self._roots for node in _walk(root)]
        counts = Counter(nodes)
        parts: dict[n.Node, SharedExpr] = {}
        for node, count in counts.items():
            names = frozenset(n.metric_names(node))
            if count > 1 and names and "" not in names:
                parts[node] = SharedExpr(len(parts), names)
        self._shared_expr_of = {id(node): parts[node] for node in nodes if node in parts}
        self._results: dict[_Key, tuple[int, Value]] = {}
        self._num_writes = 0
        self._written: dict[str, int] = {}  # number of the last write of each metric

    def clear(self) -> None:
        """The tick is over."""
        self._results.clear()
        self._written.clear()
        self._num_writes = 0

    def note_write(self, name: str) -> None:
        """A rule has recorded this metric."""
        self._num_writes += 1
        self._written[name] = self._num_writes

    def shared_expr_of(self, node: n.Node) -> SharedExpr | None:
        """None for what occurs only once."""
        return self._shared_expr_of.get(id(node))

    def cached(self, part: SharedExpr, at_ms: int, start_ms: int) -> Value | None:
        """The result of this evaluation time, None when there is none or a rule has since written what it read."""
        found = self._results.get((part.number, at_ms, start_ms))
        if found is None:
            return None
        known_at, value = found
        written = self._written
        return None if any(written.get(name, 0) > known_at for name in part.names) else value

    def store_result(self, part: SharedExpr, at_ms: int, start_ms: int, value: Value) -> None:
        """Remembers a result until the tick is over."""
        self._results[part.number, at_ms, start_ms] = self._num_writes, value


def _walk(node: n.Node) -> Iterator[n.Node]:
    """Whatever reads series; a range is read as a whole, with its selector."""
    if not isinstance(node, n.Number | n.Text):
        yield node
    if not isinstance(node, n.RangeSelector):
        for child in n.children(node):
            yield from _walk(child)
