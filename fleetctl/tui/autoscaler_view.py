"""What the autoscaler may do with each pool, and its last word on it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.tui.cell import UNKNOWN, Cell, StorySection, Tone, age, percent, span, whole
from fleetctl.tui.snapshot import Snapshot
from fleetctl.wire.autoscaler import AutoscalerPool

Row = tuple[Cell, ...]
_WAYS = {"out": ("▲ grow", Tone.BUSY), "in": ("▼ shrink", Tone.BUSY), "hold": ("= hold", Tone.PLAIN)}


def autoscaler_sections(snapshot: Snapshot, now: float) -> Iterator[StorySection]:
    """One section for each pool: its word first."""
    if not snapshot.autoscaler:
        yield StorySection(Cell("No pools are known.", Tone.DIM))
    for one in snapshot.autoscaler:
        yield _pool(one, now)


def _pool(one: AutoscalerPool, now: float) -> StorySection:
    way, tone = _WAYS[one.direction] if one.direction is not None else ("? not judged yet", Tone.DIM)
    size = f" to {one.size}" if one.size is not None and one.direction in ("out", "in") else ""
    judged = f", judged {age(now - one.judged_at)} ago" if one.judged_at is not None else ""
    doing = "acts by itself" if one.acts else f"only advises (mode {one.mode}, owner {one.owner})"
    rows: list[Row] = [
        (Cell("says", Tone.DIM), Cell(one.why or UNKNOWN)),
        (Cell("may", Tone.DIM), Cell(f"{doing}; {one.min} to {one.max} nodes, {one.wanted} wanted now")),
        (Cell("sees", Tone.DIM), Cell(_load(one))),
        (Cell("did", Tone.DIM), Cell(_did(one, now))),
    ]
    if one.check:
        rows.insert(1, (Cell("simulated", Tone.DIM), Cell(one.check)))
    if one.reversals:
        turned = f"{one.reversals} changes of direction within the last hour"
        rows.append((Cell("wavers", Tone.WARN), Cell(turned, Tone.WARN)))
    set_by = f"fleetctl autoscale set {one.pool} --mode act" if one.mode == "advise" else ""
    notes = (Cell(set_by, Tone.DIM),) if set_by else ()
    return StorySection(Cell(f"Pool {one.pool}: {way}{size}{judged}", tone), tuple(rows), notes)


def _load(one: AutoscalerPool) -> str:
    told = (
        ("KV", one.kv_ratio, percent),
        ("seats", one.seat_ratio, percent),
        ("waiting", one.waiting, whole),
        ("a node starts in", one.start_s, span),
    )
    return "  ".join(f"{name} {UNKNOWN if value is None else write(value)}" for name, value, write in told)


def _did(one: AutoscalerPool, now: float) -> str:
    told = (("grew", one.last_out_at), ("shrank", one.last_in_at))
    words = [f"{what} it {age(now - at)} ago" for what, at in told if at is not None]
    return ", ".join(words) or "nothing yet"
