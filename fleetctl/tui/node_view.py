"""What is told of one node beside its row in the fleet's table: pure, no Textual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fleetctl.tui.cell import (
    UNKNOWN,
    Cell,
    StorySection,
    Tone,
    age,
    clip,
    count,
    percent,
    rate,
    signal_cell,
    span,
    whole,
)
from fleetctl.tui.snapshot import Part, Snapshot, Tail
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.held import HeldRequest, HeldRequests, KvBlocks
from fleetctl.wire.node import DeepCheck, Node, NodePhase
from fleetctl.wire.pool import Pool, PoolState

MAX_REQUESTS = 30
REQUEST_ID_WIDTH = 22
KV_LINE, KV_LINES = 56, 2  # signs: what half of 120 columns has room for
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


def node_lines(node: Node, now: float, pool: Pool | None = None) -> tuple[Cell, ...]:
    """What the table has no room for, about one node and the pool that it is in."""
    what, where, check, *owner = _is(node, pool)
    state, *cards, fires = _state(node, now)
    return (state, what, where, check, _more_signals(node), *cards, *owner, fires)


def _state(node: Node, now: float) -> tuple[Cell, ...]:
    """Its phase, its cards, its alerts."""
    glyph, tone = PHASES[node.phase]
    state = f"{glyph} {node.phase.value.replace('_', ' ')}"
    since = f" for {span(now - node.since)}" if node.since is not None else ""
    return (
        Cell(f"{node.name}  {state}{since}{': ' + node.reason if node.reason else ''}", tone),
        *(_card_line(card) for card in node.gpus),
        Cell(f"▲ {', '.join(node.alerts)}", Tone.BAD) if node.alerts else Cell("no alerts", Tone.DIM),
    )


def _is(node: Node, pool: Pool | None) -> tuple[Cell, ...]:
    """What seldom changes: what it serves, where it is, whether its answers were right, its pool."""
    probed = UNKNOWN if node.probe_age_s is None else f"{age(node.probe_age_s)} ago"
    facts = [
        ("pool", node.pool),
        ("model", node.model),
        ("engine", node.engine),
        ("zone", node.zone),
        ("revision", node.revision),
    ]
    return (
        Cell("  ".join(f"{name} {value or UNKNOWN}" for name, value in facts)),
        Cell(f"{node.url}  probed {probed}  instance {node.instance or UNKNOWN}", Tone.DIM),
        *((Cell(f"scrape failed: {node.signal_problem}", Tone.WARN),) if node.signal_problem else ()),
        _deep_check(node.deep_check),
        *((_pool_line(pool),) if pool is not None else ()),
    )


def _more_signals(node: Node) -> Cell:
    """Those that the table has no column for."""
    told = (
        ("hit", node.prefix_hit_ratio, percent),
        ("preempted", node.preemption_ratio, lambda share: f"{share:.1%}"),
        ("ITL", node.itl_s, span),
        ("TTFT p99", node.ttft_p99_s, span),
        ("tok/s", node.tokens_per_s, rate),
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


def _deep_check(check: DeepCheck) -> Cell:
    """Whether its answers were right when somebody last looked."""
    tone = {"passed": Tone.DIM, "failed": Tone.BAD, "unknown": Tone.DIM}[check.result]
    ago = f" {span(check.age_s)} ago" if check.age_s is not None else ""
    return Cell(f"deep check {check.result}{ago}" + (f": {check.detail}" if check.detail else ""), tone)


def _kv_map(kv: KvBlocks | None) -> StorySection:
    """Every block by its use, drawn to scale in the order in which they go: from the right."""
    if kv is None:
        return StorySection(Cell("KV cache: not known yet", Tone.DIM))
    if kv.unknown:
        return StorySection(Cell(f"What its KV cache is used for is not known: {kv.unknown}", Tone.WARN))
    uses = (
        ("█", "shared by several requests", kv.num_shared, Tone.PLAIN),
        ("▓", "held by one", kv.num_held - kv.num_shared, Tone.PLAIN),
        ("▒", "kept, found again before", kv.num_kept_reused, Tone.BUSY),
        ("░", "kept for a prompt that begins the same", kv.num_kept - kv.num_kept_reused, Tone.BUSY),
        ("·", "blank", kv.num_blank, Tone.DIM),
    )
    signs = shares([number for _, _, number, _ in uses], KV_LINES * KV_LINE)
    drawn = "".join(sign * times for (sign, *_), times in zip(uses, signs, strict=True))
    notes = tuple(Cell(drawn[at : at + KV_LINE]) for at in range(0, len(drawn), KV_LINE))
    rows = tuple(
        (
            Cell(sign, tone),
            Cell(f"{number:,}", right=True),
            Cell(percent(number / max(1, kv.num_blocks)), right=True),
            Cell(meaning, tone),
        )
        for sign, meaning, number, tone in uses
        if number > 0 or sign == "▓"
    )
    heading = f"KV cache: {kv.num_blocks:,} blocks of {kv.block_size} tokens, the first to go at the right"
    return StorySection(Cell(heading, Tone.STRONG), rows, notes)


def shares(numbers: Sequence[int], signs: int) -> list[int]:
    """How many of so many signs each number gets: to scale, and at least one where there is anything."""
    total = sum(numbers)
    if total <= 0:
        return [0] * len(numbers)
    given = [max(1, number * signs // total) if number > 0 else 0 for number in numbers]
    given[given.index(max(given))] += signs - sum(given)
    return given


def _held(held: HeldRequests | None) -> StorySection:
    """Requests in flight, one a line, the oldest first."""
    if held is None:
        return StorySection(Cell("Requests in flight: not known yet", Tone.DIM))
    if held.unknown:
        return StorySection(Cell(f"Requests in flight are not known: {held.unknown}", Tone.WARN))
    arriving = f", {held.num_arriving} arriving" if held.num_arriving else ""
    heading = f"Asked now: {count(len(held.requests), 'request')} in flight{arriving}"
    if not held.requests:
        return StorySection(Cell(heading, Tone.DIM))
    titles = ("request", "state", "age", "in", "out", "KV blocks", "deadline")
    rows = [tuple(Cell(title, Tone.DIM, right=at > 1) for at, title in enumerate(titles))]
    rows += [_request(one) for one in held.requests[:MAX_REQUESTS]]
    more = len(held.requests) - MAX_REQUESTS
    notes = (Cell(f"and {more} more, younger ones", Tone.DIM),) if more > 0 else ()
    return StorySection(Cell(heading, Tone.STRONG), tuple(rows), notes)


def _request(one: HeldRequest) -> tuple[Cell, ...]:
    tone = {"running": Tone.PLAIN, "waiting": Tone.WARN}.get(one.state, Tone.BUSY)
    numbers = (one.tokens_in, one.tokens_out, one.kv_blocks)
    return (
        Cell(clip(one.request_id, REQUEST_ID_WIDTH)),
        Cell(one.state or UNKNOWN, tone),
        Cell(span(one.age_s), right=True),
        *(Cell(UNKNOWN if number is None else f"{number:,}", right=True) for number in numbers),
        Cell(span(one.deadline_s) if one.deadline_s is not None else "none", Tone.DIM, right=True),
    )


def _of_seats(node: Node, drift_s: float) -> Cell:
    """What it computes, of how many at once it may; not every engine tells the second."""
    running, seats = signal_cell(node.running, drift_s, whole), node.seats.value
    return running if seats is None else replace(running, text=f"{running.text} of {whole(seats)}")


def node_sections(name: str | None, node: Node | None, snapshot: Snapshot, now: float) -> Iterator[StorySection]:
    """One node: state, what it does now, its cards, what may be done to it."""
    if node is None:
        text = f"Nothing is known of {name}." if name is not None else "No node is chosen.  g f, Enter opens one"
        yield StorySection(Cell(text, Tone.DIM))
        return
    pool = next((one for one in snapshot.pools if one.name == node.pool), None)
    first, *rest = _state(node, now)
    yield StorySection(first, (), tuple(rest))
    drift_s = snapshot.drift_s(Part.NODE, now)
    tail = snapshot.node_tails.get(node.name, Tail())
    told = (
        ("running", _of_seats(node, drift_s), "waiting", node.waiting, whole),
        ("KV", signal_cell(node.kv_ratio, drift_s, percent), "prefix hit", node.prefix_hit_ratio, percent),
        ("step", signal_cell(node.step_s, drift_s, span), "preempted", node.preemption_ratio, percent),
        ("tok/s", signal_cell(node.tokens_per_s, drift_s, rate), "prompt tok/s", node.prompt_tokens_per_s, rate),
        ("TTFT", signal_cell(node.ttft_s, drift_s, span), "ITL", node.itl_s, span),
    )
    rows = [
        (Cell(left, Tone.DIM), value, Cell("   "), Cell(right, Tone.DIM), signal_cell(signal, drift_s, write))
        for left, value, right, signal, write in told
    ]
    rows.append(
        (
            Cell("p95/1h ago", Tone.DIM),
            Cell(f"{span(tail.ttft_s)}/{span(tail.ttft_before_s)}", right=True),
            Cell("   "),
            Cell("p95/1h ago", Tone.DIM),
            Cell(f"{span(tail.itl_s)}/{span(tail.itl_before_s)}", right=True),
        )
    )
    yield StorySection(Cell("Now", Tone.STRONG), tuple(rows))
    yield _kv_map(snapshot.kv)
    yield _held(snapshot.requests)
    yield StorySection(Cell("What it is", Tone.STRONG), (), _is(node, pool))
    if node.abilities:
        can = tuple(
            (
                Cell("✓" if one.can else "✗", Tone.GOOD if one.can else Tone.DIM),
                Cell(one.ability),
                Cell(one.how, Tone.DIM),
            )
            for one in node.abilities
        )
        yield StorySection(Cell("What may be done to it", Tone.STRONG), can)
