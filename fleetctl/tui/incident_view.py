"""From an incident on the wire to what its screen says: pure, no Textual. Times are UTC, as in the post-mortem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diagnostics.unanswered import counted, part_unanswered
from fleetctl.tui.cell import UNKNOWN, Cell, StorySection, Tone, age, clock_time, day, quantity, span
from fleetctl.tui.listing import Column, Line, matches
from fleetctl.tui.snapshot import Snapshot, current_run, proposal
from fleetctl.wire.diagnosis import Diagnosis, Evidence
from fleetctl.wire.incident import Incident, IncidentStatus
from fleetctl.wire.notification import Notification, NotificationState
from fleetctl.wire.run import IN_COMMAND, Run, RunStatus, StepRecord
from fleetctl.wire.timeline import TimelineEntry

MAX_TIMELINE = 200
MAX_SAID = 3  # of what its alerts say
MAX_REPLACED = 5  # verdicts

STATUSES: dict[IncidentStatus, tuple[str, Tone]] = {
    IncidentStatus.OPEN: ("▲", Tone.BAD),
    IncidentStatus.MITIGATING: ("◐", Tone.BUSY),
    IncidentStatus.RESOLVED: ("●", Tone.GOOD),
}
RUN_TONES: dict[RunStatus, Tone] = {
    RunStatus.PROPOSED: Tone.WARN,
    RunStatus.APPROVED: Tone.BUSY,
    RunStatus.RUNNING: Tone.BUSY,
    RunStatus.VERIFYING: Tone.BUSY,
    RunStatus.UNDOING: Tone.WARN,
    RunStatus.SUCCEEDED: Tone.GOOD,
    RunStatus.UNDONE: Tone.WARN,
    RunStatus.FAILED: Tone.BAD,
    RunStatus.DENIED: Tone.DIM,
    RunStatus.REFUSED: Tone.BAD,
    RunStatus.EXPIRED: Tone.DIM,
    RunStatus.CANCELLED: Tone.DIM,
}
_ANSWERS = {"yes": ("✓", Tone.WARN), "no": ("✗", Tone.DIM), "unknown": ("?", Tone.BAD)}
STEPS = {
    "pending": ("·", Tone.DIM),
    "running": ("▶", Tone.BUSY),
    "done": ("✓", Tone.GOOD),
    "failed": ("✗", Tone.BAD),
    "skipped": ("–", Tone.DIM),
}
_CONFIDENCE = {"confirmed": Tone.GOOD, "likely": Tone.WARN, "unknown": Tone.DIM}


@dataclass(frozen=True, slots=True)
class IncidentView:
    """What is shown of one incident, section by section."""

    head: StorySection
    ask: StorySection | None  # what waits for a person; None when nothing does
    diagnosis: StorySection
    run: StorySection | None
    timeline: StorySection


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """One incident of the list, and when it is looked at."""

    incident: Incident
    now: float


def _opened(row: IncidentRow) -> Cell:
    at = row.incident.opened_at
    return Cell(clock_time(at) if row.now - at < 86_400 else day(at), Tone.DIM)


def _title(row: IncidentRow) -> Cell:
    over = row.incident.status is IncidentStatus.RESOLVED
    return Cell(_who(row.incident) + row.incident.title, Tone.DIM if over else Tone.PLAIN)


INCIDENT_COLUMNS: tuple[Column[IncidentRow], ...] = (
    Column("", 1, lambda row: Cell(*STATUSES[row.incident.status])),
    Column("SEV", 5, lambda row: Cell(row.incident.sev or row.incident.severity), lambda row: row.incident.sev or None),
    Column("since", 8, _opened, lambda row: row.incident.opened_at),
    Column("incident", 10, _title, lambda row: row.incident.title, grows=True),
)


def incident_lines(snapshot: Snapshot, now: float, words: str = "") -> tuple[Line[IncidentRow], ...]:
    """The list, open ones first."""
    shown = [one for one in snapshot.incidents if not words or matches(words, incident_labels(one))]
    return tuple(Line(one.id, IncidentRow(one, now)) for one in shown)


def incident_labels(one: Incident) -> dict[str, str]:
    """What a filter may name."""
    alerts = " ".join(alert.name for alert in one.alerts)
    return {"id": one.id, "status": one.status.value, "title": one.title, "sev": one.sev, "alert": alerts, **one.scope}


def _who(incident: Incident) -> str:
    """The mark of one that somebody has: `[ann] `, with a question mark while it was only assigned."""
    handling = incident.handling
    if not handling.words or incident.resolved_at is not None:
        return ""
    doubt = "" if handling.acknowledged_at is not None else "?"
    return f"[{handling.assignee or handling.acknowledged_by}{doubt}] "


def incident_view(incident: Incident, now: float, *, may_handle: bool = True, may_decide: bool = True) -> IncidentView:
    """Everything about one incident, in the order in which a person needs it. `may_handle`, `may_decide`: whether keys
    that take it, and keys that answer what it proposes, work."""
    waiting = proposal(incident)
    run = current_run(incident)
    return IncidentView(
        head=_head(incident, now, may_handle=may_handle),
        ask=_ask(waiting, now, may_decide=may_decide) if waiting is not None else None,
        diagnosis=_diagnosis(incident.diagnosis, incident.timeline),
        run=_run(run) if run is not None and run is not waiting else None,
        timeline=_timeline(incident.timeline),
    )


def plan_of(run: Run) -> tuple[str, ...]:
    """What saying yes to a run will do: its inputs, then its commands in order."""
    commands = tuple(f"{step.index + 1}. fleetctl {step.command}" for step in run.steps if step.phase == "do")
    return (f"{run.title or run.runbook}  ({_pairs(run.inputs)})", *commands)


def _head(incident: Incident, now: float, *, may_handle: bool) -> StorySection:
    glyph, tone = STATUSES[incident.status]
    where = "  ".join(f"{name} {value}" for name, value in sorted(incident.scope.items())) or "the whole fleet"
    if incident.resolved_at is not None:
        when = f"opened {clock_time(incident.opened_at)}, over after {span(incident.resolved_at - incident.opened_at)}"
    else:
        when = f"opened {clock_time(incident.opened_at)}, {age(now - incident.opened_at)} ago"
    if incident.came_back:
        when += f", came back {clock_time(incident.came_back[-1])}"
    names = ", ".join(sorted({f"{alert.name} ({alert.state.value})" for alert in incident.alerts}))
    level = f"{incident.sev} {incident.severity}" if incident.sev else incident.severity
    rows: list[tuple[Cell, Cell]] = []
    if incident.impact:
        rows.append((Cell("impact", Tone.DIM), Cell(incident.impact, Tone.STRONG)))
    if incident.no_remedy:
        rows.append((Cell("by hand", Tone.WARN), Cell(incident.no_remedy, Tone.WARN)))
    rows.append((Cell(f"{glyph} {incident.status.value}", tone), Cell(f"{level}, {when}")))
    widened = ""
    if incident.widened_at is not None:
        widened = f", wider since {clock_time(incident.widened_at)}: {incident.widened_why}"
    rows.append((Cell("where", Tone.DIM), Cell(f"{where}{widened}")))
    if incident.part_of is not None:
        rows.append((Cell("part of", Tone.DIM), Cell(f"{incident.part_of}, which explains it", Tone.WARN)))
    rows += [(Cell("says", Tone.DIM), Cell(text)) for text in _said(incident)[:MAX_SAID]]
    if incident.offence:
        rows.append((Cell("often", Tone.DIM), Cell(incident.offence, Tone.WARN)))
    if incident.handling.words:
        rows.append((Cell("who", Tone.DIM), Cell(incident.handling.words)))
    elif incident.resolved_at is None:
        take = f": T takes it, or fleetctl incident ack {incident.id}" if may_handle else ""
        rows.append((Cell("who", Tone.DIM), Cell(f"nobody{take}", Tone.WARN)))
    if (until := incident.handling.silenced_until) is not None and until > now:
        rows.append((Cell("silenced", Tone.DIM), Cell(f"until {clock_time(until)}, {incident.handling.silence_id}")))
    rows += _told(incident)
    if names:
        rows.append((Cell("alerts", Tone.DIM), Cell(names)))
    if incident.dashboard:
        rows.append((Cell("graphs", Tone.DIM), Cell(incident.dashboard)))
    if incident.imported_from:
        rows.append((Cell("imported", Tone.DIM), Cell(f"written by {incident.imported_from}; nothing acts on it")))
    if incident.postmortem:
        rows.append((Cell("written", Tone.DIM), Cell(incident.postmortem)))
    return StorySection(Cell(incident.title, Tone.STRONG), tuple(rows))


def no_incident_words(snapshot: Snapshot) -> str:
    """What stands where no incident is there. While the controller does not answer nobody knows of a new one."""
    if snapshot.known_at is None:
        return "Nothing is known yet."
    if snapshot.cut_off_since is None:
        return "No incidents. All quiet."
    return f"Not known: the controller does not answer. There was no incident at {clock_time(snapshot.known_at)}."


def _said(incident: Incident) -> list[str]:
    """What its alerts said, each with when: a number in it is of that moment. The title again only where it has one."""
    found: dict[str, str] = {}
    for alert in incident.alerts:
        if alert.summary and (alert.summary != incident.title or alert.told_value):
            at = alert.said_at or alert.fired_at or alert.active_at
            found.setdefault(alert.summary, f"{clock_time(at)} {alert.summary}" if at is not None else alert.summary)
    return list(found.values())


def _told(incident: Incident) -> list[tuple[Cell, Cell]]:
    """Who was told and when, the last word to each; who answered is in the line above."""
    last: dict[str, Notification] = {}
    for one in incident.notifications:
        if one.state not in (NotificationState.MERGED, NotificationState.DROPPED) or one.receiver not in last:
            last[one.receiver] = one
    rows: list[tuple[Cell, Cell]] = []
    for name, one in last.items():
        text = f"{name} {clock_time(one.ended_at or one.created_at)}, {one.kind}: {one.state.value}"
        match one.state:
            case NotificationState.FAILED:
                text, tone = f"{text}: {_why(one)}", Tone.BAD
            case NotificationState.WAITING | NotificationState.HELD:
                why = one.held_by.replace("_", " ") or _why(one)
                text, tone = f"{text}{f': {why}' if why else ''}", Tone.WARN
            case _:
                tone = Tone.PLAIN
        rows.append((Cell("told", Tone.DIM), Cell(text, tone)))
    return rows


def _why(one: Notification) -> str:
    """What went wrong, without the name that stands before it."""
    return one.why.removeprefix(f"receiver {one.receiver}: ")


def _ask(run: Run, now: float, *, may_decide: bool) -> StorySection:
    keys = "a approve   d deny   x dry run" if may_decide else "none: another person answers"
    left = f", {span(run.expires_at - now)} left" if run.expires_at is not None else ""
    steps = [(Cell(f"{step.index + 1}", Tone.DIM), Cell(step.command)) for step in run.steps if step.phase == "do"]
    return StorySection(
        Cell(f"PROPOSED: {run.title or run.runbook}{left}", Tone.WARN),
        (
            (Cell("keys", Tone.DIM), Cell(keys, Tone.WARN if may_decide else Tone.DIM)),
            (Cell("why", Tone.DIM), Cell(run.reason or UNKNOWN)),
            *(((Cell("approvals", Tone.DIM), Cell(run.approval, Tone.WARN)),) if run.approval else ()),
            *(((Cell("forecast", Tone.DIM), Cell(run.prediction)),) if run.prediction else ()),
            *(((Cell("held", Tone.DIM), Cell(run.held, Tone.WARN)),) if run.held else ()),
            (Cell("with", Tone.DIM), Cell(_pairs(run.inputs))),
            *steps,
        ),
    )


def _diagnosis(diagnosis: Diagnosis | None, timeline: list[TimelineEntry]) -> StorySection:
    if diagnosis is None:
        return StorySection(Cell("Diagnosis: not made yet", Tone.DIM))
    said = diagnosis.title or "no cause named"  # without a cause its title says what stands in its place
    if diagnosis.cause:
        sure = f", {diagnosis.probability:.0%}" if diagnosis.probability is not None else ""
        said = f"{diagnosis.cause} ({diagnosis.confidence}{sure}). {diagnosis.title}"
    told, silent = part_unanswered(diagnosis.evidence)
    told.sort(key=lambda one: _WEIGHT[one.speaks])  # as asked, but what the verdict rests on comes first
    unread = (Cell(f"Not known: {counted(titles)}: {why}", Tone.DIM) for why, titles in silent.items())
    return StorySection(
        Cell(f"Diagnosis: {said}", _CONFIDENCE[diagnosis.confidence]),
        tuple(_evidence(found) for found in told),
        (*_signs(told), *unread, *_beside(diagnosis), *_ruled_out(diagnosis), *_replaced(timeline)),
    )


_WEIGHT = {"for": 0, "against": 1, "": 2}


def _signs(told: list[Evidence]) -> Iterator[Cell]:
    if any(one.speaks for one in told):
        yield Cell("+ speaks for this cause, - against it", Tone.DIM)


def _replaced(timeline: list[TimelineEntry]) -> Iterator[Cell]:
    """Verdicts that better evidence took the place of, the last first: until when each was said, and why no longer."""
    replaced = [one for one in timeline if one.kind == "diagnosis.replaced"]
    for entry in sorted(replaced, key=lambda one: -one.at)[:MAX_REPLACED]:
        was = entry.data.get("was") or {}
        sure = f" ({was['confidence']})" if was.get("confidence") else ""
        why = f": {entry.data['why']}" if entry.data.get("why") else ""
        yield Cell(f"Said until {clock_time(entry.at)}: {was.get('cause') or 'another cause'}{sure}{why}", Tone.DIM)


def _ruled_out(diagnosis: Diagnosis) -> Iterator[Cell]:
    """Causes that it is not, in one line; below it those of which is known what spoke against them."""
    told = [cause for cause in diagnosis.ruled_out if cause in diagnosis.why_not]
    rest = ", ".join(cause for cause in diagnosis.ruled_out if cause not in told)
    if rest or not told:
        yield Cell(f"Ruled out: {rest or 'nothing'}", Tone.DIM)
    for cause in told:
        yield Cell(f"Ruled out: {cause}: {diagnosis.why_not[cause]}", Tone.DIM)


def _beside(diagnosis: Diagnosis) -> Iterator[Cell]:
    """What else it could be, what tells the two apart, and what changed before."""
    if diagnosis.also:
        yield Cell(f"And also: {diagnosis.also}", Tone.WARN)
    if diagnosis.runner_up:
        share = diagnosis.runner_up_probability
        yield Cell(f"Or else: {diagnosis.runner_up}" + (f", {share:.0%}" if share is not None else ""))
    if diagnosis.tells_apart:
        yield Cell(diagnosis.tells_apart, Tone.DIM)
    if diagnosis.looked_at is not None:
        again = (
            f", asked again {clock_time(diagnosis.looked_at)}: {diagnosis.then_found}" if diagnosis.then_found else ""
        )
        yield Cell(f"Evidence of {clock_time(diagnosis.at)}{again}", Tone.DIM)
    if diagnosis.onset is not None:
        yield Cell(f"Began {clock_time(diagnosis.onset)}", Tone.DIM)
    for change in diagnosis.changes:
        yield Cell(f"Changed: {change}")


def _evidence(found: Evidence) -> tuple[Cell, ...]:
    glyph, tone = _ANSWERS[found.answer]
    if found.answer == "unknown":
        told = f"{found.title} Not known: {found.why_unknown or 'no data'}"
        return (Cell(glyph, tone), Cell(told), Cell(""), Cell(""), Cell(""))
    speaks = {"for": "+", "against": "-", "": ""}[found.speaks]  # of the cause
    title = f"{found.title} ({found.usual})" if found.usual else found.title
    return (
        Cell(glyph, tone),
        Cell(f"{speaks} {title}" if speaks else title),
        Cell(quantity(found.value, found.unit), Tone.STRONG if found.answer == "yes" else Tone.PLAIN),
        Cell(f"limit {found.threshold}", Tone.DIM),
        Cell(age(found.age_s), Tone.DIM),
    )


def _run(run: Run) -> StorySection:
    rows = [_step(step) for step in run.steps]
    is_over = run.status.is_terminal
    if run.question and not is_over:
        rows.append((Cell("?", Tone.WARN), Cell("asks", Tone.DIM), Cell(f"{run.question}   a yes   d no", Tone.WARN)))
    if run.paused_by and not is_over:
        on = f"fleetctl runbook resume {run.id}"
        rows.append((Cell("‖", Tone.WARN), Cell("paused", Tone.DIM), Cell(f"by {run.paused_by}; {on}", Tone.WARN)))
    said = (("approvals", run.approval, Tone.PLAIN), ("verify", run.verification, Tone.PLAIN))
    for name, text, tone in (*said, ("error", run.error, Tone.BAD)):
        if text:
            rows.append((Cell(""), Cell(name, Tone.DIM), Cell(text, tone)))
    by = f", by {run.decided_by}" if run.decided_by else ""
    return StorySection(
        Cell(f"Run: {run.title or run.runbook}, {run.status.value}{by}", RUN_TONES[run.status]), tuple(rows)
    )


def _step(step: StepRecord) -> tuple[Cell, ...]:
    glyph, tone = STEPS[step.status]
    took = ""
    if step.started_at is not None and step.ended_at is not None:
        took = span(step.ended_at - step.started_at)
    text = f"undo: {step.command}" if step.phase == "undo" else step.command
    if step.attempts > 1:
        took = f"{took} {step.attempts}×".strip()
    return (Cell(glyph, tone), Cell(took, Tone.DIM), Cell(f"{text}{receipt_text(step)}", Tone.PLAIN))


def receipt_text(step: StepRecord) -> str:
    """What a step said when it ended."""
    if step.error:
        return f"  {step.error}"
    plain = {key: value for key, value in step.receipt.items() if isinstance(value, str | int | float | bool)}
    if "summary" in plain:  # it has what the rest counts
        return f"  → {plain['summary']}"
    if "predicted" in plain:
        rest = (f"{name}: {plain[name]}" for name in ("room", "guard") if name in plain)
        return f"  → {'; '.join((str(plain['predicted']), *rest))}"
    told = {key: str(value) for key, value in plain.items() if key not in IN_COMMAND}
    return f"  → {_pairs(told)}" if told else ""


def _timeline(entries: list[TimelineEntry]) -> StorySection:
    newest = sorted(entries, key=lambda entry: (entry.at, entry.seq), reverse=True)
    rows = tuple((Cell(clock_time(entry.at), Tone.DIM), Cell(entry.text)) for entry in newest[:MAX_TIMELINE])
    return StorySection(Cell("Timeline, newest first (UTC)", Tone.STRONG), rows)


def _pairs(mapping: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in mapping.items()) or "no inputs"
