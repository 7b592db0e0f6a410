"""What there is to say of an incident now: each subject with its value. What was said already is no news. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnostics.diagnosis import in_brief
from diagnostics.incident import Incident, IncidentStatus
from diagnostics.severity import clock_began_at, sev_level
from runbooks.run import ENDED_BY_ITSELF, Run, RunStatus

OPENED, RESOLVED, ACKNOWLEDGED, SEVERITY, CAUSE, PART_OF = (
    "opened",
    "resolved",
    "acknowledged",
    "severity",
    "cause",
    "part_of",
)


@dataclass(frozen=True, slots=True)
class News:
    """One thing about an incident. It is news to whoever was told another value, or none."""

    subject: str
    value: str
    text: str
    at_least: bool = True  # False: no reason to write to those who were never told of this subject


def news_of(incident: Incident, runs: Sequence[Run], before: Mapping[str, str]) -> tuple[News, ...]:
    """All that is to be said of the incident to whom `before` was told, in the order in which it is read."""
    return tuple(one for one in _all_of(incident, runs, before) if _is_new(one, before))


def values_of(incident: Incident, runs: Sequence[Run]) -> dict[str, str]:
    """Each subject's value now: what whoever reads a message about the incident knows afterwards."""
    return {one.subject: one.value for one in _all_of(incident, runs, {})}


def _is_new(one: News, before: Mapping[str, str]) -> bool:
    known = before.get(one.subject)
    return known != one.value and (one.at_least or known is not None)


def _all_of(incident: Incident, runs: Sequence[Run], before: Mapping[str, str]) -> list[News]:
    again = "it came back" if incident.reopened else "opened"
    level = f"{sev_level(incident.severity).name} ({incident.severity})"
    found = [
        News(OPENED, str(incident.reopened), again),
        News(SEVERITY, incident.severity, f"it is {level} now", at_least=False),
    ]
    diagnosis = incident.diagnosis
    if diagnosis is not None and diagnosis.cause is not None:
        was = before.get(CAUSE)
        text = (
            f"cause found: {in_brief(diagnosis)}"
            if was is None
            else f"cause replaced: {in_brief(diagnosis)}, not {was}"
        )
        found.append(News(CAUSE, diagnosis.cause, text))
    if incident.part_of is not None:
        found.append(News(PART_OF, incident.part_of, f"it is part of {incident.part_of}"))
    for run in sorted(runs, key=lambda one: one.created_at):
        # What ended before it came back did not keep it away: "mitigated" is no news of it.
        is_old = incident.reopened and run.status.is_terminal and run.updated_at < clock_began_at(incident)
        if not (run.dry_run or is_old):
            found.append(_of_run(run, diagnosis.title if diagnosis is not None else ""))
            if run.question:
                found.append(News(f"question {run.id}", run.question, f"{run.title} asks: {run.question}"))
    handling = incident.handling
    if handling.acknowledged_at is not None:
        found.append(News(ACKNOWLEDGED, handling.acknowledged_by, f"{handling.acknowledged_by} has acknowledged it"))
    if incident.status is IncidentStatus.RESOLVED:
        found.append(News(RESOLVED, str(incident.reopened), "resolved: its alerts are clear"))
    return found


def _of_run(run: Run, cause_title: str) -> News:
    subject, what = f"run {run.id}", run.title if run.runbook == "action" else run.runbook
    if run.status is RunStatus.PROPOSED:
        if run.unasked:
            return News(subject, "held", f"{what} will start by itself once nothing holds it")
        because = f": {run.reason}" if run.reason != cause_title else ""  # the message says the cause once
        return News(subject, "asked", f"approval asked: {what}{because}")
    if run.status.is_active:
        by = f", approved by {run.decided_by}" if run.decided_by else ""
        return News(subject, "acting", f"{what} has begun{by}")
    if run.status is RunStatus.SUCCEEDED:
        return News(subject, run.status.value, f"mitigated: {what} is done, and what it promised was seen")
    why = f": {run.error}" if run.error else ""
    return News(subject, run.status.value, f"{what} ended {run.status.value}{why}", run.status in ENDED_BY_ITSELF)
