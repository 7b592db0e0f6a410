"""A question's PromQL: the template bound to a scope, and its single value out of a series store.

The controller, a replay and a guard that looks before it acts read a value in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from alerts.errors import BadExpressionError, QueryError
from alerts.promql import evaluate
from alerts.series.store import SeriesStore

PLACEHOLDER = re.compile(r"\{\{\s*([a-z0-9_]+)\s*\}\}")
QUERY_PLACEHOLDERS = frozenset({"node", "pool", "model", "scope"})


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The single value of a query. `at` is the Unix time of the oldest fact in it; None when that is not known."""

    value: float | None
    at: float | None
    why_unknown: str = ""


RunQuery = Callable[[str], QueryResult]
"""A PromQL expression to its single value, bound by the caller to a store and a time."""


def store_query(store: SeriesStore, at: float) -> RunQuery:
    """Results from `store` as of Unix time `at`. No series, several series and a refused query are all unknown."""

    def run_query(query: str) -> QueryResult:
        try:
            samples = evaluate(query, store, at)
        except (BadExpressionError, QueryError) as error:
            return QueryResult(None, None, f"the query failed: {error}")
        if not samples:
            return QueryResult(None, None, "no series has data")
        if len(samples) > 1:
            return QueryResult(None, None, f"{len(samples)} series answer where one was expected")
        return QueryResult(samples[0].value, samples[0].at)

    return run_query


def bind_query(template: str, scope: Mapping[str, str]) -> tuple[str, str]:
    """`(query, "")` with the scope filled in, or `("", why)` when the scope lacks a placeholder's label.

    Values are escaped: a label can't break out of its PromQL string.
    """
    missing = [name for name in PLACEHOLDER.findall(template) if name != "scope" and not scope.get(name)]
    if missing:
        return "", f"the scope names no {missing[0]}"

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        return scope_matcher(scope) if name == "scope" else _escape(scope[name])

    return PLACEHOLDER.sub(fill, template), ""


def scope_matcher(scope: Mapping[str, str]) -> str:
    """The narrowest PromQL matcher for a scope: the node; else all of the places it names; none: the whole fleet.

    A model beside a pool is left out: the pool is the narrower of the two.
    """
    if scope.get("node"):
        names: tuple[str, ...] = ("node",)
    else:
        names = ("pool" if scope.get("pool") else "model", "zone", "revision")
    return ",".join(f'{name}="{_escape(scope[name])}"' for name in names if scope.get(name))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
