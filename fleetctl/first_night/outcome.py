"""What came of one fault, and what of it is not right."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fleetctl.first_night.fault import Expectation
from fleetctl.first_night.traffic import FateCounts
from fleetctl.load.request_fate import GAVE_UP

PAGING = ("page", "critical")  # severities that wake somebody


@dataclass(frozen=True, slots=True)
class FiredAlert:
    """The first time that an alert fired after the fault; seconds count from the fault."""

    name: str
    where: str
    severity: str
    after_s: float


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A run that was proposed, approved by the person on call, and ended so."""

    runbook: str
    title: str
    status: str
    ended_after_s: float | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class SeenIncident:
    """An incident that opened after the fault, as its page shows it at the end."""

    id: str
    title: str
    severity: str
    scope: dict[str, str]
    alerts: tuple[str, ...]
    opened_after_s: float
    cause: str | None
    confidence: str
    verdict: str
    runs: tuple[SeenRun, ...]
    not_proposed: tuple[str, ...] = ()  # why, in the timeline's words
    postmortem: str | None = None  # path
    says_lost: bool = True  # its post-mortem gives a number; else it says that nobody counted
    false: tuple[str, ...] = ()  # what its post-mortem says that is not so


@dataclass(frozen=True, slots=True)
class Said:
    """What a person is told at one age of the fault: by the incident, or by `fleetctl diagnose` where there is none."""

    age_s: float
    cause: str | None
    also: str | None  # a second cause at work beside it
    runner_up: str | None
    confidence: str
    verdict: str
    by: str  # incident, asked


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fault's row."""

    fault: str
    title: str
    at: float  # Unix seconds of the injection
    alerts: tuple[FiredAlert, ...]
    incidents: tuple[SeenIncident, ...]
    requests: FateCounts
    ended_by: str  # page: a run succeeded; itself; person: the harness ended the fault
    over_after_s: float | None  # all incidents resolved; None: not while it was watched
    ready_nodes: int
    wanted_nodes: int = 3
    held_s: float | None = None  # nobody ended it for so long, nor approved what was proposed
    said: tuple[Said, ...] = ()  # while the fault lasted, by age
    still_standing: tuple[str, ...] = ()  # alerts that fired or were pending at the last look
    windows: str = "default"  # of the alerts: default, or compressed
    runner: str = "torch"  # of the nodes
    load: float | None = None  # of the machine at the injection: the load average of a minute
    notes: tuple[str, ...] = ()  # beside the fault
    problems: tuple[str, ...] = ()  # of the harness itself: the row counts for nothing
    machine: str = ""
    wrong: tuple[str, ...] = field(default=())

    @property
    def is_right(self) -> bool:
        """Nothing is wrong, and the harness saw all of it."""
        return not self.wrong and not self.problems

    @property
    def main_incident(self) -> SeenIncident | None:
        """The first with a run that succeeded, else the first with a cause, else the first."""
        ranked = sorted(
            self.incidents,
            key=lambda i: (not any(r.status == "succeeded" for r in i.runs), i.cause is None, i.opened_after_s),
        )
        return ranked[0] if ranked else None

    def to_json(self) -> dict[str, Any]:
        """Ready for json.dumps."""
        return {**asdict(self), "right": self.is_right}


def failures_of(outcome: Outcome, expects: Expectation) -> tuple[str, ...]:
    """What is not as it should be, each as half a sentence. Pure."""
    return (
        *_wrong_alerts(outcome, expects),
        *_wrong_incidents(outcome, expects),
        *_wrong_words(outcome, expects),
        *_wrong_requests(outcome.requests, expects, is_held=outcome.held_s is not None),
        *(f"post-mortem: {false}" for incident in outcome.incidents for false in incident.false),
        *([] if outcome.over_after_s is not None else ["not over while it was watched"]),
        *(f"{name} still stands at the end" for name in outcome.still_standing),
        *_missing_nodes(outcome),
    )


def _missing_nodes(outcome: Outcome) -> list[str]:
    if outcome.ready_nodes >= outcome.wanted_nodes:
        return []
    return [f"{max(0, outcome.ready_nodes)} of {outcome.wanted_nodes} nodes ready at the end"]


def _wrong_alerts(outcome: Outcome, expects: Expectation) -> list[str]:
    names = [alert.name for alert in outcome.alerts]
    if not expects.alerts:
        paging = dict.fromkeys(alert.name for alert in outcome.alerts if alert.severity in PAGING)
        return [f"paged by {name}, and there is nothing to do" for name in paging]
    if not names:
        is_right = expects.is_quiet_unless_felt and not outcome.requests.waited
        return [] if is_right else ["no alert"]
    if not set(names) & set(expects.alerts):
        return [f"the alert is {names[0]}, expected {' or '.join(expects.alerts)}"]
    return []


def _wrong_incidents(outcome: Outcome, expects: Expectation) -> list[str]:
    main = outcome.main_incident
    wrong: list[str] = []
    if expects.causes and main is not None and main.cause not in expects.causes:
        wrong.append(f"the cause named is {main.cause or 'none'}, expected {' or '.join(expects.causes)}")
    runs = [run for incident in outcome.incidents for run in incident.runs]
    if expects.pages and main is not None and not any(run.runbook in expects.pages for run in runs):
        wrong.append(f"{' or '.join(expects.pages)} was not proposed")
    suitable = {*expects.pages, *expects.optional_pages}
    wrong += [f"{run.runbook} was proposed, which does not treat it" for run in runs if run.runbook not in suitable]
    return wrong + [f"{run.runbook} ended {run.status}" for run in runs if run.status not in ("succeeded", "cancelled")]


def _wrong_words(outcome: Outcome, expects: Expectation) -> list[str]:
    if expects.named_from_s is None:
        return []
    due = [said for said in outcome.said if said.age_s >= expects.named_from_s]
    wrong = [
        f"after {said.age_s:.0f} s {said.cause or 'no cause'} is named, expected {' or '.join(expects.causes)}"
        for said in due
        if not {said.cause, said.also} & set(expects.causes)
    ]
    if outcome.held_s is not None and len(causes := dict.fromkeys(said.cause or "none" for said in due)) > 1:
        wrong.append(f"the cause named changed: {', then '.join(causes)}")
    return wrong if due else [f"nobody was asked after {expects.named_from_s:.0f} s: it was over"]


def _wrong_requests(requests: FateCounts, expects: Expectation, *, is_held: bool) -> list[str]:
    wrong = []
    # Where nobody acts for an hour, who asks a slow node for a long answer in one piece gives up: that is the price.
    lost = requests.lost - (requests.reasons or {}).get(GAVE_UP, 0) if is_held else requests.lost
    if lost and not expects.loss:
        wrong.append(f"{lost} requests lost that another node could take")
    if requests.waited and not expects.late and not expects.loss:
        wrong.append(f"{requests.waited} users waited more than 30 s for a first token")
    return wrong
