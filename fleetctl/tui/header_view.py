"""The status bar's facts, the link to the controller and the clock of the gravest incident: pure, no Textual."""

from __future__ import annotations

from dataclasses import dataclass

from fleetctl.traffic_rule import OverflowSpec, TrafficRule
from fleetctl.tui.cell import STALE_AFTER_S, Cell, Tone, age, count, day_time, span
from fleetctl.tui.node_view import PHASES
from fleetctl.tui.snapshot import Snapshot
from fleetctl.wire.freeze import Freeze
from fleetctl.wire.identity import TokenRole
from fleetctl.wire.incident import IncidentStatus
from fleetctl.wire.node import NodePhase
from fleetctl.wire.pool import PoolState
from fleetctl.wire.status import Status

SLOW_S = 1.5  # an answer that takes longer is told: what is shown lags behind
RECONNECTED_FOR_S = 10.0


@dataclass(frozen=True, slots=True)
class HeaderView:
    """The facts of the status bar, and how the link to the controller is."""

    facts: tuple[Cell, ...]
    link: Cell  # how we stand with the controller
    rules: tuple[Cell, ...] = ()  # how many traffic rules are in force, and each of them: a line of their own


def header(snapshot: Snapshot, now: float) -> HeaderView:
    """What fires, how many nodes serve, what automation may do, whether all this is current; and the traffic rules."""
    status = snapshot.status
    if status is None:
        return HeaderView((), link_cell(snapshot, now))
    firing = Cell(f"▲ {status.firing} firing", Tone.BAD) if status.firing else Cell("● 0 firing", Tone.GOOD)
    few = status.nodes_ready < status.nodes_total
    facts: tuple[Cell, ...] = (
        firing,
        Cell(count(status.open_incidents, "incident"), Tone.BAD if status.open_incidents else Tone.PLAIN),
        Cell(f"{status.nodes_ready}/{status.nodes_total} ready", Tone.WARN if few else Tone.PLAIN),
        Cell(f"policy {status.policy}"),
    )
    if status.gateways_down:
        facts = (Cell(f"▲ {_gateways_out(status)}", Tone.BAD), *facts)
    if status.gateways_impaired:
        facts = (*facts, Cell(count(len(status.gateways_impaired), "gateway") + " impaired", Tone.WARN))
    stuck = [pool for pool in snapshot.pools if pool.state is PoolState.BACKING_OFF]
    facts = (*(Cell(f"▲ pool {pool.name}: starts fail", Tone.BAD) for pool in stuck), *facts)
    stopped = sum(node.phase is NodePhase.STOPPED for node in snapshot.nodes)
    if stopped:
        facts = (*facts[:-1], Cell(f"{PHASES[NodePhase.STOPPED][0]} {stopped}", Tone.DIM), facts[-1])
    if status.storage_error:
        why = "disk full" if "no space left" in status.storage_error else "database away"
        facts = (Cell(f"✗ {why}: nothing is stored", Tone.BAD), *facts)
    if status.leadership.shared and not status.leadership.is_certain:
        facts = (Cell("✗ no controller leads: nothing is acted on", Tone.BAD), *facts)
    if status.leadership.missing:
        facts = (*facts, Cell("▲ no standby" if not status.leadership.standbys else "▲ standby missing", Tone.WARN))
    if status.breaker:
        facts = (Cell("▲ automation stopped by its breaker", Tone.WARN), *facts)
    for freeze in reversed(status.freezes):
        facts = (Cell(_freeze_text(freeze), Tone.WARN), *facts)
    rules = tuple(Cell(_rule_text(rule), Tone.WARN) for rule in status.traffic_rules)
    if rules:
        rules = (Cell(count(len(rules), "traffic rule"), Tone.WARN), *rules)  # first: the line may be cut at its end
    clock, role = sev_clock(snapshot, now), role_cell(snapshot)
    facts = tuple(one for one in (clock, role) if one is not None) + facts  # where 80 columns end, the last are cut
    if snapshot.cut_off_since is not None:
        facts, rules = (tuple(Cell(f"{one.text}?", Tone.DIM) for one in cells) for cells in (facts, rules))
    return HeaderView(facts, link_cell(snapshot, now), rules)


def _freeze_text(freeze: Freeze) -> str:
    """A freeze in the header: what is frozen until when, in UTC."""
    until = "" if freeze.expires_at is None else f" –{day_time(freeze.expires_at)}"
    return f"❄ {freeze.pool or 'fleet'} frozen{until}"


def _rule_text(rule: TrafficRule) -> str:
    """A traffic rule in the header: its kind and name, since and until when, and whose it is. Times of day in UTC."""
    until = "" if rule.expires_at is None else f"–{day_time(rule.expires_at)}"
    whose = f" by {rule.made_by}" if rule.made_by else ""
    kind = f"{rule.kind} {rule.spec.state}" if isinstance(rule.spec, OverflowSpec) else rule.kind
    name = kind if rule.id == rule.kind else f"{kind} {rule.id}"
    return f"{name} {day_time(rule.made_at)}{until}{whose}"


def sev_clock(snapshot: Snapshot, now: float) -> Cell | None:
    """How long the incident that is due first still has by its level's clock; None without one."""
    open_ones = [one for one in snapshot.incidents if one.status is not IncidentStatus.RESOLVED and one.due_at]
    if not open_ones:
        return None
    first = min(open_ones, key=lambda one: one.due_at or 0.0)
    left_s = (first.due_at or 0.0) - now
    if left_s < 0:
        return Cell(f"{first.sev} over by {span(-left_s)}", Tone.BAD)
    return Cell(f"{first.sev} {span(left_s)} left", Tone.WARN)


def role_cell(snapshot: Snapshot) -> Cell | None:
    """What the person may do, where that is not everything."""
    if snapshot.caller is None or snapshot.caller.role.includes(TokenRole.APPROVER):
        return None
    if snapshot.may(TokenRole.OPERATOR):
        return Cell(f"{snapshot.caller.name}: operator", Tone.DIM)
    return Cell("read-only (viewer)", Tone.WARN)


def link_cell(snapshot: Snapshot, now: float) -> Cell:
    """How we stand with the controller: cut off, connecting, late, slow, reconnected or well."""
    if snapshot.cut_off_since is not None:
        return Cell(f"✗ controller unreachable for {age(now - snapshot.cut_off_since)}", Tone.BAD)
    if snapshot.known_at is None:
        return Cell("◔ connecting", Tone.BUSY)
    late_s = snapshot.age_s(now)
    if late_s > STALE_AFTER_S:
        return Cell(f"▲ no answer for {age(late_s)}", Tone.WARN)
    if snapshot.reconnected_at is not None and now - snapshot.reconnected_at < RECONNECTED_FOR_S:
        return Cell(f"● reconnected after {age(snapshot.was_away_s)}", Tone.GOOD)
    if snapshot.took_s > SLOW_S:
        return Cell(f"▲ controller slow: {span(snapshot.took_s)}", Tone.WARN)
    return Cell("● controller ok", Tone.GOOD)


def _gateways_out(status: Status) -> str:
    """Those that do not serve, by what they are: one that does not answer is not known to be down."""
    phases = {one.partition(": ")[2].partition(",")[0] for one in status.gateways_down}
    what = phases.pop().replace("_", " ") if len(phases) == 1 else "out"
    return f"{'gateway' if status.gateways_total == 1 else count(len(status.gateways_down), 'gateway')} {what}"
