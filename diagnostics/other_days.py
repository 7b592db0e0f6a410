"""What is unusual in a past that others keep, held against this hour of other days: read only as far as it is asked.

The live store has those days where it goes back so far. A Prometheus is asked for them: of each day the window that
the comparing questions read, of the metrics that they are made of.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from alerts.evaluation.rules import RuleGroup
from alerts.history.prometheus_source import RangeSeries
from alerts.history.recording import wanted_names
from alerts.labels import LabelSet
from alerts.promql import Query, parse
from alerts.promql.nodes import fixed_reach_ms, metric_names
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis, Evidence
from diagnostics.evidence.judge import with_pool
from diagnostics.evidence.knowledge import Knowledge
from diagnostics.evidence.question import Question
from diagnostics.evidence.reading import OTHER_DAYS, day_ends_at, on_other_days
from diagnostics.past import Past, PastVerdict, Said, reading_group
from diagnostics.query import AskedAt, bind_query, store_query

# Of raw points before what is read of a signal: most of those look back 20 s to 5 minutes, and a lookback is 5 minutes.
SIGNAL_REACH_S = 600.0

ReadRows = Callable[[Sequence[RuleGroup], float, float], Sequence[RangeSeries]]
"""The points in that time (Unix seconds) of all that these rules read and do not record themselves."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that compares with the past and was answered with yes."""

    question: Question
    scope: Mapping[str, str]
    at: AskedAt

    def query_of(self, ago_s: float) -> Query:
        until = day_ends_at(self.at.now, ago_s)
        return parse(bind_query(self.question.template(self.scope), self.scope, replace(self.at, past_until=until))[0])


def against_other_days(
    past: Past,
    verdict: PastVerdict,
    where: Mapping[str, str],
    groups: Sequence[RuleGroup],
    knowledge: Knowledge,
    read: ReadRows,
) -> PastVerdict:
    """The verdict, in which each rise or fall says what this hour yesterday and a week ago was, or that nobody knows.

    `past` has given this verdict, so its signals are in its store. `where`: what a verdict without incident is about.
    """
    asked = {index: _unusual(past, one, where, knowledge) for index, one in enumerate(verdict.said)}
    all_asked = [one for own in asked.values() for one in own.values()]
    if not all_asked:
        return verdict
    store = _days(past, all_asked, groups, read)
    said = tuple(
        replace(one, diagnosis=_with_days(one.diagnosis, asked[index], store)) for index, one in enumerate(verdict.said)
    )
    return replace(verdict, said=said)


def _unusual(past: Past, said: Said, where: Mapping[str, str], knowledge: Knowledge) -> dict[str, _Asked]:
    """By question, of one verdict."""
    told = said.diagnosis
    if told.at is None or told.onset is None:
        return {}
    scope = with_pool(where if said.incident is None else said.incident.scope, past.store, told.at)
    at = AskedAt(told.at, told.onset if told.onset_early is None else told.onset_early, told.onset_late)
    found = {}
    for one in told.evidence:
        question = knowledge.questions.get(one.question)
        if one.answer == "yes" and question is not None and question.compares_with_past(scope):
            found[one.question] = _Asked(question, scope, at)
    return found


def _days(past: Past, asked: Sequence[_Asked], groups: Sequence[RuleGroup], read: ReadRows) -> SeriesStore:
    """What these questions read, on the other days and today, the oldest first."""
    queries = [one.query_of(ago_s) for one in asked for _, ago_s in OTHER_DAYS]
    reach_s = max(fixed_reach_ms(one.root) for one in queries) / 1000
    reading = reading_group([*queries, parse("up")])  # a target's `up` says when its series ended
    needed = [*_recording(groups, {name for one in queries for name in metric_names(one.root)}), reading]
    is_read = wanted_names([reading])
    store = SeriesStore(retention_s=10 * 366 * 86400.0, max_points=10_000_000, is_recording=True)
    for _, ago_s in reversed(OTHER_DAYS):
        start = min(day_ends_at(one.at.now, ago_s) for one in asked) - reach_s
        end = max(day_ends_at(one.at.now, ago_s) for one in asked)
        if rows := read(needed, start - SIGNAL_REACH_S, end):
            day = past.at_another_time(rows)
            day.record(needed[:-1], start, end)
            _copy(day.store, store, start, end, is_read)
    _copy(past.store, store, 0.0, max(one.at.now for one in asked), is_read)
    return store


def _recording(groups: Sequence[RuleGroup], names: Iterable[str]) -> list[RuleGroup]:
    """The recording rules that these series are made by, and those that they are made of in turn."""
    wanted, todo = set[str](), set(names)
    while todo:
        wanted |= todo
        rules = [rule for group in groups for rule in group.rules if rule.kind == "record" and rule.name in todo]
        todo = {name for rule in rules for name in metric_names(rule.query.root)} - wanted
    kept = [tuple(one for one in group.rules if one.kind == "record" and one.name in wanted) for group in groups]
    return [replace(group, rules=rules) for group, rules in zip(groups, kept, strict=True) if rules]


def _copy(source: SeriesStore, to: SeriesStore, since: float, until: float, wanted: Callable[[str], bool]) -> None:
    for labels, points in source.dump(since, until, wanted=lambda labels: wanted(labels.name)):
        times, values = zip(*points, strict=True)
        to.append_points(LabelSet.of(labels), array("q", (round(at * 1000) for at in times)), array("d", values))


def _with_days(told: Diagnosis, asked: Mapping[str, _Asked], store: SeriesStore) -> Diagnosis:
    def with_days(one: Evidence) -> Evidence:
        if (found := asked.get(one.question)) is None:
            return one
        run_query = store_query(store, found.at.now)
        return replace(one, usual=on_other_days(found.question, found.scope, run_query, found.at, tells_gaps=True))

    return replace(told, evidence=tuple(with_days(one) for one in told.evidence))
