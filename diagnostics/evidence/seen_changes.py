"""What the series show of changes where nobody tells of them: revisions, settings, nodes, adapters, traffic. Pure.

What labels say is exact; what traffic is like is measured, so a change of it is a change point (as an onset is), and
told only where it came before what is asked about or with it: later it is a consequence.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from alerts.errors import BadExpressionError, QueryError
from alerts.promql import evaluate, evaluate_series
from alerts.sample import Sample
from alerts.series.store import SeriesStore
from diagnostics.evidence.onset import Onset, change_point
from diagnostics.query import scope_matcher
from diagnostics.value_format import format_value

STEP_S = 15.0
LOOK_BACK_S = 1800.0  # as of changes that are told
PAST_S = 900.0  # before that: what was there then is not new
SLACK_S = 60.0
KNOWN_FOR_S = 60.0  # a record that is younger knows nothing that was there before
MAX_SHARES = 3
_PLACES = frozenset({"__name__", "node", "pool", "model", "engine", "zone", "revision", "instance", "job", "pid"})
_CAPACITY = (
    '{__name__=~"(trtllm_)?kv_cache_max_blocks|sglang[:_]max_total_num_tokens|tgi_batch_max_total_tokens",{{scope}}}'
)

Points = Sequence[tuple[float, float]]
Row = tuple[dict[str, str], Points]


@dataclass(frozen=True, slots=True)
class _Quantity:
    """Something of the traffic: a change by so many times (or points) is told."""

    kind: str
    query: str
    says: str
    unit: str
    times: float = 1.0  # and its reciprocal
    points: float = 0.0


_PROMPTS = _Quantity(
    "prompts",
    "sum(llm:prompt_tokens:rate{{{scope}}}) / (sum(llm:first_tokens:rate{{{scope}}}) > 0)"
    " or avg(llm:prompt_tokens:mean{{{scope}}} > 0)",
    "prompts {change}{more} in {where}",
    "tokens",
    times=1.25,
)
_LONGEST = _Quantity(
    "prompts",
    "max(llm:prompt_tokens:p99{{{scope}}} > 0)",
    "the longest prompts {change} in {where}",
    "tokens",
    times=2.0,
)
_SHARED = _Quantity(
    "template",
    "avg(llm:prefix_hit_ratio{{{scope}}})",
    "prompts as long as before share {change} of their tokens in {where}",
    "ratio",
    points=0.08,
)
_OTHERS = (
    _Quantity("traffic", "sum(llm:arrivals:rate{{{scope}}})", "requests {change} in {where}", "per_second", times=1.3),
    _Quantity(
        "answers",
        "sum(llm:generation_tokens:rate{{{scope}}}) / (sum(llm:requests:rate{{{scope}}}) > 0)",
        "answers {change} in {where}",
        "tokens",
        times=1.5,
    ),
)
_LENGTHS = (
    "histogram_quantile({q}, sum by (le) (avg_over_time(llm:prompt_tokens:bucket_rate{{{scope}}}[{window}] @ {at})))"
)
_ASKED = "rate(gateway_tenant_requests_total[1m])"
_TENANTS = f"sum by (tenant) ({_ASKED}) / scalar(sum({_ASKED}) > 0)"
_POOLS = "sum by (pool) (llm:arrivals:rate) / scalar(sum(llm:arrivals:rate) > 0)"

# What is read for it, for who fetches series before they are asked. Labels of places are left out.
QUERIES = (
    "llm:up",
    "vllm:cache_config_info",
    "llm:limit",
    "llm:lora_info",
    _CAPACITY.replace(",{{scope}}", ""),
    _TENANTS,
    _POOLS,
    *(one.query.replace("{{{scope}}}", "") for one in (_PROMPTS, _LONGEST, _SHARED, *_OTHERS)),
    "llm:prompt_tokens:bucket_rate",
)


def seen_changes(scope: Mapping[str, str], store: SeriesStore, now: float, onset: Onset) -> list[Sample]:
    """Changes as samples: labels kind, pool, node and `what` in words, in which `{where}` stands for the place; the
    value is when."""
    around = {"pool": scope["pool"]} if scope.get("node") and scope.get("pool") else scope
    look = _Look(around, store, now, onset)
    found = [*look.revisions(), *look.settings(), *look.limits(), *look.nodes(), *look.adapters(), *look.traffic()]
    return [one for one in found if one.value >= onset.early - LOOK_BACK_S]


class _Look:
    """One look at the series around an onset."""

    def __init__(self, scope: Mapping[str, str], store: SeriesStore, now: float, onset: Onset) -> None:
        self._scope, self._store, self._onset = scope, store, onset
        self._start = onset.early - LOOK_BACK_S - PAST_S
        self._end = min(now, onset.late + SLACK_S)

    def revisions(self) -> Iterator[Sample]:
        """Another label `revision` of a node."""
        rows = self._rows('count by (node, pool, revision) (llm:up{revision!="",{{scope}}})')
        for labels, before, at in _successions(rows):
            yield _told("revision", labels, f"revision {before['revision']} → {labels['revision']} of {{where}}", at)

    def settings(self) -> Iterator[Sample]:
        """What the engine says of its own cache: a series whose labels are its settings."""
        for labels, before, at in _successions(self._rows("vllm:cache_config_info{{{scope}}}")):
            names = sorted({*labels, *before} - _PLACES)
            differ = [name for name in names if labels.get(name) != before.get(name)]
            told = ", ".join(f"{name} {before.get(name, 'none')} → {labels.get(name, 'none')}" for name in differ)
            if differ:
                yield _told("limits", labels, f"{told} of {{where}}", at)

    def limits(self) -> Iterator[Sample]:
        """Numbers that only somebody changes."""
        rows = self._rows("max by (node, pool, limit) (llm:limit{{{scope}}})")
        rows += self._rows(f"max by (node, pool) ({_CAPACITY})")
        for labels, points in rows:
            for (_, before), (at, after) in itertools.pairwise(points):
                if abs(after - before) > 0.01 * abs(before):
                    name = labels.get("limit", "KV cache")
                    yield _told("limits", labels, f"{name} {before:,.0f} → {after:,.0f} of {{where}}", at)

    def nodes(self) -> Iterator[Sample]:
        """Nodes that came, and nodes that nobody scrapes any more."""
        rows = self._rows("count by (node, pool) (llm:up{{{scope}}})")
        since = min((points[0][0] for _, points in rows), default=0.0)
        until = max((points[-1][0] for _, points in rows), default=0.0)
        for labels, points in rows:
            if points[0][0] >= since + KNOWN_FOR_S:
                yield _told("scale", labels, "{where} came", points[0][0])
            if points[-1][0] <= until - 2 * STEP_S:
                yield _told("scale", labels, "{where} went, and is scraped no more", points[-1][0])

    def adapters(self) -> Iterator[Sample]:
        """Adapters that were asked for, and were not in the quarter of an hour before."""
        rows = self._rows("llm:lora_info{{{scope}}}")
        first: dict[tuple[str, str], float] = {}  # by pool and adapter
        for labels, points in rows:
            names = f"{labels.get('running_lora_adapters', '')},{labels.get('waiting_lora_adapters', '')}"
            for name in {one.strip() for one in names.split(",")} - {""}:
                key = (labels.get("pool", ""), name)
                first[key] = min(first.get(key, points[0][0]), points[0][0])
        since = min((points[0][0] for _, points in rows), default=0.0)
        for (pool, name), at in sorted(first.items()):
            if at >= since + PAST_S:
                yield _told(
                    "adapter", {"pool": pool}, f"adapter {name} is asked for in {{where}}, and was not before", at
                )

    def traffic(self) -> Iterator[Sample]:
        """What is asked, by how many and by whom."""
        prompts = self._quantity(_PROMPTS, self._lengths)
        if prompts is None:
            yield from filter(None, (self._quantity(_LONGEST), self._quantity(_SHARED)))
        else:
            yield prompts
        yield from filter(None, map(self._quantity, _OTHERS))
        yield from self._shares(_TENANTS, "tenant", "tenant {who} sends {change} of all requests")
        if not self._scope.get("zone"):
            yield from self._shares(_POOLS, "pool", "pool {who} gets {change} of all requests")

    def _quantity(self, asked: _Quantity, more: Callable[[float], str] = lambda at: "") -> Sample | None:
        rows = self._rows(asked.query)
        found = self._shift(rows[0][1]) if len(rows) == 1 else None
        if found is None:
            return None
        at, before, after = found
        if asked.points:
            is_much = abs(after - before) >= asked.points
        else:
            is_much = min(before, after) <= 0 or not 1 / asked.times < after / before < asked.times
        if not is_much:
            return None
        change = f"{format_value(before, asked.unit)} → {format_value(after, asked.unit)}".replace(" tokens →", " →")
        says = asked.says.replace("{change}", change).replace("{more}", more(at) if "{more}" in asked.says else "")
        return _told(asked.kind, {"pool": self._scope.get("pool", "")}, says, at)

    def _lengths(self, at: float) -> str:
        """The quantiles of prompt lengths before and after, where an engine has their histogram."""
        said = []
        for word, q in (("p50", "0.5"), ("p95", "0.95"), ("p99", "0.99")):
            sides = []
            for window, until in (("5m", at - STEP_S), ("1m", self._end)):
                query = _LENGTHS.replace("{q}", q).replace("{window}", window).replace("{at}", f"{until:.3f}")
                try:
                    answer = evaluate(self._bound(query), self._store, self._end)
                except (BadExpressionError, QueryError):
                    return ""
                sides += [f"{one.value:,.0f}" for one in answer if one.value == one.value]
            if len(sides) != 2:
                return ""
            said.append(f"{word} {' → '.join(sides)}")
        return f" ({', '.join(said)})"

    def _shares(self, query: str, label: str, says: str) -> Iterator[Sample]:
        """Whose share grew: where one's does, the others' fall."""
        rows = self._rows(query)
        if len(rows) < 2:
            return
        times = sorted({at for _, points in rows for at, _ in points})
        found = []
        for labels, points in rows:
            own = dict(points)
            shift = self._shift([(at, own.get(at, 0.0)) for at in times])
            if shift is not None and shift[2] - shift[1] >= 0.1 and labels.get(label):
                found.append((shift[2] - shift[1], labels[label], shift))
        for _, who, (at, before, after) in sorted(found, reverse=True)[:MAX_SHARES]:
            change = f"{format_value(before, 'ratio')} → {format_value(after, 'ratio')}"
            yield _told("traffic", {}, says.replace("{who}", who).replace("{change}", change), at)

    def _shift(self, points: Points) -> tuple[float, float, float] | None:
        """When it changed and from what to what, if not later than what is asked about."""
        change = change_point(points, self._end, self._end, self._end - self._start, looks_past_drift=True)
        if change is None or change.at > self._onset.late + 2 * STEP_S:
            return None
        before = [value for at, value in points if at < change.at]
        after = [value for at, value in points if at >= change.late]
        if not before or not after:
            return None
        return change.at, statistics.median(before), statistics.median(after)

    def _rows(self, template: str) -> list[Row]:
        if self._end <= self._start:
            return []
        try:
            rows = evaluate_series(self._bound(template), self._store, self._start, self._end, STEP_S)
        except (BadExpressionError, QueryError):
            return []
        return [(labels, points) for labels, points in rows if points]

    def _bound(self, template: str) -> str:
        matcher = scope_matcher(self._scope)
        return template.replace("{{{scope}}}", f"{{{matcher}}}").replace("{{scope}}", matcher)


def _successions(rows: Iterable[Row]) -> Iterator[tuple[dict[str, str], dict[str, str], float]]:
    """Labels that followed others of the same node: the new ones, the old ones, and when."""
    by_node: dict[str, list[Row]] = {}
    for labels, points in rows:
        by_node.setdefault(labels.get("node", ""), []).append((labels, points))
    for own in by_node.values():
        own.sort(key=lambda row: (row[1][0][0], row[1][-1][0]))
        for (before, old), (labels, new) in itertools.pairwise(own):
            # Both at once from the beginning, and to the end: two ranks of one node.
            if new[0][0] >= old[0][0] + KNOWN_FOR_S and new[-1][0] > old[-1][0]:
                yield labels, before, new[0][0]


def _told(kind: str, labels: Mapping[str, str], what: str, at: float) -> Sample:
    return Sample({"kind": kind, "pool": labels.get("pool", ""), "node": labels.get("node", ""), "what": what}, at, at)
