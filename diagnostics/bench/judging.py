"""A case run through the real chain: exposition, signals, rules, grouping, diagnosis; and whether it was right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from alerts.arrays import Times
from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from alerts.evaluation.rules import RuleGroup, load_rule_files
from alerts.series.store import SeriesStore
from diagnostics.bench.case import Case
from diagnostics.bench.engine_under_test import Under
from diagnostics.bench.recording import ONSET, Recorded, record
from diagnostics.diagnosis import Diagnosis
from diagnostics.incident import Incident, IncidentStatus
from diagnostics.retrospect import Retrospect
from diagnostics.scope import is_wide
from diagnostics.severity import severity_rank

FINE_STEP_MS = 5_000
COARSE_STEP_MS = 15_000
OWN_BEFORE_S = 900.0  # a rollout that a fault follows
_FINE_BEFORE_S = 120.0  # around the onset and around each time of judgement rules run at every scrape
_FINE_AFTER_S = 600.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said at one age of the fault. `causes`: the named ones, best first; empty: none was."""

    age_s: float
    causes: tuple[str, ...]
    second: tuple[str, ...]  # runners-up
    confidence: str
    probability: float | None
    title: str
    is_calm: bool  # "nothing is wrong" was said
    took_s: float
    scope: Mapping[str, str] = field(default_factory=dict)
    incidents: int = 0
    awaits: bool = False  # nothing is to be done about the cause yet


@dataclass(frozen=True, slots=True)
class Result:
    """One case judged at all its ages."""

    case: Case
    verdicts: tuple[Verdict, ...]
    pages: tuple[str, ...]  # alerts with severity page that fired after the onset, each with its age
    first_alert_s: float | None
    named_s: float | None  # age at which the right cause was first named
    wrong_remedies: tuple[str, ...]
    took_s: float

    def is_right(self, verdict: Verdict) -> bool:
        """Whether the first answer is the right one."""
        expect = self.case.expect
        if expect.none:
            return not verdict.causes
        if expect.unknown:
            return not verdict.causes and not verdict.is_calm
        return bool(verdict.causes) and verdict.causes[0] in expect.causes

    def is_near(self, verdict: Verdict) -> bool:
        """Whether it is right, or the runner-up is."""
        if self.is_right(verdict):
            return True
        return not self.case.expect.none and bool({*verdict.causes[1:2], *verdict.second[:1]} & self.case.expect.causes)

    def has_both(self, verdict: Verdict) -> bool:
        """Of two faults at once: whether both are named, each by a name of its own."""
        named = [set(names) & set(verdict.causes) for names in self.case.expect.both]
        return all(named) and len(set().union(*named)) >= len(named)

    def has_first_names(self, verdict: Verdict) -> bool:
        """The same, by no other name that is as good."""
        return {names[0] for names in self.case.expect.both} <= set(verdict.causes)

    @property
    def judged(self) -> list[Verdict]:
        """Those at ages at which the fault is there to be seen."""
        return [one for one in self.verdicts if one.age_s >= self.case.expect.from_s]

    @property
    def false_pages(self) -> tuple[str, ...]:
        """Pages of a case in which nobody is to be called."""
        expect = self.case.expect
        return self.pages if (expect.none and expect.page is not True) or expect.page is False else ()


RemedyWords = Callable[[str], frozenset[str]]
"""A cause's name to what its remedy does: its page's name and verbs, as words."""


class Bench:
    """Runs cases against one diagnosis engine."""

    def __init__(self, under: Under, remedy_words: RemedyWords = lambda cause: frozenset()) -> None:
        self._under = under
        self._remedy_words = remedy_words
        self._groups: list[RuleGroup] = load_rule_files([*builtin_signal_files(), *builtin_rule_files()])

    def run_case(self, case: Case) -> Result:
        """Raises BadCaseError when the case names what is not there."""
        began = time.process_time()
        recorded = record(case)
        past = Retrospect(
            recorded.store,
            self._groups,
            recorded.nodes,
            recorded.start,
            recorded.end,
            kinds=self._under.kinds,
            steps=_steps(case, recorded),
            expected_until=lambda alert: _restarts_until(
                alert.labels, ONSET if alert.fired_at is None else alert.fired_at, recorded
            ),
        )
        verdicts = []
        named_s = None
        for age_s in case.judge_at_s:
            if age_s > case.after:
                continue
            verdicts.append(self._verdict(case, recorded.store, past.incidents_at(ONSET + age_s), age_s))
        ages = [firing.fired_at - ONSET for firing in past.backtest.firings if firing.fired_at >= ONSET - 60]
        pages = [
            f"{firing.alert} at {firing.fired_at - ONSET:.0f} s"
            for firing in past.backtest.firings
            if firing.severity in ("page", "critical")
            and firing.fired_at >= ONSET - 60
            and _restarts_until(firing.labels, firing.fired_at, recorded) < firing.fired_at
        ]
        result = Result(case, tuple(verdicts), tuple(pages), min(ages, default=None), None, (), 0.0)
        named_s = next((one.age_s for one in result.judged if result.is_right(one)), None)
        return Result(
            case,
            result.verdicts,
            result.pages,
            result.first_alert_s,
            named_s,
            self._wrong_remedies(case, verdicts),
            time.process_time() - began,
        )

    def _verdict(self, case: Case, store: SeriesStore, incidents: Sequence[Incident], age_s: float) -> Verdict:
        now = ONSET + age_s
        began = time.process_time()
        relevant = [one for one in incidents if one.resolved_at is None or one.resolved_at > ONSET]
        opened = [one for one in relevant if one.status is not IncidentStatus.RESOLVED]
        # Of what is over by now the last one that began with the fault; one that had stood before it is another story.
        opened = opened or [one for one in relevant if one.opened_at >= ONSET - OWN_BEFORE_S][-1:]
        ranked = sorted(opened, key=_gravity)
        found: list[Diagnosis] = [self._under.diagnose(one, store, now) for one in ranked]
        if not found:
            scope = _asked_scope(case)
            found = [self._under.inquire(scope, store, now)]
        took_s = (time.process_time() - began) / len(found)
        causes: list[str] = []
        second: list[str] = []
        for one in found:
            causes += [cause for cause in self._under.causes(one) if cause not in causes]
            second += [cause for cause in self._under.runners_up(one) if cause not in second]
        first = found[0]
        return Verdict(
            age_s,
            tuple(causes),
            tuple(second),
            first.confidence,
            self._under.probability(first),
            first.title,
            all(self._under.is_calm(one) for one in found),
            took_s,
            dict(ranked[0].scope) if ranked else {},
            len(opened),
            bool(first.awaits),
        )

    def _wrong_remedies(self, case: Case, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
        found = []
        for verdict in verdicts:
            for cause in verdict.causes[: 0 if verdict.awaits else 1]:
                words = self._remedy_words(cause)
                found += [
                    f"{word} for {cause} at {verdict.age_s:.0f} s" for word in case.expect.not_remedies if word in words
                ]
        return tuple(found)


def _steps(case: Case, recorded: Recorded) -> Times:
    """Every 15 s, and every 5 s where something happens."""
    start, end = round(recorded.start * 1000), round(recorded.end * 1000)
    onset = round(ONSET * 1000)
    marks = [0.0, *(change.at for change in case.changes), *(fact.at for fact in case.facts)]
    fine = [(onset + round((at - _FINE_BEFORE_S) * 1000), onset + round((at + _FINE_AFTER_S) * 1000)) for at in marks]
    fine += [(onset + round((at - 60) * 1000), onset + round(at * 1000)) for at in case.judge_at_s]
    grid = np.arange(start - start % FINE_STEP_MS + FINE_STEP_MS, end + 1, FINE_STEP_MS, dtype=np.int64)
    kept = grid % COARSE_STEP_MS == 0
    for low, high in fine:
        kept |= (grid >= low) & (grid <= high)
    found: Times = grid[kept]
    return found


def _gravity(incident: Incident) -> tuple[bool, int, bool, float, str]:
    """One whose alerts fire before one whose alerts rest; then the gravest, the wider, the older one."""
    rests = incident.cleared_at is not None
    return rests, -severity_rank(incident.severity), not is_wide(incident.scope), incident.opened_at, incident.id


def _asked_scope(case: Case) -> dict[str, str]:
    """Where a person would ask who has no incident to look at: the only pool, else the fleet."""
    pools = {node.pool for node in case.nodes}
    return {"pool": pools.pop()} if len(pools) == 1 else {}


def _restarts_until(labels: Mapping[str, str], at: float, recorded: Recorded) -> float:
    """When the restart of ours was over in which its node was at that time; it was in none: long ago."""
    node = labels.get("node")
    ends = [until for name, since, until in recorded.restarts if name == node and since <= at <= until]
    return max(ends, default=-math.inf)
