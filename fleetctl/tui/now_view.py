"""The first screen: what hurts users, since when, how long its level still gives, and what is being done. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.tui.budget_view import budget_section
from fleetctl.tui.cell import UNKNOWN, Cell, StorySection, Tone, age, clock_time, count, percent, rate, span, whole
from fleetctl.tui.incident_view import RUN_TONES, STATUSES
from fleetctl.tui.snapshot import Snapshot, Tail, is_closed
from fleetctl.wire.alert import AlertState
from fleetctl.wire.identity import TokenRole
from fleetctl.wire.incident import Incident
from fleetctl.wire.node import Node, NodePhase
from fleetctl.wire.pool import Pool, PoolState
from fleetctl.wire.run import Run, RunStatus

NUM_EVENTS = 12
NUM_ALERTS = 8
NUM_SILENT = 3

Row = tuple[Cell, ...]


def now_sections(snapshot: Snapshot, now: float) -> tuple[StorySection, ...]:
    """What a person needs first, first."""
    if snapshot.known_at is None:
        return (StorySection(Cell("Nothing is known yet: the controller has not answered.", Tone.DIM)),)
    budgets = budget_section(snapshot.budgets)
    told = (_hurts(snapshot, now), budgets, _automation(snapshot, now), _pools(snapshot), _last(snapshot))
    if snapshot.cut_off_since is None:
        return told
    then = clock_time(snapshot.known_at)
    text = f"Not known: the controller does not answer, and nobody judges. What follows is as it was at {then}."
    return (StorySection(Cell(text, Tone.BAD)), *told)


def _hurts(snapshot: Snapshot, now: float) -> StorySection:
    incidents = [one for one in snapshot.incidents if not is_closed(one)]
    told = {alert.fingerprint for one in incidents for alert in one.alerts}
    alone = [a for a in snapshot.alerts if a.state is AlertState.FIRING and a.fingerprint not in told]
    unknown = sum(alert.state is AlertState.UNKNOWN for alert in snapshot.alerts)
    notes = []
    if len(alone) > NUM_ALERTS:
        notes.append(Cell(f"and {len(alone) - NUM_ALERTS} alerts more (g a)", Tone.DIM))
    if unknown:
        notes.append(Cell(f"? {count(unknown, 'rule')} can't be judged: signals are missing or stale (g a)", Tone.WARN))
    if not incidents and not alone:
        is_past = snapshot.cut_off_since is not None
        quiet = "Nothing hurts: no incident is open, no alert fires."
        if is_past:
            quiet = "Nothing hurt: no incident was open, no alert fired."
        silent = [one for one in snapshot.nodes if one.phase in (NodePhase.UNREACHABLE, NodePhase.NOT_READY)]
        notes += [_silent(one, now) for one in silent[:NUM_SILENT]]
        if len(silent) > NUM_SILENT:
            notes.append(Cell(f"and {count(len(silent) - NUM_SILENT, 'node')} more (g f)", Tone.DIM))
        tone = Tone.WARN if silent else Tone.DIM if unknown or is_past else Tone.GOOD
        return StorySection(Cell(quiet, tone), (), tuple(notes))
    if incidents:
        heading = f"Hurts: {count(len(incidents), 'incident')}   g i opens the gravest"
    else:
        heading = f"{count(len(alone), 'alert')} without an incident   g a explains"
    rows: list[Row] = []
    for one in incidents:
        rows.append(_incident(one, snapshot, now))
        if (impact := _impact(one, snapshot)) is not None:
            rows.append(impact)
    for alert in alone[:NUM_ALERTS]:
        since = age(now - alert.fired_at) if alert.fired_at is not None else UNKNOWN
        text = f"{alert.name}: {alert.summary}" if alert.summary else alert.name
        silenced = " (silenced)" if alert.silenced == "yes" else ""
        rows.append(
            (
                Cell("▲", Tone.WARN),
                Cell(""),
                Cell(since, Tone.DIM),
                Cell(text + silenced),
                Cell("no incident"),
            )
        )
    return StorySection(Cell(heading, Tone.BAD if incidents else Tone.WARN), tuple(rows), tuple(notes))


def _silent(node: Node, now: float) -> Cell:
    """A node that takes nothing before its alert has waited long enough: for a minute where its process lives on."""
    since = f" for {age(now - node.since)}" if node.since is not None else ""
    why = f": {node.reason}" if node.reason else ""
    return Cell(f"! {node.name} is {node.phase.replace('_', ' ')}{since}{why} (g f)", Tone.WARN)


def _incident(one: Incident, snapshot: Snapshot, now: float) -> Row:
    glyph, tone = STATUSES[one.status]
    focus = snapshot.focus
    found = focus.diagnosis if focus is not None and focus.id == one.id else None  # of others the list has no verdict
    cause = f" ({found.cause}, {found.confidence})" if found is not None and found.cause else ""
    return (
        Cell(glyph, tone),
        sev_left(one, now),
        Cell(age(now - one.opened_at), Tone.DIM),
        Cell(f"{one.title}{cause}", Tone.STRONG),
        Cell(one.handling.words or "nobody has it", Tone.DIM if one.handling.words else Tone.WARN),
    )


def _impact(one: Incident, snapshot: Snapshot) -> Row | None:
    """What users felt of the gravest: of others the list does not say."""
    focus = snapshot.focus
    if focus is None or focus.id != one.id or not focus.impact:
        return None
    return Cell(""), Cell(""), Cell(""), Cell(f"impact: {focus.impact}", Tone.WARN), Cell("")


def sev_left(incident: Incident, now: float) -> Cell:
    """Its level, and what its clock says."""
    level = incident.sev or incident.severity
    if incident.due_at is None or is_closed(incident):
        return Cell(level)
    left_s = incident.due_at - now
    return (
        Cell(f"{level} over by {span(-left_s)}", Tone.BAD)
        if left_s < 0
        else Cell(f"{level} {span(left_s)} left", Tone.WARN)
    )


def _automation(snapshot: Snapshot, now: float) -> StorySection:
    rows = [*_runs(snapshot, now), *_changes(snapshot)]
    policy = snapshot.status.policy if snapshot.status is not None else UNKNOWN
    doing = f"Automation (policy {policy})"
    if not rows:
        return StorySection(Cell(f"{doing}: nothing is under way, nothing waits", Tone.DIM))
    may = snapshot.may(TokenRole.APPROVER)
    asks = (
        "   g i, then a approves" if may and any(cell.text == "waits for you" for row in rows for cell in row) else ""
    )
    return StorySection(Cell(f"{doing}{asks}", Tone.STRONG), tuple(rows))


def _runs(snapshot: Snapshot, now: float) -> Iterator[Row]:
    """Runs that are not at their end; a dry run does nothing, and is none."""
    told = [*(run for one in snapshot.incidents for run in one.runs), *snapshot.runs]
    known = {run.id: run for run in sorted(told, key=lambda one: one.updated_at)}  # the two are read at different times
    live = [run for run in known.values() if not run.status.is_terminal and not run.dry_run]
    for run in sorted(live, key=lambda one: (one.status is not RunStatus.PROPOSED, -one.created_at)):
        yield (Cell(_glyph(run), RUN_TONES[run.status]), Cell(_waits(run), RUN_TONES[run.status]), *_what(run, now))


def _glyph(run: Run) -> str:
    return "?" if run.status is RunStatus.PROPOSED or run.question else "‖" if run.paused_by else "▶"


def _waits(run: Run) -> str:
    if run.status is RunStatus.PROPOSED:
        return "waits for you"
    return "asks" if run.question else "paused" if run.paused_by else run.status.value


def _what(run: Run, now: float) -> Row:
    step = next((one for one in run.steps if one.status == "running"), None)
    title = run.title or run.runbook
    others = [target for target in run.targets if target.rpartition("/")[2] not in title]
    text = f"{title} {', '.join(others)}".rstrip()
    if run.question:
        text += f": {run.question}"
    elif step is not None:
        text += f": step {step.index + 1} of {len(run.steps)}, {step.command}"
    return Cell(age(now - run.created_at), Tone.DIM), Cell(text), Cell(run.decided_by or run.requested_by, Tone.DIM)


def _changes(snapshot: Snapshot) -> Iterator[Row]:
    """What else changes the fleet, or keeps automation from it."""
    status = snapshot.status
    if status is not None and status.breaker:
        yield _row("▲", "breaker", status.breaker, Tone.WARN)
    for freeze in status.freezes if status is not None else ():
        yield _row("❄", "frozen", f"{freeze.pool or 'the fleet'}: {freeze.reason}", Tone.WARN, freeze.made_by)
    for rule in status.traffic_rules if status is not None else ():
        yield _row("⇄", rule.kind, rule.spec.words, Tone.WARN, rule.made_by)
    for rollout in snapshot.rollouts:
        if not rollout.is_ended:
            yield _row(
                "▶", rollout.state, f"pool {rollout.pool} to {rollout.to_revision}: {rollout.waits_for}", Tone.BUSY
            )
    for pool in snapshot.pools:
        if pool.autoscaler:
            yield _row("⇕", "autoscaler", f"pool {pool.name}: {pool.autoscaler}", Tone.BUSY)


def _row(glyph: str, what: str, text: str, tone: Tone, by: str = "") -> Row:
    return Cell(glyph, tone), Cell(what, tone), Cell(""), Cell(text), Cell(by, Tone.DIM)


def _pools(snapshot: Snapshot) -> StorySection:
    if not snapshot.pools:
        return StorySection(Cell("No pools are known.", Tone.DIM))
    titles = ("pool", "ready", "run", "wait", "KV", "tok/s", "TTFT p95/1h ago", "ITL p95/1h", "state")
    rows: list[Row] = [tuple(Cell(title, Tone.DIM, right=0 < at < 8) for at, title in enumerate(titles))]
    return StorySection(
        Cell("Pools   g f opens the fleet", Tone.STRONG), (*rows, *(_pool(pool, snapshot) for pool in snapshot.pools))
    )


def _pool(pool: Pool, snapshot: Snapshot) -> Row:
    load = pool.load
    told = ((load.running, whole), (load.waiting, whole), (load.kv_ratio, percent), (load.tokens_per_s, rate))
    cells = [Cell(UNKNOWN if one.value is None else write(one.value), right=True) for one, write in told]
    p95 = load.ttft_p95_s
    ttft = UNKNOWN if p95.value is None else f"{'>' if p95.at_least else ''}{span(p95.value)}"
    tail = snapshot.pool_tails.get(pool.name, Tail())
    state = pool.state.value.replace("_", " ")
    is_told = pool.reason and pool.state is not PoolState.CONVERGED  # else it says the same
    return (
        Cell(pool.name, Tone.STRONG),
        Cell(f"{pool.ready}/{pool.wanted}", Tone.PLAIN if pool.ready >= pool.wanted else Tone.WARN, right=True),
        *cells,
        Cell(f"{ttft}/{span(tail.ttft_before_s)}", right=True),
        Cell(f"{span(tail.itl_s)}/{span(tail.itl_before_s)}", right=True),
        Cell(f"{state}: {pool.reason}" if is_told else state, Tone.DIM),
    )


def _last(snapshot: Snapshot) -> StorySection:
    newest = snapshot.events[-NUM_EVENTS:][::-1]
    rows = tuple((Cell(clock_time(one.at), Tone.DIM), Cell(one.text)) for one in newest)
    return StorySection(
        Cell("Last events (UTC)   g e shows all", Tone.STRONG), rows or ((Cell("none yet", Tone.DIM),),)
    )
