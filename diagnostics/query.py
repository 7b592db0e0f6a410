"""A question's PromQL: the template bound to a scope, and its single value out of a series store.

The controller, a replay and a guard that looks before it acts read a value in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from alerts.errors import BadExpressionError, QueryError
from alerts.labels import METRIC_NAME
from alerts.matcher import Matcher
from alerts.promql import Query, evaluate, parse
from alerts.promql.known_answers import Reads
from alerts.promql.nodes import Node, RangeSelector, Selector, rebuilt, selectors_of
from alerts.series.store import SeriesStore

PLACEHOLDER = re.compile(r"\{\{\s*([a-z0-9_]+)\s*\}\}")
QUERY_PLACEHOLDERS = frozenset({"node", "pool", "model", "scope", "before", "onset", "onset_age_s"})
PAST_MARGIN_S = 15.0  # the signals look back 20 s: a fault is in them some seconds before a rule sees it
CHANGE_MARGIN_S = 90.0  # a rollout goes on while it already shows, and a change is told with a node's next scrape
_SAYS_WHO_ANSWERS = ("up", "llm:up")  # what the controller itself found out about a node
# From an exporter beside the node, whose own silence ends these series; from the controller; and from gateways.
_TOLD_BY_OTHERS = ("llm:gpu_", "fleet_", "gateway_")
TURNS = 4  # of answering and not within ten minutes: twice silent, and back
NO_DATA = "no series has data"
_NOTHING = (Matcher(METRIC_NAME, "=", ""),)  # no series is without a name


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The single value of a query. `at` is the Unix time of the oldest fact in it; None when that is not known."""

    value: float | None
    at: float | None
    why_unknown: str = ""


RunQuery = Callable[[str | Query], QueryResult]
"""A PromQL expression to its single value, bound by the caller to a store and a time."""


@dataclass(frozen=True, slots=True)
class AskedAt:
    """When a question is asked, and since when what it is about goes on (Unix seconds)."""

    now: float
    onset: float  # the earliest moment at which it may have begun
    onset_late: float | None = None  # the latest one; None: the same
    past_until: float | None = None  # where a past of another day ends; None: the past ends before the onset
    began: float | None = None  # the likeliest moment; None: the earliest
    kept_since: float | None = None  # the oldest point that there is; None: not known

    @property
    def before(self) -> str:
        """The PromQL modifier that ends a past before the onset, so that it does not contain what it is compared with.

        In Prometheus' own syntax: a query of an evidence can be pasted there.
        """
        until = self.past_until if self.past_until is not None else min(self.onset, self.now) - PAST_MARGIN_S
        return f"@ {until:.3f}"

    @property
    def by_onset(self) -> str:
        """The PromQL modifier of when all that may have caused it had happened: a minute and a half after the latest
        moment at which it may have begun."""
        late = self.onset if self.onset_late is None else max(self.onset, self.onset_late)
        return f"@ {min(late + CHANGE_MARGIN_S, self.now):.3f}"

    @property
    def onset_age_s(self) -> str:
        """Seconds since the likeliest moment of the onset, as a number literal."""
        return f"{max(0.0, self.now - (self.onset if self.began is None else self.began)):.3f}"


def store_query(store: SeriesStore, at: float) -> RunQuery:
    """Results from `store` as of Unix time `at`. No series, several series and a refused query are all unknown.

    For one look: what several of its queries read is read once (without, a verdict takes two thirds more CPU).
    """
    reads = Reads()

    def run_query(query: str | Query) -> QueryResult:
        try:
            samples = evaluate(query, store, at, shared=reads)
        except (BadExpressionError, QueryError) as error:
            return QueryResult(None, None, f"the query failed: {error}")
        if not samples:
            return QueryResult(None, None, NO_DATA)
        if len(samples) > 1:
            return QueryResult(None, None, f"{len(samples)} series answer where one was expected")
        return QueryResult(samples[0].value, samples[0].at)

    return run_query


def bind_query(template: str, scope: Mapping[str, str], asked: AskedAt) -> tuple[str, str]:
    """`(query, "")` with scope and times filled in, or `("", why)` when the scope lacks a placeholder's label.

    Values are escaped: a label can't break out of its PromQL string.
    """
    given = {"scope": scope_matcher(scope), "before": asked.before, "onset": asked.by_onset}
    given["onset_age_s"] = asked.onset_age_s
    given |= {name: _escape(scope[name]) for name in ("node", "pool", "model") if scope.get(name)}
    missing = [name for name in PLACEHOLDER.findall(template) if name not in given]
    if missing:
        return "", f"the scope names no {missing[0]}"
    return PLACEHOLDER.sub(lambda match: given[match.group(1)], template), ""


def sample_query(template: str) -> str:
    """The template with made-up labels and times: for who parses it and asks nobody. Its placeholders are known."""
    query, _ = bind_query(template, {"node": "n", "pool": "p", "model": "m"}, AskedAt(now=1e9, onset=1e9))
    return query


def liveness_query(scope: Mapping[str, str]) -> str:
    """Whether anything in the scope answers its scrapes: 0 when all of it is silent.

    What misses scrapes by turns, and answered within a minute, is not: the moment in which all of it does is chance.
    """
    where = scope_matcher(scope)
    by_turns = f"max(max_over_time(llm:up{{{where}}}[1m])) and on () max(changes(llm:up{{{where}}}[10m])) >= {TURNS}"
    return f"clamp_max(max(llm:up{{{where}}}) + ({by_turns} or vector(0)), 1)"


def without_own_numbers(query: str, scope: Mapping[str, str]) -> str | Query | None:
    """The query of a scope that does not answer its scrapes: what its own nodes say of themselves (series pinned to its
    node, else its pool) is missing. None: nobody else is asked, so nothing is left of it.

    Silence is that of a source: whether nodes answer, the word of the exporter of their GPUs, the controller's and a
    gateway's are evidence as ever. Where one of those is asked beside the node itself, `llm:up` is missing too: there
    it stands for the "no" of nodes that could tell.
    """
    try:
        root = parse(query).root
    except BadExpressionError:
        return query
    pin = ("node" if scope.get("node") else "pool", scope.get("node") or scope.get("pool") or "")
    sources = {_source(group, pin) for one in selectors_of(root) for group in one.groups}
    if "own" not in sources:
        return query
    return Query(query, _silenced(root, pin)) if "other" in sources else None


def _silenced(node: Node, pin: tuple[str, str]) -> Node:
    match node:
        case Selector(groups=groups):
            left = tuple(group for group in groups if _source(group, pin) in ("other", "elsewhere"))
            return replace(node, groups=left or (_NOTHING,))
        case RangeSelector(selector=selector):
            silenced = _silenced(selector, pin)
            assert isinstance(silenced, Selector)
            return replace(node, selector=silenced)
        case _:
            return rebuilt(node, lambda part: _silenced(part, pin))


def _source(matchers: Sequence[Matcher], pin: tuple[str, str]) -> Literal["own", "up", "other", "elsewhere"]:
    """Who tells what a selector reads: the nodes of the scope, their scrapes, somebody beside them; or other nodes."""
    name = next((one.value for one in matchers if one.name == METRIC_NAME and one.op == "="), "")
    if name.startswith(_TOLD_BY_OTHERS):
        return "other"
    if not any((one.name, one.op, one.value) == (pin[0], "=", pin[1]) for one in matchers):
        return "elsewhere"
    return "up" if name in _SAYS_WHO_ANSWERS else "own"


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
