"""Rollouts: the steps of one under way, its gate signal by signal, what happened to it; and those that ended. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.tui.cell import UNKNOWN, Cell, StorySection, Tone, age, clock_time, day, percent
from fleetctl.tui.snapshot import Snapshot
from fleetctl.wire.rollout import Rollout, RolloutSignal

Row = tuple[Cell, ...]
MAX_CHANGES = 8
MAX_TOLD = 3  # why they ended
MAX_ENDED = 20
VERDICTS = {"pass": ("✓", Tone.GOOD), "fail": ("✗", Tone.BAD), "not_enough": ("?", Tone.DIM)}
_ENDS = {"done": Tone.GOOD, "rolled_back": Tone.WARN, "failed": Tone.BAD}


def rollout_sections(snapshot: Snapshot, now: float) -> Iterator[StorySection]:
    """Those under way in full, then those that ended, a line each."""
    under_way = [one for one in snapshot.rollouts if not one.is_ended]
    if not under_way:
        start = "No rollout is under way.  fleetctl rollout start POOL --set max-num-seqs=32"
        yield StorySection(Cell(start, Tone.DIM))
    for one in under_way:
        yield _course(one, now)
        yield _gate(one)
        yield _changes(one)
    ended = [one for one in snapshot.rollouts if one.is_ended]
    if ended:
        told = [one for one in ended[:MAX_TOLD] if one.why]  # on lines of their own: 80 columns have no room beside
        notes = tuple(Cell(f"{clock_time(one.updated_at or one.started_at)} {one.why}", Tone.DIM) for one in told)
        yield StorySection(Cell("Ended", Tone.STRONG), tuple(_ended(one) for one in ended[:MAX_ENDED]), notes)


def rollout_heading(one: Rollout) -> Cell:
    """Which pool goes where, and how far it is."""
    tone = Tone.WARN if one.needs_person or one.state in ("paused", "rolling_back") else Tone.BUSY
    state = one.state.replace("_", " ")
    return Cell(f"Rollout of pool {one.pool}: {state}, {percent(one.share)} to {one.to_revision}", tone)


def _course(one: Rollout, now: float) -> StorySection:
    steps = "  ".join(f"[{percent(share)}]" if at == one.step else percent(share) for at, share in enumerate(one.steps))
    whose = f" by {one.started_by}" if one.started_by else ""
    rows: list[Row] = [
        _row("from, to", f"{one.from_revision} to {one.to_revision}"),
        _row("steps", steps or UNKNOWN),
        _row(
            "nodes", f"{_known(one.new_ready)} of {_known(one.new_nodes)} new ready, {_known(one.other_nodes)} others"
        ),
        _row("next", one.waits_for or UNKNOWN, Tone.WARN if one.needs_person else Tone.PLAIN),
        _row("began", f"{clock_time(one.started_at)}, {age(now - one.started_at)} ago{whose}"),
    ]
    last = one.why if one.why != one.reason else ""
    rows += [_row(name, text) for name, text in (("why", one.reason), ("last", last)) if text]
    if one.override:
        rows.append(_row("overridden", one.override, Tone.WARN))
    if one.back_to:
        rows.append(_row("back to", one.back_to, Tone.WARN))
    keys = f"fleetctl rollout pause|promote|rollback {one.pool}"
    return StorySection(rollout_heading(one), tuple(rows), (Cell(keys, Tone.DIM),))


def _row(name: str, text: str, tone: Tone = Tone.PLAIN) -> Row:
    return Cell(name, Tone.DIM), Cell(text, tone)


def _gate(one: Rollout) -> StorySection:
    if not one.gated:
        return StorySection(Cell("No gate: its steps are not judged", Tone.WARN))
    if not one.signals:
        return StorySection(Cell("Gate: nothing is known of its signals yet", Tone.DIM))
    titles = ("", "signal", "new: bad of all", "stable: bad of all", "says")
    head = tuple(Cell(title, Tone.DIM, right=at in (2, 3)) for at, title in enumerate(titles))
    who = "a person promotes each step" if one.by_hand else "the next step begins when every signal passes"
    return StorySection(Cell(f"Gate: {who}", Tone.STRONG), (head, *map(_signal, one.signals)))


def _signal(signal: RolloutSignal) -> Row:
    glyph, tone = VERDICTS[signal.verdict]
    return (
        Cell(glyph, tone),
        Cell(signal.name),
        Cell(f"{signal.new_bad:.4g} of {signal.new_total:.4g}", right=True),
        Cell(f"{signal.stable_bad:.4g} of {signal.stable_total:.4g}", right=True),
        Cell(f"needs {signal.missing}" if signal.missing else signal.words, Tone.DIM),
    )


def _changes(one: Rollout) -> StorySection:
    newest = sorted(one.history, key=lambda change: -change.at)[:MAX_CHANGES]
    rows = tuple(
        (
            Cell(clock_time(change.at), Tone.DIM),
            Cell(change.state.replace("_", " ")),
            Cell(percent(change.share), right=True),
            Cell(change.by, Tone.DIM),
            Cell(change.why),
        )
        for change in newest
    )
    return StorySection(Cell("What happened to it (UTC)", Tone.STRONG), rows or ((Cell("nothing yet", Tone.DIM),),))


def _ended(one: Rollout) -> Row:
    at = one.updated_at or one.started_at
    return (
        Cell(f"{day(at)} {clock_time(at)}", Tone.DIM),
        Cell(one.pool, Tone.STRONG),
        Cell(one.state.replace("_", " "), _ENDS.get(one.state, Tone.PLAIN)),
        Cell(f"{one.from_revision} to {one.to_revision}"),
    )


def _known(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)
