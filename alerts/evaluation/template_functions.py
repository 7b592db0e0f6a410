"""What templates of labels and annotations can call: Go's own functions and those that Prometheus adds."""

from __future__ import annotations

import html
import json
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from alerts.duration import parse_duration_s
from alerts.errors import AlertsError
from alerts.evaluation import go_text
from alerts.matcher import compile_go, expand_go

_PRINTF = re.compile(r"%(?:%|[-+ 0#]*\d*(?:\.\d+)?[a-zA-Z])")


class BadTemplateError(AlertsError):
    """A template cannot be parsed or expanded; the alert fires all the same."""


@dataclass(frozen=True, slots=True)
class QuerySample:
    """One series of a `query`: `.Labels.x` and `.Value` in a template."""

    labels: Mapping[str, str]
    value: float


Value = Any
"""str, float, int, bool, None, a mapping of labels, a QuerySample, or a list of QuerySamples."""


@dataclass(frozen=True, slots=True)
class TemplateData:
    """What a template can say. `query` answers an instant query at the moment of the alert."""

    labels: Mapping[str, str]
    value: float
    query: Callable[[str], Sequence[QuerySample]] | None = None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class TemplateFunction:
    """`counts`: how many arguments it takes; None: any number above zero."""

    call: Callable[..., Value]
    counts: frozenset[int] | None = frozenset({1})
    needs_data: bool = False


def shown(value: Value) -> str:
    """A value as Go prints it."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return go_text.plain(value)
        case None:
            return "<no value>"
        case Mapping():
            return "map[" + " ".join(f"{name}:{value[name]}" for name in sorted(value)) + "]"
        case QuerySample():
            return f"{{{shown(value.labels)} {shown(value.value)}}}"
        case _:
            return "[" + " ".join(map(shown, value)) + "]"


def number_of(value: Value) -> float:
    """The value as a float. Raises BadTemplateError for what is no number."""
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadTemplateError(f"{value!r} is not a number") from None


def is_true(value: Value) -> bool:
    """Go's truth: not zero, not empty, not nil."""
    return bool(value) if not isinstance(value, QuerySample) else True


def field_of(value: Value, name: str) -> Value:
    """`.name` of a value; a label that is not there is empty."""
    if isinstance(value, Mapping):
        return value.get(name, "")
    if isinstance(value, QuerySample) and name in ("Labels", "Value"):
        return value.labels if name == "Labels" else value.value
    raise BadTemplateError(f"nothing called {name} in {shown(value)[:60]}")


def _formatting(write: Callable[[float], str]) -> TemplateFunction:
    return TemplateFunction(lambda value: write(number_of(value)))


def _text(change: Callable[[str], Value]) -> TemplateFunction:
    return TemplateFunction(lambda value: change(shown(value)))


def _printf(form: Value, *args: Value) -> str:
    """Go's Printf with the verbs that numbers and strings need."""
    left = list(args)

    def one(match: re.Match[str]) -> str:
        verb = match.group()
        if verb == "%%":
            return "%"
        if not left:
            return f"%!{verb[-1]}(MISSING)"
        value = left.pop(0)
        match verb[-1]:
            case "v" | "s":
                return f"{verb[:-1]}s" % shown(value)
            case "q":
                return '"' + shown(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
            case "t":
                return shown(value)
            case "d" | "x" | "X" | "o" as kind:
                return verb % value if isinstance(value, int) else _wrong(kind, value)
            case "e" | "f" | "g" | "E" | "F" | "G" as kind:
                return verb % value if isinstance(value, float) else _wrong(kind, value)
            case other:
                raise BadTemplateError(f"printf verb %{other} is not supported")

    text = _PRINTF.sub(one, shown(form))
    return text + (f"%!(EXTRA {', '.join(f'{_go_kind(value)}={shown(value)}' for value in left)})" if left else "")


def _wrong(verb: str, value: Value) -> str:
    return f"%!{verb}({_go_kind(value)}={shown(value)})"


def _go_kind(value: Value) -> str:
    return {bool: "bool", int: "int", float: "float64", str: "string"}.get(type(value), "value")


def _print(*values: Value) -> str:
    """Go's Sprint: a space between two values of which none is text."""
    text = shown(values[0])
    for before, value in pairwise(values):
        text += ("" if isinstance(before, str) or isinstance(value, str) else " ") + shown(value)
    return text


def _replace_all(pattern: Value, replacement: Value, text: Value) -> str:
    return compile_go(shown(pattern)).sub(partial(expand_go, shown(replacement)), shown(text))


def _kind(value: Value) -> str:
    return {bool: "bool", int: "int", float: "float", str: "string"}.get(type(value), "other")


def _compared(holds: Callable[[Any, Any], bool], *counts: int) -> TemplateFunction:
    """As Go: numbers written without a point are integers, and `$value` is none."""

    def compare(left: Value, *others: Value) -> bool:
        for right in others:
            if _kind(left) != _kind(right):
                raise BadTemplateError(
                    f"incompatible types for comparison: {shown(left)} and {shown(right)}; write 5.0 for a float"
                )
        return any(holds(left, right) for right in others)

    return TemplateFunction(compare, frozenset(counts or (2,)))


def _query(data: TemplateData, expression: Value) -> Sequence[QuerySample]:
    if data.query is None:
        raise BadTemplateError("query has nothing to ask here")
    return data.query(shown(expression))


def _first(samples: Value) -> QuerySample:
    if not isinstance(samples, list | tuple) or not samples:
        raise BadTemplateError("first() called on vector with no elements")
    found: QuerySample = samples[0]
    return found


def _index(value: Value, *keys: Value) -> Value:
    for key in keys:
        if isinstance(value, Mapping):
            value = value.get(shown(key), "")
        elif isinstance(value, Sequence) and isinstance(key, int) and 0 <= key < len(value):
            value = value[key]
        else:
            raise BadTemplateError(f"no index {shown(key)} in {shown(value)[:60]}")
    return value


def _length(value: Value) -> int:
    if isinstance(value, str | Mapping | Sequence):
        return len(value.encode()) if isinstance(value, str) else len(value)
    raise BadTemplateError(f"len of {shown(value)[:60]}")


def _link(tab: int) -> TemplateFunction:
    return _text(lambda expr: f"/graph?g0.expr={urllib.parse.quote_plus(expr)}&g0.tab={tab}")


def _and(*values: Value) -> Value:
    return next((value for value in values if not is_true(value)), values[-1])


def _or(*values: Value) -> Value:
    return next((value for value in values if is_true(value)), values[-1])


FUNCTIONS: dict[str, TemplateFunction] = {
    "humanize": _formatting(go_text.humanize),
    "humanize1024": _formatting(go_text.humanize1024),
    "humanizeDuration": _formatting(go_text.humanize_duration),
    "humanizePercentage": _formatting(go_text.humanize_percentage),
    "humanizeTimestamp": _formatting(go_text.humanize_timestamp),
    "toTime": _formatting(go_text.humanize_timestamp),
    "toDuration": _formatting(go_text.duration),
    "parseDuration": _text(parse_duration_s),
    "toUpper": _text(str.upper),
    "toLower": _text(str.lower),
    "title": _text(lambda text: re.sub(r"(?<!\w)\w", lambda first: first.group().upper(), text)),
    "stripPort": _text(lambda text: re.sub(r":\d+$", "", text)),
    "stripDomain": _text(lambda text: text if re.match(r"[\d.]+(:\d+)?$|\[", text) else _without_domain(text)),
    "safeHtml": _text(str),
    "urlQueryEscape": _text(urllib.parse.quote_plus),
    "match": TemplateFunction(
        lambda pattern, text: bool(compile_go(shown(pattern)).search(shown(text))), frozenset({2})
    ),
    "reReplaceAll": TemplateFunction(_replace_all, frozenset({3})),
    "graphLink": _link(0),
    "tableLink": _link(1),
    "externalURL": TemplateFunction(lambda: "", frozenset({0})),
    "pathPrefix": TemplateFunction(lambda: "", frozenset({0})),
    "now": TemplateFunction(lambda data: data.at, frozenset({0}), needs_data=True),
    "args": TemplateFunction(lambda *values: {f"arg{i}": shown(value) for i, value in enumerate(values)}, None),
    "query": TemplateFunction(_query, needs_data=True),
    "first": TemplateFunction(_first),
    "value": TemplateFunction(lambda sample: field_of(sample, "Value")),
    "label": TemplateFunction(lambda name, sample: field_of(field_of(sample, "Labels"), shown(name)), frozenset({2})),
    "strvalue": TemplateFunction(lambda sample: field_of(field_of(sample, "Labels"), "__value__")),
    "sortByLabel": TemplateFunction(
        lambda name, samples: sorted(samples, key=lambda one: one.labels.get(shown(name), "")), frozenset({2})
    ),
    "printf": TemplateFunction(_printf, None),
    "print": TemplateFunction(_print, None),
    "println": TemplateFunction(lambda *values: " ".join(map(shown, values)) + "\n", None),
    "html": _text(html.escape),
    "js": _text(lambda text: json.dumps(text)[1:-1]),
    "urlquery": _text(urllib.parse.quote_plus),
    "len": TemplateFunction(_length),
    "index": TemplateFunction(_index, frozenset(range(2, 6))),
    "not": TemplateFunction(lambda value: not is_true(value)),
    "and": TemplateFunction(_and, None),
    "or": TemplateFunction(_or, None),
    "eq": _compared(lambda a, b: a == b, *range(2, 10)),
    "ne": _compared(lambda a, b: a != b),
    "lt": _compared(lambda a, b: a < b),
    "le": _compared(lambda a, b: a <= b),
    "gt": _compared(lambda a, b: a > b),
    "ge": _compared(lambda a, b: a >= b),
}


def _without_domain(text: str) -> str:
    host, _, port = text.partition(":")
    return host.split(".", 1)[0] + (f":{port}" if port else "")
