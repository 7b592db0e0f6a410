"""What the users of the fleet felt during an incident, as far as it was recorded. What was not, stays None."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from alerts.labels import LabelSet
from alerts.series.store import SeriesStore
from diagnostics.postmortem import began_at
from diagnostics.record import Fate, Impact, IncidentRecord
from fleetctl.controller.incidents.counter_growth import increase
from fleetctl.controller.incidents.doubtful_answers import DoubtfulAnswers
from fleetctl.controller.incidents.gateway_wait import worst_p99_s
from fleetctl.controller.incidents.no_gateway import came_before, found_none, outages, silent_ones, waited_for_one
from fleetctl.controller.nodes.gateways import DEATHS, GATEWAY_JOB

TTFT = "llm:ttft_seconds:p99"
OBJECTIVE = "llm:objective_ttft_seconds"
REQUESTS = "gateway_requests_total"
LOST = "gateway_lost_requests_total"
MOVES = frozenset({"gateway_handoffs_total", "gateway_stream_moves_total"})  # planned ones, and of nodes that died
HELD = "gateway_inflight_requests"
STARTED = "process_start_time_seconds"
OUTPUT_OK = "llm:output_ok"
SERVED = "llm:served:rate"
GATEWAY_TTFT = "gateway_ttft_seconds_bucket"
ENDS = frozenset({DEATHS, "gateway_worker_deaths_total"})
ACCEPTED = ("finished", "failed", "gave_up", "client_gone")  # the gateway's outcomes but `refused`, which never started
LEFT = "client_gone"
REFUSED = "refused"
LOST_OUTCOMES = ("failed", "gave_up")  # told an error, or left because nothing answered any more
LOSS_LEAD_S = 15.0  # the first requests are lost or move before a rule's window, and the scrape that fills it, see why
JUST_BEFORE_S = 120.0

READ = (REQUESTS, LOST, *MOVES, HELD, STARTED, "up", TTFT, OBJECTIVE, OUTPUT_OK, SERVED, GATEWAY_TTFT, *ENDS)

PART_SERIES = 50  # of a large fleet, before somebody else has a turn: 10 ms

Points = Sequence[tuple[float, float]]


class Dumped(Protocol):
    """Series with their points, as `SeriesStore.dump` tells them."""

    def dump(
        self, since: float, until: float, *, names: Iterable[str] | None = None
    ) -> Iterator[tuple[dict[str, str], list[tuple[float, float]]]]: ...


@dataclass(frozen=True, slots=True)
class _Rows:
    """What was dumped before."""

    rows: Sequence[tuple[dict[str, str], list[tuple[float, float]]]]

    def dump(
        self, since: float, until: float, *, names: Iterable[str] | None = None
    ) -> Iterator[tuple[dict[str, str], list[tuple[float, float]]]]:
        """All of it."""
        return iter(self.rows)


async def impact_in_parts(record: IncidentRecord, store: SeriesStore, since: float, until: float) -> Impact:
    """As `impact_of`, read in parts: of 1,000 nodes it takes seconds, in which the loop judges nothing."""

    concerned = _concerned(record)

    def wanted(labels: LabelSet) -> bool:
        told = labels.as_dict()
        match told.get("__name__"):
            case name if name == STARTED:
                return told.get("job") == GATEWAY_JOB
            case name if name in (OUTPUT_OK, SERVED):
                return told.get("node") in concerned
            case _:
                return True

    rows = []
    for row in store.dump(since, until, names=READ, wanted=wanted):
        rows.append(row)
        if len(rows) % PART_SERIES == 0:
            await asyncio.sleep(0)
    return impact_of(record, _Rows(rows), since, until)


@dataclass(slots=True)
class _Tally:
    """What was read from the series, before it is judged."""

    began_at: float
    scope: Mapping[str, str]
    concerned: frozenset[str]  # nodes
    ended: dict[str, float] = field(default_factory=dict)
    fates: dict[tuple[str, str], float] = field(default_factory=dict)  # by node and outcome
    objectives: list[float] = field(default_factory=list)
    ttft_here: list[tuple[float, float]] = field(default_factory=list)  # in the incident's own place
    lost: dict[str, float] = field(default_factory=dict)  # of LOST_OUTCOMES, from a little earlier on
    reasons: dict[str, float] = field(default_factory=dict)
    moved: float | None = None
    ttft: list[tuple[float, float]] = field(default_factory=list)
    was_watched: bool = False  # before it began: the first value of a counter is no growth
    gateway_starts: dict[str, set[float]] = field(default_factory=dict)  # of each gateway
    gateway_ups: list[Points] = field(default_factory=list)  # `up` of each gateway
    gateway_requests: list[Points] = field(default_factory=list)  # all that ended, however it did
    held: dict[str, float] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)  # nodes whose last scrape failed
    doubtful: DoubtfulAnswers = field(default_factory=DoubtfulAnswers)
    gateway_ttft: dict[float, list[Points]] = field(default_factory=dict)  # by the upper bound of a bucket
    gateway_ends: float = 0.0  # of its processes and workers, unasked

    def read(self, labels: Mapping[str, str], points: Points) -> None:
        """Take one series in."""
        since = self.began_at - LOSS_LEAD_S
        match labels.get("__name__"):
            case name if name == REQUESTS:
                outcome = labels.get("outcome", "")
                self.gateway_requests.append(points)
                grown = increase(points, self.began_at)
                _add(self.ended, outcome, grown)
                if outcome == "finished" and labels.get("node") in self.concerned:
                    self.doubtful.finished.setdefault(labels["node"], []).append(points)
                if labels.get("node"):
                    key = (labels["node"], outcome)
                    lead = increase(points, since) if outcome in LOST_OUTCOMES else grown
                    self.fates[key] = self.fates.get(key, 0.0) + lead
                if outcome in LOST_OUTCOMES:
                    _add(self.lost, outcome, increase(points, since))
            case name if name == LOST:
                _add(self.reasons, labels.get("reason", ""), increase(points, since))
            case name if name in MOVES and labels.get("result") == "moved":
                self.moved = (self.moved or 0.0) + increase(points, since)
            case name if name == HELD:
                _add(self.held, labels.get("node", ""), next((v for _, v in reversed(points) if v == v), 0.0))
            case name if name == STARTED and labels.get("job") == GATEWAY_JOB:
                starts = self.gateway_starts.setdefault(labels.get("instance", ""), set())
                starts |= {value for at, value in points if at >= since and math.isfinite(value)}
            case "up" if labels.get("job") == GATEWAY_JOB:
                self.was_watched = any(at < self.began_at for at, _ in points)
                self.gateway_ups.append(points)
            case "up" if labels.get("node") and points and points[-1][1] == 0:
                self.silent.add(labels.get("node", ""))
            case name if name == TTFT:
                known = [point for point in points if math.isfinite(point[1])]
                if _is_within(labels, self.around):
                    self.ttft += known
                if _is_within(labels, self.scope):
                    self.ttft_here += known
            case name if name == OUTPUT_OK and labels.get("node") in self.concerned:
                self.doubtful.checks[labels["node"]] = points
            case name if name == SERVED and labels.get("node") in self.concerned:
                self.doubtful.served[labels["node"]] = points
            case name if name == GATEWAY_TTFT:
                self.gateway_ttft.setdefault(float(labels.get("le", "inf")), []).append(points)
            case name if name in ENDS:
                self.gateway_ends += increase(points, since)
            case name if name == OBJECTIVE and _is_within(labels, self.scope):
                self.objectives += [value for _, value in points[-1:] if math.isfinite(value)]
            case _:
                pass

    def possible(self) -> Iterator[tuple[float, float]]:
        """Each p99 since it began with its time; none longer than since then, beyond what users waited just before.

        A p99 is read within its bucket: a wide one tells 79 s of who waited 45. No bound where no past is known.
        """
        since = self.began_at - JUST_BEFORE_S
        before = max((value for at, value in self.ttft if since <= at < self.began_at), default=math.inf)
        for at, value in self.ttft:
            if at >= self.began_at:
                yield at, min(value, at - self.began_at + LOSS_LEAD_S + before)

    @property
    def around(self) -> Mapping[str, str]:
        """Where its users may be: of a node those of its pool too, whose prompts go to other nodes meanwhile. Another
        pool promises other times."""
        return {name: value for name, value in self.scope.items() if name != "node"}

    @property
    def has_started_anew(self) -> bool:
        """Whether a gateway was another process at the end than when it began."""
        return any(len(starts) > 1 for starts in self.gateway_starts.values())

    @property
    def why_not_counted(self) -> str:
        """Why the gateway's counters do not tell the whole time; "" when they do."""
        if not self.was_watched:
            return "the gateway was not scraped before it began"
        if self.has_started_anew:
            return "the gateway was started anew meanwhile, and its counts went with it"
        if self.gateway_ups and not all(points and points[-1][1] == 1 for points in self.gateway_ups):
            return "the gateway does not answer, and its last counts are not known"
        return ""


def impact_of(record: IncidentRecord, store: Dumped, since: float, until: float) -> Impact:
    """From the gateway's counters since the incident began, and the nodes' p99 time to first token before, during and
    at the end."""
    concerned = _concerned(record)
    tally = _Tally(min(began_at(record), record.opened_at), record.scope, concerned)
    for labels, points in store.dump(since, until, names=READ):
        tally.read(labels, points)
    why = tally.why_not_counted
    counted = {} if why else tally.ended
    during = list(tally.possible())
    last_at = max((at for at, _ in during), default=0.0)
    after = [value for at, value in during if at == last_at]
    without = outages(tally.gateway_ups, tally.began_at - LOSS_LEAD_S)
    before = came_before(tally.gateway_requests, tally.gateway_ups, without)
    is_same = bool(tally.gateway_starts) and not tally.has_started_anew
    late = waited_for_one(tally.gateway_requests, without, before) if is_same else 0
    none = found_none(tally.gateway_requests, without, before)
    if is_same and none is not None:  # what it holds still came to it too
        late += min(max(0, none - late), round(sum(tally.held.values())))
    silent, silent_s = silent_ones(tally.gateway_ups, tally.began_at - LOSS_LEAD_S)
    held = [count for node, count in tally.held.items() if node in tally.silent and node in concerned]
    return Impact(
        requests=_count(counted, ACCEPTED),
        finished=_count(counted, ("finished",)),
        moved=None if why or tally.moved is None else round(tally.moved),
        lost=_count({**counted, **tally.lost}, LOST_OUTCOMES) if counted else None,
        left=_count(counted, (LEFT,)),
        refused=_count(counted, (REFUSED,)),
        lost_by_reason={} if why else {name: round(count) for name, count in tally.reasons.items() if round(count)},
        fates=[
            Fate(node=node, outcome=outcome, count=round(count))
            for (node, outcome), count in sorted(({} if why else tally.fates).items())
            if round(count)
        ],
        still_held=round(sum(held)) if held else None,
        no_gateway_s=sum((one.until - one.since for one in without), 0.0),
        found_no_gateway=None if none is None else max(0, none - late),
        waited_for_gateway=late,
        is_of_fleet=bool(record.scope),
        gateways=len(tally.gateway_ups),
        gateways_silent=silent,
        gateways_silent_s=silent_s,
        arrivals_before_per_s=before,
        why_not_counted=why,
        maybe_wrong=tally.doubtful.counted(tally.began_at, by_gateway=not why),
        gateway_ends=round(tally.gateway_ends),
        # The gateway does not say which pool it waited for, so of a part of the fleet its p99 tells nothing.
        p99_at_gateway_worst_s=None if record.scope else worst_p99_s(tally.gateway_ttft, tally.began_at - LOSS_LEAD_S),
        p99_ttft_before_s=_median(value for at, value in tally.ttft if at < tally.began_at),
        p99_ttft_worst_s=max((value for _, value in during), default=None),
        p99_ttft_after_s=max(after, default=None),
        objective_ttft_s=min(tally.objectives, default=None),
        slo_minutes=slo_minutes(tally.ttft_here, min(tally.objectives, default=None), tally.began_at),
    )


def _concerned(record: IncidentRecord) -> frozenset[str]:
    """The nodes that it is about."""
    told = (record.scope.get("node"), *(alert.labels.get("node") for alert in record.alerts))
    return frozenset(node for node in told if node)


def slo_minutes(ttft: Points, objective_s: float | None, since: float) -> float | None:
    """For how long from `since` on a p99 was above its objective; None where there is no objective, or no p99.

    Each moment of which anything is known stands for the time to the next, but for no more than a minute.
    """
    worst: dict[float, float] = {}
    for at, value in ttft:
        if at >= since:
            worst[at] = max(value, worst.get(at, value))
    if objective_s is None or not worst:
        return None
    moments = sorted(worst)
    spans = [min(later - at, 60.0) for at, later in pairwise(moments)]
    return sum(span for at, span in zip(moments, spans, strict=False) if worst[at] > objective_s) / 60


def _is_within(labels: Mapping[str, str], scope: Mapping[str, str]) -> bool:
    """Whether the series is about the place, as far as it says where it is from."""
    return all(labels.get(name, value) == value for name, value in scope.items())


def _add(counts: dict[str, float], key: str, value: float) -> None:
    counts[key] = counts.get(key, 0.0) + value


def _count(ended: Mapping[str, float], outcomes: Sequence[str]) -> int | None:
    """None when the gateway was not recorded at all; an outcome that never happened is zero then."""
    return round(sum(ended.get(outcome, 0.0) for outcome in outcomes)) if ended else None


def _median(values: Iterable[float]) -> float | None:
    ranked = sorted(values)
    return ranked[len(ranked) // 2] if ranked else None
