"""The post-mortem of an incident as Markdown: it states what was recorded and says so where nothing was.

It renders; it decides nothing and reads no clock. Every text that came from outside (labels, alert texts,
receipts) is escaped so that it can't break a table or add markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from diagnostics.diagnosis import NOTHING_WRONG, instead_of_a_cause
from diagnostics.diagnosis_history import as_named, verdict_changes
from diagnostics.postmortem_filters import ENVIRONMENT, NOT_RECORDED, clock
from diagnostics.postmortem_template import TEMPLATE
from diagnostics.record import EventRecord, Impact, IncidentRecord, RunRecord
from diagnostics.severity import clock_began_at, sev_level
from diagnostics.value_format import format_seconds

MAX_TIMELINE_ROWS = 500  # a page, not a log; the black box holds the rest
MAX_AROUND_ROWS = 60
_NUMBER = re.compile(r"(?<![\w.-])\d")  # one that was measured, and not part of a name
DEPLOY_SLACK_S = 15.0  # an onset is dated to a scrape: what began so long before its rollout may have begun with it

FIRST_LOOKS_S = 15.0  # after its start a controller has scraped each node, and judged the rules


@dataclass(frozen=True, slots=True)
class PostmortemInput:
    """What the page is written from."""

    incident: IncidentRecord
    written_at: float
    impact: Impact = field(default_factory=Impact)
    follow_ups: tuple[str, ...] = ()  # beside those that follow from the record itself
    effects: Mapping[str, str] = field(default_factory=dict)  # run to what was measured before and after it
    is_by_deploy: bool = False  # its cause is one that a rollback treats


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds between the turning points; None where one of the two did not happen or was not recorded.

    Of an incident that came back with something new all but the first are of that: as its level's clock counts.
    """

    to_detect_s: float | None  # first bad sample of a firing alert to the incident
    to_diagnose_s: float | None  # clock to when its cause was first named, or to what was said in place of one
    to_decide_s: float | None  # first proposal to its approval
    to_mitigate_s: float | None  # clock to the end of its first run that succeeded, or of the rollback below
    to_resolve_s: float | None  # clock to resolved


def began_at(incident: IncidentRecord) -> float:
    """When it began: the earliest first bad sample of its alerts. It opened later, when an alert's `for` had passed.

    Never after it was opened: of an alert that fires again, the record has the last time only.
    """
    told = (incident.onset_at, *(alert.active_at for alert in incident.alerts), incident.opened_at)
    return min(at for at in told if at is not None)


def looked_at_from(incident: IncidentRecord) -> float | None:
    """When the controller started, of what it found as it was: that had begun before, and nobody knows when."""
    node, began = incident.scope.get("node"), began_at(incident)
    for started in (one.at for one in incident.around if one.kind == "controller.started"):
        was_well = any(one.kind == "node.ready" and one.node == node and one.at >= started for one in incident.around)
        if 0 <= began - started <= FIRST_LOOKS_S and not was_well:
            return started
    return None


def taken_back(report: PostmortemInput) -> EventRecord | None:
    """The end of the rollback that mitigated it: of the rollout that it began with. None where none went back.

    That a rollout goes back meanwhile mends no gateway that died: its cause is the deploy, or it is of a node that the
    rollout started, which is gone with it.
    """
    incident = report.incident
    told = sorted([*incident.around, *incident.timeline], key=lambda event: event.at)
    began, until = began_at(incident), incident.resolved_at
    node, pool = incident.scope.get("node"), incident.scope.get("pool")
    for back in told:
        is_meanwhile = began <= back.at and (until is None or back.at <= until)
        if back.kind != "rollout.rolled_back" or not is_meanwhile or (pool and back.data.get("pool") != pool):
            continue
        steps = [one.at for one in told if one.data.get("rollout") == back.data.get("rollout") and one is not back]
        if not steps or steps[0] > began + DEPLOY_SLACK_S:
            continue
        is_its_node = any(one.kind == "node.started" and one.node == node and one.at >= steps[0] for one in told)
        if is_its_node if node else report.is_by_deploy:
            return back
    return None


def durations(incident: IncidentRecord, back: EventRecord | None = None) -> Durations:
    """How long each part took, as far as it was recorded. `back`: the end of a rollback that mitigated it."""
    is_known = incident.onset_at is not None or any(alert.active_at is not None for alert in incident.alerts)
    since = clock_began_at(incident)
    decided = [run for run in incident.runs if (run.decided_at or 0.0) >= since and not run.is_apart]
    helped = [run.updated_at for run in _that_helped(incident)]
    helped += [back.at] if back is not None else []
    cause = incident.diagnosis.cause if incident.diagnosis is not None else None
    told = [one for one in verdict_changes(incident) if one.at >= since]
    named = [one.at for one in told if one.cause is not None and one.cause == cause]
    found = incident.diagnosis
    standing = (found.since or found.at or None) if found is not None else None
    diagnosed = min(named, default=standing)
    first = min(decided, key=lambda run: run.decided_at or 0.0, default=None)
    return Durations(
        to_detect_s=_gap(began_at(incident), incident.opened_at) if is_known else None,
        to_diagnose_s=_gap(since, diagnosed),
        to_decide_s=_gap(first.created_at, first.decided_at) if first is not None else None,
        to_mitigate_s=_gap(since, min(helped, default=None)),
        to_resolve_s=_gap(since, incident.resolved_at),
    )


def _that_helped(incident: IncidentRecord) -> list[RunRecord]:
    """Its own runs that succeeded since its clock began: a change by hand, for something else or before it opened, is
    what may have caused it as well as what mended it; what helped the last time did not last."""
    since = clock_began_at(incident)
    own = [run for run in incident.runs if run.status == "succeeded" and not run.is_apart]
    return [run for run in own if run.updated_at >= since]


def clock_words(incident: IncidentRecord, back: EventRecord | None = None) -> str:
    """What its level's clock asked for, and whether that was met. Where no run helped, its end was it."""
    level, took = sev_level(incident.severity), durations(incident, back)
    if level.within_s is None:
        return f"{level.name} has no clock."
    from_when = "opening" if incident.clock_at is None else f"coming back at {clock(incident.clock_at)}"
    asked = f"{level.name} asks for a cause and a mitigation within {format_seconds(level.within_s)} of its {from_when}"
    mitigated_s = took.to_mitigate_s if took.to_mitigate_s is not None else took.to_resolve_s
    if mitigated_s is None:
        return f"{asked}; it is not mitigated."
    has_cause = incident.diagnosis is not None and incident.diagnosis.cause is not None
    instead = instead_of_a_cause(incident.diagnosis)
    named_s = took.to_diagnose_s if has_cause else 0.0 if instead else None
    parts = [
        instead
        or (f"the cause was named after {format_seconds(named_s)}" if named_s is not None else "no cause was named"),
        f"it was mitigated after {format_seconds(mitigated_s)}{_by_rollback(incident, back)}"
        if took.to_mitigate_s is not None
        else f"it ended after {format_seconds(mitigated_s)}, mitigated by {_run_of_wider(incident) or 'no run'}",
    ]
    is_met = named_s is not None and max(named_s, mitigated_s) <= level.within_s
    return f"{asked}; {' and '.join(parts)}: {'met' if is_met else 'missed'}."


def _run_of_wider(incident: IncidentRecord) -> str:
    """The run for the incident that this one is part of, which acted before this one was over; "" where none did. That
    one may wait for what it promised still."""
    until = incident.resolved_at
    for run in incident.runs:
        acted = run.status in ("verifying", "succeeded") and run.decided_at is not None
        if acted and incident.part_of and run.incident_id == incident.part_of and (run.decided_at or 0) <= (until or 0):
            return f"that of {incident.part_of} ({run.runbook})"
    return ""


def _by_rollback(incident: IncidentRecord, back: EventRecord | None) -> str:
    """What is said of a mitigation that a rollback was; "" where a run was it."""
    return (
        ""
        if back is None or _that_helped(incident)
        else f", as {back.data.get('rollout', 'its rollout')} was rolled back"
    )


def render(report: PostmortemInput) -> str:
    """The page, ending in a newline."""
    incident = report.incident.model_copy(update={"diagnosis": as_named(report.incident)})
    report = replace(report, incident=incident)
    back = taken_back(report)
    helped = back if back is not None and back.at >= clock_began_at(incident) else None
    took = durations(incident, helped)
    page = ENVIRONMENT.from_string(TEMPLATE).render(
        incident=incident,
        diagnosis=incident.diagnosis,
        began_at=began_at(incident),
        looked_at_from=looked_at_from(incident),
        durations=took,
        impact=report.impact,
        level=sev_level(incident.severity),
        clock_words=clock_words(incident, helped),
        clock_from="incident opened" if incident.clock_at is None else "it came back",
        verdicts=verdict_changes(incident),
        walked_at=_walked_at(incident),
        is_of_then=incident.resolved_at is not None
        and incident.handling.correction is None
        and incident.diagnosis is not None
        and _NUMBER.search(incident.diagnosis.title) is not None,
        effects=report.effects,
        instead=instead_of_a_cause(incident.diagnosis),
        taken_back=back,
        came_back=[one.at for one in incident.timeline if one.kind == "incident.reopened"],
        decided=_decided(incident, took),
        mitigated=_reached(took.to_mitigate_s, incident, f"by {_run_of_wider(incident) or 'none'}"),
        resolved=_reached(took.to_resolve_s, incident, NOT_RECORDED),
        by_rollback=_by_rollback(incident, helped),
        runs=[run for run in incident.runs if not _is_earlier(run, incident)],
        earlier=[run for run in incident.runs if _is_earlier(run, incident)],
        around=incident.around[-MAX_AROUND_ROWS:],
        around_left_out=max(0, len(incident.around) - MAX_AROUND_ROWS),
        timeline=incident.timeline[:MAX_TIMELINE_ROWS],
        timeline_left_out=max(0, len(incident.timeline) - MAX_TIMELINE_ROWS),
        unknown=unknowns(report),
        follow_ups=follow_ups(report),
        written_at=report.written_at,
    )
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def _is_earlier(run: RunRecord, incident: IncidentRecord) -> bool:
    """Whether it ended before the incident began: it may be what caused it, and did nothing about it."""
    return run.is_apart and run.updated_at < began_at(incident)


def unknowns(report: PostmortemInput) -> list[str]:
    """What the record does not say, each a sentence."""
    incident, impact = report.incident, report.impact
    gaps: list[str] = []
    if incident.diagnosis is None:
        gaps.append("The cause: no tree was walked.")
    else:
        if incident.diagnosis.cause is None:
            if not instead_of_a_cause(incident.diagnosis):
                gaps.append(f"The cause: {incident.diagnosis.title or 'the tree named none'}.")
        elif incident.handling.correction is not None:
            by = incident.handling.correction.by
            gaps.append(
                f"Whether it is {incident.diagnosis.cause}: that is the word of {by}, nothing measured says so."
            )
        elif incident.diagnosis.confidence != "confirmed":
            gaps.append(f"Whether it is {incident.diagnosis.cause} alone: that is {incident.diagnosis.confidence}.")
        gaps += [f"No answer to: {text}" for text in incident.diagnosis.not_known]
    because = f": {impact.why_not_counted}" if impact.why_not_counted else ""
    if impact.requests is None:
        gaps.append(f"How many requests were served meanwhile{because}.")
    if impact.lost is None:
        gaps.append(f"Whether requests were lost{because}.")
    if impact.still_held:
        gaps.append(f"What became of {impact.still_held} requests that nodes without an answer held at the end.")
    if impact.no_gateway_s and impact.found_no_gateway != 0:
        gaps.append(f"How many requests found no gateway: {impact.no_gateway_words}.")
    if impact.maybe_wrong is not None:
        gaps.append(f"Which answers were wrong: {impact.wrong_words}.")
    if impact.door_words:
        gaps.append(f"How long users waited there: {impact.door_words}.")
    if impact.p99_ttft_worst_s is None:
        gaps.append("The worst p99 of the time to the first token.")
    gaps += [f"Alert {a.name}: its signal is missing or stale." for a in incident.alerts if a.state == "unknown"]
    return gaps


def follow_ups(report: PostmortemInput) -> list[str]:
    """What the record itself asks for, then what people added."""
    incident, found = report.incident, []
    diagnosis = incident.diagnosis
    instead = instead_of_a_cause(diagnosis)
    if instead == NOTHING_WRONG:
        found.append(f"An alert fired although {instead}: see how often it does, with fleetctl alerts backtest.")
    elif not instead and (diagnosis is None or diagnosis.cause is None):
        found.append("Find the cause by hand, then add the question that would have found it to a tree.")
    elif diagnosis is not None and diagnosis.not_known:
        found.append('Make the signals available that the tree could not read (see "What is not known").')
    found += [
        f"Run {run.id} ({run.runbook}) ended {run.status}: {run.error or 'see its steps'}."
        for run in incident.runs
        if run.status in ("failed", "undone", "refused", "expired")
    ]
    correction = incident.handling.correction
    if correction is not None:
        found.append(
            f"The verdict said {correction.was or 'no cause'}, it was {correction.cause or 'none that has a name'}:"
            " keep the incident's file as a case (fleetctl incident export), and mend what misled it."
        )
    found += [
        f"Run {run.id} ({run.runbook}) was proposed, and nobody answered in {format_seconds(_open_s(run))}: see who was"
        f" told, and when (fleetctl describe incident {incident.id})."
        for run in incident.runs
        if _is_unanswered(run)
    ]
    is_refused = any(run.status == "denied" or _is_unanswered(run) for run in incident.runs)
    is_ended = any(run.status == "succeeded" for run in incident.runs) or taken_back(report) is not None
    is_ended = is_ended or bool(_run_of_wider(incident))
    if not is_ended and not is_refused:
        found.append("No runbook resolved this: write or extend one for the cause, or note why none should.")
    if report.impact.lost:
        lost = "1 request was" if report.impact.lost == 1 else f"{report.impact.lost} requests were"
        found.append(f"{lost} lost: find out which guarantee did not hold.")
    if report.impact.maybe_wrong is not None:
        found.append(
            f"Since a minute before the first wrong one, {report.impact.wrong_words}: tell those who got them, or have"
            " them asked again."
        )
    if report.impact.duplicated:
        found.append(f"{report.impact.duplicated} requests were answered twice: find out why.")
    after_s, objective_s = report.impact.p99_ttft_after_s, report.impact.objective_ttft_s
    if after_s is not None and objective_s is not None and after_s > objective_s:
        found.append(
            f"At its end p99 time to first token was {format_seconds(after_s)}, beyond the objective of"
            f" {format_seconds(objective_s)}: see whether users feel that it is over."
        )
    return found + list(report.follow_ups)


def _is_unanswered(run: RunRecord) -> bool:
    """Whether it was proposed and taken back, as what it was for had passed before anybody's word."""
    return run.status == "cancelled" and run.decided_at is None and not run.is_apart


def _open_s(run: RunRecord) -> float:
    return max(0.0, run.updated_at - run.created_at)


def _walked_at(incident: IncidentRecord) -> float | None:
    """When the evidence that is shown was read: a person's word in the verdict's place brings none of its own."""
    read = [one.at for one in verdict_changes(incident) if not one.said_by]
    if incident.handling.correction is not None and read:
        return read[-1]
    return incident.diagnosis.at if incident.diagnosis is not None else None


def _gap(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(0.0, end - begin)


def _decided(incident: IncidentRecord, took: Durations) -> str:
    """How long a proposal waited for its word, or why none is told."""
    if took.to_decide_s is not None:
        return format_seconds(took.to_decide_s)
    proposed = [run for run in incident.runs if not run.is_apart]
    return "not decided" if proposed else "nothing was proposed"


def _reached(seconds: float | None, incident: IncidentRecord, otherwise: str) -> str:
    """How long it took to get there; of one that goes on, that it is not there yet."""
    if seconds is not None:
        return format_seconds(seconds)
    return "not yet" if incident.resolved_at is None else otherwise
