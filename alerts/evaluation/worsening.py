"""Which way an alert gets worse: by the comparison that its expression begins with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from alerts.promql import nodes as n

Way = Literal[-1, 0, 1]
Records = Mapping[str, Sequence[n.Node]]
"""By series, the expressions that write it."""
_MORE, _EQUAL, _FILTERS = frozenset({">", ">="}), frozenset({"==", "!="}), frozenset({"and", "unless", "or"})
_COMPARED = _MORE | _EQUAL | {"<", "<="}


def worsens(root: n.Node, records: Records) -> Way:
    """1: a greater value is worse, -1: a smaller one, 0: the expression does not say.

    A series that fires by being there is as bad as it is great, unless what writes it says otherwise.
    """
    way = _way(root, records, frozenset())
    return 1 if way is None else way


def agreed(ways: Iterable[Way]) -> Way:
    """The way that all of them go; 0: they differ."""
    found = set(ways)
    return found.pop() if len(found) == 1 else 0


def _way(node: n.Node, records: Records, seen: frozenset[str]) -> Way | None:
    """None: nothing in it is compared."""
    match node:
        case n.Binary(op=op) if op in _FILTERS:
            sides = (node.lhs, node.rhs) if op == "or" else (node.lhs,)
            found = [_way(side, records, seen) for side in sides]
            return None if None in found else agreed(way for way in found if way is not None)
        case n.Binary(op=op) if op in _COMPARED:
            if op in _EQUAL or node.returns_bool or isinstance(node.lhs, n.Number):
                return 0
            return 1 if op in _MORE else -1
        case n.Call(function="label_replace", args=(inner, *_)):
            return _way(inner, records, seen)
        case n.Selector():
            names = n.metric_names(node) - seen
            written = [_way(one, records, seen | names) for name in names for one in records.get(name, ())]
            return agreed(way for way in written if way is not None) if written and None not in written else None
        case _:
            return None
