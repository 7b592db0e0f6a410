"""Which way an alert gets worse: by the comparison that its expression begins with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from alerts.promql import nodes as n

Way = Literal[-1, 0, 1]
_MORE, _LESS, _FILTERS = frozenset({">", ">="}), frozenset({"<", "<="}), frozenset({"and", "unless", "or"})


def worsens(root: n.Node) -> Way:
    """1: a greater value is worse, -1: a smaller one, 0: the expression does not say."""
    if not isinstance(root, n.Binary):
        return 0
    if root.op in _FILTERS:
        return agreed(worsens(side) for side in ((root.lhs, root.rhs) if root.op == "or" else (root.lhs,)))
    if root.returns_bool or isinstance(root.lhs, n.Number):
        return 0
    return 1 if root.op in _MORE else -1 if root.op in _LESS else 0


def agreed(ways: Iterable[Way]) -> Way:
    """The way that all of them go; 0: they differ."""
    found = set(ways)
    return found.pop() if len(found) == 1 else 0
