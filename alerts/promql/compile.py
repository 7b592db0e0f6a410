"""Text to nodes: Prometheus' grammar through promql-parser, and a refusal for what we do not evaluate."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, cast

import promql_parser as grammar

from alerts.errors import BadExpressionError
from alerts.labels import METRIC_NAME
from alerts.matcher import Matcher
from alerts.promql import nodes as n
from alerts.promql.functions import FUNCTIONS
from alerts.promql.infallible import is_infallible
from alerts.sample import to_ms

MAX_EXPRESSION_CHARS = 16 * 1024
MAX_DEPTH = 100

# Known to the grammar, refused here: each with the reason a person gets.
UNSUPPORTED_FUNCTIONS = {
    **dict.fromkeys(
        ("histogram_avg", "histogram_count", "histogram_sum", "histogram_stddev", "histogram_stdvar"),
        "native histograms are not supported",
    ),
    "histogram_quantiles": "experimental in Prometheus; use one histogram_quantile() per quantile",
    "info": "experimental in Prometheus; join with * on(...) group_left(...) instead",
}
RENAMED_FUNCTIONS = {"holt_winters": "double_exponential_smoothing"}
UNSUPPORTED_AGGREGATIONS = {
    "limitk": "experimental in Prometheus; use topk()",
    "limit_ratio": "experimental in Prometheus",
}

_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|`[^`]*`|#[^\n]*')
_RAW_STRING = re.compile(r'("(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|#[^\n]*)|`([^`]*)`')
_BYTES = re.compile(r"(\\\\)|(?:\\x[0-9a-fA-F]{2})+")
_UNKNOWN_FUNCTION = re.compile(r"unknown function with name '([^']*)'")
_EXPERIMENTAL = (  # newer than the grammar library: told by their shape
    (re.compile(r"\b(?:anchored|smoothed)\b"), "anchored and smoothed ranges are"),
    (re.compile(r"[<>]/"), "trimming native histograms is"),
    (re.compile(r"\[[^\]\[]*[-+*/%^][^\]\[]*\]"), "a calculation in a duration is"),
)
_MATCH_OPS: dict[str, Literal["=", "!=", "=~", "!~"]] = {
    "MatchOp.Equal": "=",
    "MatchOp.NotEqual": "!=",
    "MatchOp.Re": "=~",
    "MatchOp.NotRe": "!~",
}
_MANY: dict[str, Literal["none", "left", "right", "both"]] = {
    "VectorMatchCardinality.OneToOne": "none",
    "VectorMatchCardinality.ManyToOne": "left",
    "VectorMatchCardinality.OneToMany": "right",
    "VectorMatchCardinality.ManyToMany": "both",
}
_SET_OPS = ("and", "or", "unless")


@lru_cache(maxsize=4096)
def compile_expression(text: str) -> n.Node:
    """The expression as nodes. Raises BadExpressionError with a one-line reason."""
    if len(text) > MAX_EXPRESSION_CHARS:
        raise BadExpressionError(f"longer than {MAX_EXPRESSION_CHARS} characters")
    bare = _STRING.sub('""', text)
    if _nesting(bare) > MAX_DEPTH:
        raise BadExpressionError(f"nested deeper than {MAX_DEPTH}")
    if re.search(r"@\s*-", bare):
        # The grammar library turns a time before 1970 into 0 without a word, so it is refused here.
        raise BadExpressionError("a time before 1970 after @ is not supported")
    try:
        parsed = grammar.parse(_RAW_STRING.sub(_go_string, text))
    except ValueError as error:
        raise BadExpressionError(_reason(str(error), text, bare)) from None
    return _node(parsed, 0)


def _nesting(bare: str) -> int:
    """The deepest run of brackets and unary signs: what would recurse in the grammar library."""
    depth = deepest = 0
    for char in bare:
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}":
            depth -= 1
    signs = max((len("".join(run.group().split())) for run in re.finditer(r"[-+^][-+^\s]*", bare)), default=0)
    return deepest + signs


def _go_string(match: re.Match[str]) -> str:
    """A string of the source as the grammar library reads it the way Go does.

    It reads escapes inside back-quotes, and `\\xff` as a character where Go has a byte.
    """
    quoted, raw = match.groups()
    if raw is not None:
        return '"' + raw.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return _BYTES.sub(_characters, quoted)


def _characters(match: re.Match[str]) -> str:
    if match.group(1):  # an escaped backslash is no start of a byte
        return match.group()
    bytes_ = bytes.fromhex(match.group().replace("\\x", ""))
    if all(byte < 0x80 for byte in bytes_):
        return match.group()
    try:
        return bytes_.decode()
    except UnicodeDecodeError:
        raise BadExpressionError(f"a string is not valid UTF-8: {match.group()}") from None


def _reason(message: str, text: str, bare: str) -> str:
    unknown = _UNKNOWN_FUNCTION.search(message)
    if unknown:
        name = unknown.group(1)
        if name in RENAMED_FUNCTIONS:
            return f"unknown function {name}(): Prometheus 3 calls it {RENAMED_FUNCTIONS[name]}()"
        from difflib import get_close_matches  # seldom needed, and half a MB

        close = get_close_matches(name, FUNCTIONS, n=1, cutoff=0.85)
        return f"unknown function {name}()" + (f": did you mean {close[0]}()?" if close else "")
    for pattern, what in _EXPERIMENTAL:
        if pattern.search(bare):
            return f"{what} not supported: experimental in Prometheus"
    if message == "invalid promql query":
        shown = " ".join(text.split())
        return f"not PromQL, something is missing or out of place: {shown if len(shown) <= 80 else shown[:80] + '...'}"
    return " ".join(message.split())


def _node(parsed: Any, depth: int) -> n.Node:
    """`parsed` is a node of promql-parser, which has no types."""
    if depth > 4 * MAX_DEPTH:
        raise BadExpressionError(f"nested deeper than {4 * MAX_DEPTH}")
    match type(parsed).__name__:
        case "ParenExpr":
            return _node(parsed.expr, depth + 1)
        case "NumberLiteral":
            return n.Number(parsed.val)
        case "StringLiteral":
            return n.Text(parsed.val)
        case "VectorSelector":
            return _selector(parsed)
        case "MatrixSelector":
            return n.RangeSelector(_selector(parsed.vector_selector), _ms(parsed.range))
        case "SubqueryExpr":
            step = parsed.step
            return n.Subquery(
                _node(parsed.expr, depth + 1),
                _ms(parsed.range),
                None if step is None else _ms(step),
                _ms(parsed.offset),
                _at(parsed.at),
            )
        case "UnaryExpr":
            inner = _node(parsed.expr, depth + 1)
            return n.Number(-inner.value) if isinstance(inner, n.Number) else n.Negate(inner)
        case "Call":
            return _call(parsed, depth)
        case "AggregateExpr":
            return _aggregate(parsed, depth)
        case "BinaryExpr":
            return _binary(parsed, depth)
        case other:
            raise BadExpressionError(f"{other} is not supported")


def _selector(parsed: Any) -> n.Selector:
    name = parsed.name
    common = [Matcher(METRIC_NAME, "=", name)] if name else []
    groups = []
    for matchers in [parsed.matchers.matchers, *parsed.matchers.or_matchers]:
        read = [Matcher(m.name, _MATCH_OPS[str(m.op)], m.value) for m in matchers]
        if read or not parsed.matchers.or_matchers:
            groups.append(tuple(common + read))
    return n.Selector(tuple(groups), _ms(parsed.offset), _at(parsed.at))


def _call(parsed: Any, depth: int) -> n.Node:
    name = parsed.func.name
    if name in UNSUPPORTED_FUNCTIONS:
        raise BadExpressionError(f"{name}() is not supported: {UNSUPPORTED_FUNCTIONS[name]}")
    if name not in FUNCTIONS:
        raise BadExpressionError(f"unknown function {name}()")
    return n.Call(name, tuple(_node(arg, depth + 1) for arg in parsed.args))


def _aggregate(parsed: Any, depth: int) -> n.Node:
    op = str(parsed.op)
    if op in UNSUPPORTED_AGGREGATIONS:
        raise BadExpressionError(f"{op}() is not supported: {UNSUPPORTED_AGGREGATIONS[op]}")
    modifier = parsed.modifier
    without = modifier is not None and str(modifier.type) == "AggModifierType.Without"
    labels = tuple(sorted(set(modifier.labels))) if modifier is not None else ()
    param = None if parsed.param is None else _node(parsed.param, depth + 1)
    return n.Aggregate(op, _node(parsed.expr, depth + 1), param, without, labels)


def _binary(parsed: Any, depth: int) -> n.Node:
    op = str(parsed.op)
    lhs, rhs = _node(parsed.lhs, depth + 1), _node(parsed.rhs, depth + 1)
    modifier = parsed.modifier
    if modifier is not None and (modifier.fill_values.lhs is not None or modifier.fill_values.rhs is not None):
        raise BadExpressionError("fill() is not supported: experimental in Prometheus")
    returns_bool = modifier is not None and modifier.return_bool
    if is_scalar(lhs) or is_scalar(rhs):
        return n.Binary(op, lhs, rhs, returns_bool, None)
    on, labels, include = False, (), ()
    many: Literal["none", "left", "right", "both"] = "both" if op in _SET_OPS else "none"
    if modifier is not None:
        if op not in _SET_OPS:
            many = _MANY[str(modifier.card)]
        include = tuple(sorted(modifier.group_labels or ()))
        if modifier.matching is not None:
            on = str(modifier.matching.type) == "LabelModifierType.Include"
            labels = tuple(sorted(set(modifier.matching.labels)))
    may_skip_rhs = op != "or" and is_infallible(rhs)
    return n.Binary(op, lhs, rhs, returns_bool, n.Matching(on, labels, many, include), may_skip_rhs)


_SCALAR_FUNCTIONS = frozenset({"time", "pi", "scalar", "start", "end", "step", "range", "min_of", "max_of"})


def is_scalar(node: n.Node) -> bool:
    """True when the node gives one number without labels."""
    match node:
        case n.Number():
            return True
        case n.Call(function=function):
            return function in _SCALAR_FUNCTIONS
        case n.Negate(expr=expr):
            return is_scalar(expr)
        case n.Binary(lhs=lhs, rhs=rhs):
            return is_scalar(lhs) and is_scalar(rhs)
        case _:
            return False


def _ms(delta: timedelta | None) -> int:
    return 0 if delta is None else round(delta / timedelta(milliseconds=1))


def _at(at: Any) -> n.AtTime:
    if at is None:
        return None
    kind = str(at.type).rpartition(".")[2].lower()
    if kind in ("start", "end"):
        return cast('Literal["start", "end"]', kind)
    return to_ms(at.at.timestamp())
