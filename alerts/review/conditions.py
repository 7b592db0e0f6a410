"""A rule's expression taken apart: each comparison with its two sides, and how they are joined. For people who ask
why an alert stands as it does; the rule itself is evaluated whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser as grammar

COMPARISONS = frozenset({">", "<", ">=", "<=", "==", "!="})
_SETS = frozenset({"and", "or", "unless"})


@dataclass(frozen=True, slots=True)
class Condition:
    """One part. Without a comparison it holds where it has a value: `right` is empty then."""

    joined: str  # how it is joined to those before it: and, or, unless; empty: the first
    left: str
    comparison: str = ""
    right: str = ""


def conditions_of(expression: str) -> list[Condition]:
    """The parts of an expression, in order."""
    return list(_parts(grammar.parse(expression), ""))


def _parts(node: Any, joined: str) -> Iterator[Condition]:
    while isinstance(node, grammar.ParenExpr):
        node = node.expr
    operator = str(node.op) if isinstance(node, grammar.BinaryExpr) else ""
    if operator in _SETS:
        yield from _parts(node.lhs, joined)
        yield from _parts(node.rhs, operator)
    elif operator in COMPARISONS:
        yield Condition(joined, _text(node.lhs), operator, _text(node.rhs))
    else:
        yield Condition(joined, _text(node))


def _text(node: Any) -> str:
    while isinstance(node, grammar.ParenExpr):
        node = node.expr
    return str(node.prettify())
