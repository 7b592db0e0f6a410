"""Functions of labels and of order: replace, join, sort; and between scalar and vector."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import partial

from alerts.errors import QueryError
from alerts.labels import EMPTY, LabelSet
from alerts.matcher import compile_go, expand_go
from alerts.promql.nodes import Text
from alerts.promql.values import CallArgs, EvalContext, Function, Vector, check_distinct, single
from alerts.series.label_column import LabelColumn

_DIGITS = re.compile(r"(\d+)")


def _text(args: CallArgs, index: int) -> str:
    node = args[index]
    assert isinstance(node, Text), "the grammar checked types"
    return node.value


def _label_name(name: str) -> str:
    if not name or "\udc00" <= max(name) <= "\udfff" or "�" in name:
        raise QueryError(f"invalid label name {name!r}")
    return name


def relabelled(function: str, labels: Iterable[LabelSet], args: CallArgs) -> list[LabelSet]:
    """What label_replace() or label_join() makes of these labels. Raises QueryError for a bad label name."""
    if function == "label_join":
        joined, separator = _label_name(_text(args, 1)), _text(args, 2)
        sources = [_label_name(_text(args, index)) for index in range(3, len(args))]
        return [entry.having(((joined, separator.join(entry.get(source) for source in sources)),)) for entry in labels]
    target, template, source = _label_name(_text(args, 1)), _text(args, 2), _text(args, 3)
    pattern = compile_go(_text(args, 4))
    found: list[LabelSet] = []
    for entry in labels:
        match = pattern.fullmatch(entry.get(source))
        found.append(entry if match is None else entry.having(((target, expand_go(template, match)),)))
    return found


def _relabel(function: str, context: EvalContext, args: CallArgs) -> Vector:
    vector = context.vector(args[0])
    labels = vector.labels.remembered(
        (function, args[1:]), lambda: _distinct(relabelled(function, vector.labels, args))
    )
    return Vector(labels, vector.values, vector.at_ms)


def _distinct(labels: list[LabelSet]) -> LabelColumn:
    check_distinct(labels)
    return LabelColumn(labels)


def _sort(context: EvalContext, args: CallArgs, *, descending: bool) -> Vector:
    """NaN comes last in both directions."""
    vector = context.vector(args[0])
    sign = -1.0 if descending else 1.0
    values = vector.values.tolist()
    order = sorted(range(len(values)), key=lambda i: (math.isnan(values[i]), sign * values[i]))
    return vector.take(order)


def _natural(text: str) -> list[tuple[int, int | str]]:
    """A key that orders digits inside text by number: 4m5 before 4m600."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in _DIGITS.split(text) if part]


def _sort_by_label(context: EvalContext, args: CallArgs, *, descending: bool) -> Vector:
    """Ties are ordered by the whole label set."""
    vector = context.vector(args[0])
    names = [_text(args, index) for index in range(1, len(args))]

    def key(index: int) -> tuple[object, ...]:
        labels = vector.labels[index]
        return (*(_natural(labels.get(name)) for name in names), labels.pairs)

    return vector.take(sorted(range(len(vector)), key=key, reverse=descending))


def _scalar(context: EvalContext, args: CallArgs) -> float:
    vector = context.vector(args[0])
    return float(vector.values[0]) if len(vector) == 1 else math.nan


def _vector(context: EvalContext, args: CallArgs) -> Vector:
    return single(EMPTY, context.scalar(args[0]), context.at_ms)


LABEL_FUNCTIONS: dict[str, Function] = {
    "label_replace": partial(_relabel, "label_replace"),
    "label_join": partial(_relabel, "label_join"),
    "sort": partial(_sort, descending=False),
    "sort_desc": partial(_sort, descending=True),
    "sort_by_label": partial(_sort_by_label, descending=False),
    "sort_by_label_desc": partial(_sort_by_label, descending=True),
    "scalar": _scalar,
    "vector": _vector,
}
