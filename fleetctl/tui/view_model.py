"""From wire types to the texts of the header and the fleet table: pure, no Textual, no colours, only tones.

Rules of the screen: unknown is "—" and never 0; a value that is too old is dim and ends in "?".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from fleetctl.traffic_rule import OverflowSpec, TrafficRule
from fleetctl.tui.snapshot import Snapshot
from fleetctl.wire import DeepCheck, Freeze, Gpu, Node, NodePhase, Pool, PoolState, Signal

STALE_AFTER_S = 15.0  # three scrapes of 5 s: one may be missed without alarm
UNKNOWN = "—"

Formatter = Callable[[float], str]


class Tone(StrEnum):
    """What a text means; the style sheet of the terminal decides how that looks."""

    PLAIN = "plain"
    GOOD = "good"
    BUSY = "busy"  # on its way somewhere, by our will
    WARN = "warn"
    BAD = "bad"
    DIM = "dim"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Cell:
    """A text, its tone, and whether it stands at the right."""

    text: str
    tone: Tone = Tone.PLAIN
    right: bool = False  # numbers line up at the right


@dataclass(frozen=True, slots=True)
class TableRow:
    """Cells under a key that stays the same while the row is shown."""

    key: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class HeaderView:
    """The facts of the status bar, and how the link to the controller is."""

    facts: tuple[Cell, ...]
    link: Cell  # how we stand with the controller
    rules: tuple[Cell, ...] = ()  # how many traffic rules are in force, and each of them: a line of their own


PHASES: dict[NodePhase, tuple[str, Tone]] = {
    NodePhase.STARTING: ("◔", Tone.BUSY),
    NodePhase.READY: ("●", Tone.GOOD),
    NodePhase.CORDONED: ("◌", Tone.WARN),
    NodePhase.DRAINING: ("◐", Tone.BUSY),
    NodePhase.DRAINED: ("○", Tone.WARN),
    NodePhase.NOT_READY: ("▲", Tone.BAD),
    NodePhase.UNREACHABLE: ("✗", Tone.BAD),
    NodePhase.STOPPED: ("■", Tone.DIM),
}

FLEET_COLUMNS = ("node", "state", "run", "wait", "KV", "TTFT", "step", "req/s", "age", "fire")
FLEET_NUMBERS = frozenset(FLEET_COLUMNS[2:9])  # headed at the right, as their values are
_NARROW_WITHOUT_NAME = 72  # columns that the table needs beside the node's name


def header(snapshot: Snapshot, now: float) -> HeaderView:
    """What fires, how many nodes serve, what automation may do, whether all this is current; and the traffic rules."""
    status = snapshot.status
    if status is None:
        return HeaderView((), _link(snapshot, now))
    firing = Cell(f"▲ {status.firing} firing", Tone.BAD) if status.firing else Cell("● 0 firing", Tone.GOOD)
    few = status.nodes_ready < status.nodes_total
    facts: tuple[Cell, ...] = (
        firing,
        Cell(_count(status.open_incidents, "incident"), Tone.BAD if status.open_incidents else Tone.PLAIN),
        Cell(f"{status.nodes_ready}/{status.nodes_total} ready", Tone.WARN if few else Tone.PLAIN),
        Cell(f"policy {status.policy}"),
    )
    if status.gateways_down:
        what = "gateway down" if status.gateways_total == 1 else f"{len(status.gateways_down)} gateways down"
        facts = (Cell(f"▲ {what}", Tone.BAD), *facts)
    if status.gateways_impaired:
        facts = (*facts, Cell(_count(len(status.gateways_impaired), "gateway") + " impaired", Tone.WARN))
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
        rules = (Cell(_count(len(rules), "traffic rule"), Tone.WARN), *rules)  # first: the line may be cut at its end
    if snapshot.cut_off_since is not None:
        facts, rules = (tuple(Cell(f"{one.text}?", Tone.DIM) for one in cells) for cells in (facts, rules))
    return HeaderView(facts, _link(snapshot, now), rules)


def _freeze_text(freeze: Freeze) -> str:
    """A freeze in the header: what is frozen until when, in UTC."""
    until = "" if freeze.expires_at is None else f" –{_time_of_day(freeze.expires_at)}"
    return f"❄ {freeze.pool or 'fleet'} frozen{until}"


def _rule_text(rule: TrafficRule) -> str:
    """A traffic rule in the header: its kind and name, since and until when, and whose it is. Times of day in UTC."""
    until = "" if rule.expires_at is None else f"–{_time_of_day(rule.expires_at)}"
    whose = f" by {rule.made_by}" if rule.made_by else ""
    kind = f"{rule.kind} {rule.spec.state}" if isinstance(rule.spec, OverflowSpec) else rule.kind
    name = kind if rule.id == rule.kind else f"{kind} {rule.id}"
    return f"{name} {_time_of_day(rule.made_at)}{until}{whose}"


def _time_of_day(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%H:%M")


def fleet_rows(snapshot: Snapshot, now: float, width: int = 80, *, with_stopped: bool = False) -> tuple[TableRow, ...]:
    """The fleet table. Ages grow while the controller is away, so that values turn stale by themselves.

    Stopped nodes are left out: a month of replacements would fill the screen. The header counts them.
    """
    drift_s = snapshot.age_s(now)
    shown = [node for node in snapshot.nodes if with_stopped or node.phase is not NodePhase.STOPPED]
    rows = tuple(_node_row(node, drift_s, max(8, width - _NARROW_WITHOUT_NAME)) for node in shown)
    return rows if snapshot.cut_off_since is None else tuple(_of_the_past(row) for row in rows)


def node_lines(node: Node, now: float, pool: Pool | None = None) -> tuple[Cell, ...]:
    """What the table has no room for, about one node and the pool that it is in."""
    glyph, tone = PHASES[node.phase]
    state = f"{glyph} {node.phase.value.replace('_', ' ')}"
    since = f" for {span(now - node.since)}" if node.since is not None else ""
    probed = UNKNOWN if node.probe_age_s is None else f"{age(node.probe_age_s)} ago"
    facts = [
        ("pool", node.pool),
        ("model", node.model),
        ("engine", node.engine),
        ("zone", node.zone),
        ("revision", node.revision),
    ]
    return (
        Cell(f"{node.name}  {state}{since}{': ' + node.reason if node.reason else ''}", tone),
        Cell("  ".join(f"{name} {value or UNKNOWN}" for name, value in facts)),
        Cell(f"{node.url}  probed {probed}  instance {node.instance or UNKNOWN}", Tone.DIM),
        _deep_check(node.deep_check),
        _more_signals(node),
        *(_card_line(card) for card in node.gpus),
        *((_pool_line(pool),) if pool is not None else ()),
        Cell(f"▲ {', '.join(node.alerts)}", Tone.BAD) if node.alerts else Cell("no alerts", Tone.DIM),
    )


def _more_signals(node: Node) -> Cell:
    """Those that the table has no column for."""
    told = (
        ("hit", node.prefix_hit_ratio, _percent),
        ("preempted", node.preemption_ratio, lambda share: f"{share:.1%}"),
        ("ITL", node.itl_s, span),
        ("TTFT p99", node.ttft_p99_s, span),
        ("tok/s", node.tokens_per_s, _rate),
    )
    text = "  ".join(f"{name} {UNKNOWN if one.value is None else show(one.value)}" for name, one, show in told)
    return Cell(text, Tone.DIM if all(one.value is None for _, one, _ in told) else Tone.PLAIN)


def _card_line(card: Gpu) -> Cell:
    """One card: heat, clock, and what is wrong with it."""
    heat = UNKNOWN if card.temperature_c is None else f"{card.temperature_c:.0f}°C"
    clock = UNKNOWN if card.sm_clock_hz is None else f"{card.sm_clock_hz / 1e9:.2f} GHz"
    ecc = f"ECC {card.ecc_uncorrected:.0f}" if card.ecc_uncorrected else ""
    xids = f"XID {','.join(map(str, card.xids))}" if card.xids else ""
    wrong = [*(card.faults or ()), *(card.throttled or ()), *filter(None, (ecc, xids))]
    return Cell(f"GPU {card.gpu}  {heat}  {clock}  {'  '.join(wrong)}".rstrip(), Tone.BAD if wrong else Tone.DIM)


_POOL_TONES = {PoolState.CONVERGED: Tone.DIM, PoolState.CONVERGING: Tone.BUSY, PoolState.BACKING_OFF: Tone.BAD}


def _pool_line(pool: Pool) -> Cell:
    unknown = f" ({pool.unknown} unknown)" if pool.unknown else ""
    told = f"pool {pool.name}  {pool.ready}/{pool.wanted} ready{unknown}  owner {pool.owner}  "
    if pool.autoscaler:
        told += f"autoscaler: {pool.autoscaler}  "
    state = pool.state.value.replace("_", " ")
    return Cell(told + (f"{state}: {pool.reason}" if pool.reason else state), _POOL_TONES.get(pool.state, Tone.WARN))


def span(seconds: float | None) -> str:
    """A length of time in at most six characters: "210ms", "1.4s", "75s", "12m", "3h", "2d"."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return "0s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 172_800 else f"{whole // 86_400}d"


def clip(text: str, width: int) -> str:
    """The text, cut with an ellipsis where it is wider."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def age(seconds: float | None) -> str:
    """Whole seconds and up: an age in milliseconds is noise."""
    return UNKNOWN if seconds is None else span(max(0.0, seconds)) if seconds >= 9.95 else f"{max(0.0, seconds):.0f}s"


def _node_row(node: Node, drift_s: float, name_width: int) -> TableRow:
    glyph, tone = PHASES[node.phase]
    heard_s = None if node.signal_age_s is None else node.signal_age_s + drift_s
    # A node that runs nothing has no step time: "—" is right, and so is it for one that never answered.
    return TableRow(
        node.name,
        (
            Cell(clip(node.name, name_width), Tone.STRONG if node.phase is not NodePhase.STOPPED else Tone.DIM),
            Cell(f"{glyph} {node.phase.value.replace('_', ' ')}", tone),
            _signal(node.running, drift_s, _whole),
            _signal(node.waiting, drift_s, _whole),
            _signal(node.kv_ratio, drift_s, _percent, bad_above=0.95, warn_above=0.85),
            _signal(node.ttft_s, drift_s, span),
            _signal(node.step_s, drift_s, span),
            _signal(node.requests_per_s, drift_s, _rate),
            Cell(age(heard_s), _age_tone(heard_s), right=True),
            Cell(f"▲ {len(node.alerts)}", Tone.BAD) if node.alerts else Cell(""),
        ),
    )


def _deep_check(check: DeepCheck) -> Cell:
    """Whether its answers were right when somebody last looked."""
    tone = {"passed": Tone.DIM, "failed": Tone.BAD, "unknown": Tone.DIM}[check.result]
    ago = f" {span(check.age_s)} ago" if check.age_s is not None else ""
    return Cell(f"deep check {check.result}{ago}" + (f": {check.detail}" if check.detail else ""), tone)


def _of_the_past(row: TableRow) -> TableRow:
    """What was so when the controller last answered: no colour of the present, and the state is a question."""
    cells = [replace(cell, tone=Tone.DIM) for cell in row.cells]
    cells[1] = replace(cells[1], text=f"{cells[1].text}?")
    return TableRow(row.key, tuple(cells))


def _signal(
    signal: Signal,
    drift_s: float,
    write: Formatter,
    bad_above: float | None = None,
    warn_above: float | None = None,
) -> Cell:
    if signal.value is None or signal.value != signal.value:
        return Cell(UNKNOWN, Tone.DIM, right=True)
    text = write(signal.value)
    if signal.age_s is None or signal.age_s + drift_s > STALE_AFTER_S:
        return Cell(f"{text}?", Tone.DIM, right=True)
    tone = Tone.PLAIN
    if bad_above is not None and signal.value > bad_above:
        tone = Tone.BAD
    elif warn_above is not None and signal.value > warn_above:
        tone = Tone.WARN
    return Cell(text, tone, right=True)


def _age_tone(heard_s: float | None) -> Tone:
    if heard_s is None:
        return Tone.DIM
    return Tone.BAD if heard_s > STALE_AFTER_S else Tone.PLAIN


def _link(snapshot: Snapshot, now: float) -> Cell:
    if snapshot.cut_off_since is not None:
        return Cell(f"✗ controller unreachable for {age(now - snapshot.cut_off_since)}", Tone.BAD)
    if snapshot.known_at is None:
        return Cell("◔ connecting", Tone.BUSY)
    late_s = snapshot.age_s(now)
    if late_s > STALE_AFTER_S:
        return Cell(f"▲ no answer for {age(late_s)}", Tone.WARN)
    return Cell("● controller ok", Tone.GOOD)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _percent(value: float) -> str:
    return f"{value * 100:.0f}%"


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
