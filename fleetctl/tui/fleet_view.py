"""The fleet's table: columns of a node, what may be grouped, filtered and ordered by, and a group's heading. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fleetctl.tui.cell import (
    UNKNOWN,
    Cell,
    Tone,
    age,
    age_tone,
    bar,
    count,
    percent,
    rate,
    signal_cell,
    span,
    sparkline,
    unknown_cell,
    whole,
)
from fleetctl.tui.listing import Column, Line, Order, grouped, matches, ordered
from fleetctl.tui.node_view import PHASES
from fleetctl.tui.snapshot import Snapshot, Tail, Trend
from fleetctl.wire.group import GroupBy, GroupLoad, GroupSignal
from fleetctl.wire.node import Node, NodePhase, Signal
from fleetctl.wire.pool import PoolState

BAR_WIDTH = 6
TREND_WIDTH = 16
WORSE = 1.5  # times its own past, where a latency is told as worse
NO_TAIL, NO_TREND = Tail(), Trend()


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node as it is shown: `drift_s` since it was told."""

    node: Node
    drift_s: float
    tail: Tail = NO_TAIL
    trend: Trend = NO_TREND
    is_past: bool = False  # the controller is away


def _named(row: NodeRow) -> Cell:
    return Cell(row.node.name, Tone.STRONG if row.node.phase is not NodePhase.STOPPED else Tone.DIM)


def _state(row: NodeRow) -> Cell:
    glyph, tone = PHASES[row.node.phase]
    text = f"{glyph} {row.node.phase.value.replace('_', ' ')}"
    return Cell(f"{text}?", Tone.DIM) if row.is_past else Cell(text, tone)


def _kv_bar(row: NodeRow) -> Cell:
    told = _kv(row)
    value = row.node.kv_ratio.value
    if value is None or value != value:
        return told
    return Cell(f"{bar(value, BAR_WIDTH)} {told.text:>4}", told.tone)


def _kv(row: NodeRow) -> Cell:
    return signal_cell(row.node.kv_ratio, row.drift_s, percent, bad_above=0.95, warn_above=0.85)


def _age(row: NodeRow) -> Cell:
    heard_s = _heard_s(row)
    return Cell(age(heard_s), age_tone(heard_s), right=True)


def _heard_s(row: NodeRow) -> float | None:
    return None if row.node.signal_age_s is None else row.node.signal_age_s + row.drift_s


def _fires(row: NodeRow) -> Cell:
    return Cell(f"▲ {len(row.node.alerts)}", Tone.BAD) if row.node.alerts else Cell("")


def beside_past(now: float | None, before: float | None) -> Cell:
    """A latency and what it was an hour ago."""
    if now is None and before is None:
        return unknown_cell()
    tone = Tone.WARN if now is not None and before and now > WORSE * before else Tone.PLAIN
    return Cell(f"{span(now)}/{span(before)}", tone, right=True)


def _trend(values: tuple[float | None, ...]) -> Cell:
    return Cell(sparkline(values, TREND_WIDTH), Tone.DIM)


def _gpu(row: NodeRow) -> Cell:
    """The hottest card and the slowest clock, and whether any card is throttled or broken."""
    cards = row.node.gpus
    heats = [card.temperature_c for card in cards if card.temperature_c is not None]
    clocks = [card.sm_clock_hz for card in cards if card.sm_clock_hz is not None]
    if not heats and not clocks:
        return unknown_cell()
    heat = f"{max(heats):.0f}°" if heats else UNKNOWN
    clock = f"{min(clocks) / 1e9:.2f}GHz" if clocks else UNKNOWN
    wrong = any(card.faults or card.throttled for card in cards)
    return Cell(f"{heat} {clock}{' !' if wrong else ''}", Tone.BAD if wrong else Tone.PLAIN, right=True)


def _number(
    title: str,
    width: int,
    signal: Callable[[Node], Signal],
    write: Callable[[float], str],
    from_width: int = 0,
) -> Column[NodeRow]:
    return Column(
        title,
        width,
        lambda row: signal_cell(signal(row.node), row.drift_s, write),
        sort_key=lambda row: signal(row.node).value,
        right=True,
        from_width=from_width,
    )


FLEET_COLUMNS: tuple[Column[NodeRow], ...] = (
    Column("node", 8, _named, lambda row: row.node.name, grows=True, most=40),
    Column("state", 13, _state, lambda row: row.node.phase.value),
    _number("run", 4, lambda node: node.running, whole),
    _number("seats", 5, lambda node: node.seats, whole, 100),
    _number("wait", 4, lambda node: node.waiting, whole),
    Column("KV", BAR_WIDTH + 6, _kv_bar, lambda row: row.node.kv_ratio.value),
    _number("TTFT", 6, lambda node: node.ttft_s, span),
    Column(
        "p95/1h ago",
        12,
        lambda row: beside_past(row.tail.ttft_s, row.tail.ttft_before_s),
        lambda row: row.tail.ttft_s,
        right=True,
        from_width=120,
    ),
    _number("ITL", 6, lambda node: node.itl_s, span, 100),
    Column(
        "ITL p95/1h",
        12,
        lambda row: beside_past(row.tail.itl_s, row.tail.itl_before_s),
        lambda row: row.tail.itl_s,
        right=True,
        from_width=160,
    ),
    _number("step", 6, lambda node: node.step_s, span, 160),
    _number("tok/s", 6, lambda node: node.tokens_per_s, rate),
    _number("req/s", 6, lambda node: node.requests_per_s, rate, 110),
    _number("hit", 5, lambda node: node.prefix_hit_ratio, percent, 150),
    _number("preempt", 7, lambda node: node.preemption_ratio, lambda share: f"{share:.1%}", 150),
    Column("GPU", 13, _gpu, from_width=140, right=True),
    Column("TTFT, lately", TREND_WIDTH, lambda row: _trend(row.trend.ttft_s), from_width=190),
    Column("tok/s, lately", TREND_WIDTH, lambda row: _trend(row.trend.tokens_per_s), from_width=210),
    Column("zone", 8, lambda row: _known(row.node.zone), lambda row: row.node.zone or None, from_width=180),
    Column(
        "revision", 10, lambda row: _known(row.node.revision), lambda row: row.node.revision or None, from_width=220
    ),
    Column("age", 5, _age, lambda row: _heard_s(row), right=True),
    Column("fire", 4, _fires, lambda row: len(row.node.alerts)),
)

GROUPS: Mapping[str, Callable[[NodeRow], str] | None] = {
    "": None,
    "pool": lambda row: row.node.pool,
    "zone": lambda row: row.node.zone,
    "model": lambda row: row.node.model,
    "revision": lambda row: row.node.revision,
}
"""What nodes may be grouped by; empty: not at all."""


def _known(text: str) -> Cell:
    return Cell(text or UNKNOWN, Tone.DIM)


def node_labels(node: Node) -> dict[str, str]:
    """What a filter may name."""
    return {
        "name": node.name,
        "phase": node.phase.value,
        "pool": node.pool,
        "zone": node.zone,
        "model": node.model,
        "engine": node.engine,
        "revision": node.revision,
        "alert": " ".join(node.alerts),
    }


def fleet_lines(
    snapshot: Snapshot,
    now: float,
    *,
    words: str = "",
    group: str = "",
    order: Order = Order(),  # noqa: B008
    with_stopped: bool = False,
) -> tuple[Line[NodeRow], ...]:
    """The fleet's table. Ages grow while the controller is away, so that values turn stale by themselves.

    Stopped nodes are left out: a month of replacements would fill the screen. The header counts them.
    """
    is_past = snapshot.cut_off_since is not None
    rows = [
        NodeRow(
            node,
            snapshot.node_drift_s(node.name, now),
            snapshot.node_tails.get(node.name, NO_TAIL),
            snapshot.trends.get(node.name, NO_TREND),
            is_past,
        )
        for node in snapshot.nodes
        if (with_stopped or node.phase is not NodePhase.STOPPED) and (not words or matches(words, node_labels(node)))
    ]
    by = ordered(rows, FLEET_COLUMNS, order)
    return grouped(
        by, lambda row: row.node.name, GROUPS[group], lambda name, members: _heading(snapshot, group, name, members)
    )


def _heading(snapshot: Snapshot, group: str, name: str, rows: Sequence[NodeRow]) -> tuple[Cell, ...]:
    """A group's name, how many serve, what they come to, and what its pool is about."""
    ready = sum(row.node.phase is NodePhase.READY for row in rows)
    of, tone = f"{ready}/{len(rows)} ready", Tone.PLAIN if ready == len(rows) else Tone.WARN
    is_past = snapshot.cut_off_since is not None
    cells = [Cell(f"{group} {name or UNKNOWN}", Tone.STRONG), Cell(f"{of}?", Tone.DIM) if is_past else Cell(of, tone)]
    if group == "pool":  # what is to be read first: 80 columns cut the end
        pool = next((one for one in snapshot.pools if one.name == name), None)
        if pool is not None and pool.state is not PoolState.CONVERGED:
            tone = Tone.BAD if pool.state is PoolState.BACKING_OFF else Tone.BUSY
            cells.append(Cell(f"wanted {pool.wanted}: {pool.reason or pool.state.value.replace('_', ' ')}", tone))
    load = _load(snapshot, group, name)
    if load is not None:
        cells += load_cells(load)
    if group == "pool":
        cells += _tail_cells(snapshot.pool_tails.get(name, NO_TAIL))
    return tuple(cells)


def _tail_cells(tail: Tail) -> list[Cell]:
    """A pool's p95 of an hour ago beside that of now, which stands before it."""
    cells = [Cell(f"1h ago {span(tail.ttft_before_s)}", Tone.DIM)] if tail.ttft_before_s is not None else []
    if tail.itl_s is not None or tail.itl_before_s is not None:
        cells += [Cell(f"ITL p95 {span(tail.itl_s)}"), Cell(f"1h ago {span(tail.itl_before_s)}", Tone.DIM)]
    return cells


def _load(snapshot: Snapshot, group: str, name: str) -> GroupLoad | None:
    if group == "pool":
        return next((pool.load for pool in snapshot.pools if pool.name == name), None)
    found = snapshot.groups.get(GroupBy(group), ())
    return next((one.load for one in found if one.name == name), None)


def load_cells(load: GroupLoad) -> list[Cell]:
    """Run, wait, KV, TTFT p95 and tok/s of a group; those that nobody told are a dash."""
    told: tuple[tuple[str, GroupSignal, Callable[[float], str]], ...] = (
        ("run", load.running, whole),
        ("wait", load.waiting, whole),
        ("KV", load.kv_ratio, percent),
        ("tok/s", load.tokens_per_s, rate),
        ("TTFT p95", load.ttft_p95_s, span),
    )
    return [
        Cell(f"{name} {UNKNOWN if one.value is None else ('>' if one.at_least else '') + write(one.value)}")
        for name, one, write in told
    ]


def summary(lines: Sequence[Line[NodeRow]], snapshot: Snapshot, words: str) -> str:
    """How many nodes are shown of how many, and why not all."""
    shown = sum(line.row is not None for line in lines)
    stopped = sum(node.phase is NodePhase.STOPPED for node in snapshot.nodes)
    text = count(shown, "node")
    return f"{text} of {len(snapshot.nodes)}" + (f", {stopped} stopped" if stopped else "") if words else text
