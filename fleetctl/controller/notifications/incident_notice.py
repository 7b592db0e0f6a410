"""The message about an incident: what hurts, why, what is being done, and what to type. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from diagnostics.diagnosis import in_brief, instead_of_a_cause
from diagnostics.incident import Incident
from diagnostics.record import WIDE_BUCKETS_S, Impact
from diagnostics.severity import sev_level
from diagnostics.value_format import format_seconds
from fleetctl.controller.notifications.links import dashboard_link, incident_link
from fleetctl.controller.notifications.notice import Notice, NoticeKind
from fleetctl.controller.notifications.plan import Subject
from fleetctl.settings.notifications import LinkSettings
from runbooks.run import Run, RunStatus

CLEAR = "nothing: its alerts are clear, and it closes by itself if they stay so"


def incident_notice(
    subject: Subject,
    kind: NoticeKind,
    news: tuple[str, ...],
    *,
    impact: str,
    by_hand: str,
    links: LinkSettings,
    base_url: str,
) -> Notice:
    """`impact`: what users felt, in words. `by_hand`: what a person does where nothing can be proposed."""
    incident = subject.incident
    waiting = waiting_run(subject.runs)
    return Notice(
        kind,
        incident.title,
        severity=incident.severity,
        sev=sev_level(incident.severity).name,
        incident=incident.id,
        run=waiting.id if waiting is not None else "",
        news=news,
        cause=cause_words(incident),
        impact=impact,
        doing="" if subject.is_over else doing_words(subject.runs, by_hand, is_clear=incident.cleared_at is not None),
        approve=f"fleetctl runbook approve {waiting.id}" if waiting is not None else "",
        show=f"fleetctl incident show {incident.id}",
        link=incident_link(links, base_url, incident.id),
        dashboard=dashboard_link(links, incident.scope, incident.onset_at or incident.opened_at, incident.resolved_at),
    )


def cause_words(incident: Incident) -> str:
    """The cause with its confidence, and what it means; what is said in the place of one."""
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return "not known yet"
    if diagnosis.cause is None:
        if instead_of_a_cause(diagnosis):
            return diagnosis.title
        return f"not known: {diagnosis.title}" if diagnosis.title else "not known"
    return f"{in_brief(diagnosis)}: {diagnosis.title}" if diagnosis.title else in_brief(diagnosis)


def waiting_run(runs: Sequence[Run]) -> Run | None:
    """The run that waits for a person's word, the newest."""
    waiting = [run for run in runs if not run.dry_run and (_is_asked(run) or run.question)]
    return max(waiting, key=lambda run: run.created_at, default=None)


def doing_words(runs: Sequence[Run], by_hand: str, *, is_clear: bool = False) -> str:
    """What is being done, or who is waited for. `is_clear`: no alert of it fires any more."""
    active = [run for run in runs if not run.dry_run and run.status.is_active]
    words = [_step_words(run) for run in active]
    words += [
        f"{_name(run)} waits for approval" if _is_asked(run) else f"{_name(run)} is held back"
        for run in runs
        if not run.dry_run and run.status is RunStatus.PROPOSED
    ]
    return "; ".join(words) or (CLEAR if is_clear else by_hand or "nothing yet")


def impact_words(impact: Impact) -> str:
    """What users felt. What nobody measured is said to be not known, and is not zero."""
    words = []
    if impact.lost is not None:
        whose = "the fleet's " if impact.is_of_fleet else ""
        of = f" of {whose}{impact.requests}" if impact.requests is not None else ""
        words.append(f"{impact.lost}{of} requests lost")
    elif impact.why_not_counted:
        words.append(f"requests lost: not known ({impact.why_not_counted})")
    if impact.left_words:
        words.append(impact.left_words)
    if impact.refused_words:
        words.append(impact.refused_words)
    if impact.wrong_words:
        words.append(impact.wrong_words)
    if impact.no_gateway_words:
        words.append(impact.no_gateway_words)
    if impact.silent_words:
        words.append(impact.silent_words)
    at_gateway, at_nodes = impact.p99_at_gateway_worst_s, impact.p99_ttft_worst_s
    if at_gateway is not None and at_gateway > (at_nodes or 0.0):
        words.append(f"{_ttft_words(at_gateway, impact.objective_ttft_s)} (at the gateway)")
    elif at_nodes is not None:
        words.append(_ttft_words(at_nodes, impact.objective_ttft_s))
    if impact.slo_minutes:  # by what nodes tell, whichever clock the worst is of
        words.append(f"for {format_seconds(60 * impact.slo_minutes)} in all")
    if impact.door_words and not impact.no_gateway_words:  # which tells the same, with a number
        words.append(impact.door_words)
    return ", ".join(words) or "not known"


def _ttft_words(worst_s: float, promised_s: float | None) -> str:
    """The worst p99, and on which side of what is promised it lies: a figure alone reads as harm."""
    said = f"p99 TTFT up to {'about ' if worst_s > WIDE_BUCKETS_S else ''}{format_seconds(worst_s)}"
    if promised_s is None:
        return said
    return f"{said}, {'within' if worst_s <= promised_s else 'beyond'} the promised {format_seconds(promised_s)}"


def _is_asked(run: Run) -> bool:
    return run.status is RunStatus.PROPOSED and not run.unasked


def _name(run: Run) -> str:
    return run.title if run.runbook == "action" else run.runbook


def _step_words(run: Run) -> str:
    if run.question:
        return f"{_name(run)} asks: {run.question}"
    steps = run.undo_steps or run.do_steps
    at = next((step for step in steps if not step.is_over), None)
    undoing = "undoes what it did: " if run.undo_steps else ""
    where = f": {undoing}step {at.index + 1} of {len(steps)}, {at.title}" if at is not None else ""
    return f"{_name(run)} {run.status.value}{where}"
