"""The run of a page, step by step, as it stands; and what may be done with it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.tui.cell import UNKNOWN, Cell, StorySection, Tone, span
from fleetctl.tui.incident_view import RUN_TONES, STEPS, receipt_text
from fleetctl.tui.snapshot import Snapshot, current_run
from fleetctl.wire.run import Run, RunStatus, StepRecord
from fleetctl.wire.runbook import RunbookInfo

Row = tuple[Cell, ...]


def shown_run(snapshot: Snapshot, subject: str | None) -> Run | None:
    """The run whose page is shown: the one of this id, else the one that the shown incident is about."""
    if subject is not None:
        return next((run for run in _runs(snapshot) if run.id == subject), None)
    return current_run(snapshot.focus) if snapshot.focus is not None else None


def _runs(snapshot: Snapshot) -> Iterator[Run]:
    yield from snapshot.focus.runs if snapshot.focus is not None else ()
    yield from snapshot.runs


def run_section(run: Run | None, now: float) -> StorySection:
    """Each step's state, duration and output. A dry run says so first."""
    if run is None:
        return StorySection(Cell("No run: nothing of this page is being done.", Tone.DIM))
    what = f"{run.title or run.runbook}, {run.status.value}"
    if run.dry_run:
        heading = Cell(f"DRY RUN, nothing was done: {what}", Tone.DIM)
    else:
        keys = {RunStatus.PROPOSED: "   a approve   d deny   x dry run"}.get(run.status, "")
        live = "" if run.status.is_terminal or run.status is RunStatus.PROPOSED else "   P pause   S skip   X cancel"
        heading = Cell(f"Run {run.id}: {what}{keys}{live}", RUN_TONES[run.status])
    return StorySection(heading, tuple(_step(step, run, now) for step in run.steps), tuple(_notes(run)))


def _step(step: StepRecord, run: Run, now: float) -> Row:
    glyph, tone = STEPS[step.status]
    if run.dry_run:
        glyph, tone = "·", Tone.DIM
    took = UNKNOWN if step.status != "pending" else ""
    if step.started_at is not None and not run.dry_run:
        took = span((step.ended_at if step.ended_at is not None else now) - step.started_at)
    tries = f" {step.attempts}×" if step.attempts > 1 else ""
    text = f"undo: {step.command}" if step.phase == "undo" else step.command
    return (
        Cell(glyph, tone),
        Cell(f"{step.index + 1}", Tone.DIM),
        Cell(took + tries, Tone.DIM),
        Cell(f"{text}{receipt_text(step)}", Tone.BAD if step.error else Tone.PLAIN),
    )


def _notes(run: Run) -> Iterator[Cell]:
    if run.question and not run.status.is_terminal:
        yield Cell(f"It asks: {run.question}   a yes   d no", Tone.WARN)
    if run.paused_by and not run.status.is_terminal:
        yield Cell(f"Paused by {run.paused_by}; P lets it go on", Tone.WARN)
    if run.cancelled_by and not run.status.is_terminal:
        yield Cell(f"Ends before its next step: cancelled by {run.cancelled_by}", Tone.WARN)
    for name, text in (
        ("Why", run.reason),
        ("Forecast", run.prediction),
        ("Held", run.held),
        ("Verify", run.verification),
    ):
        if text:
            yield Cell(f"{name}: {text}", Tone.DIM)
    if run.error:
        yield Cell(f"Error: {run.error}", Tone.BAD)


def page_head(page: RunbookInfo | None) -> Cell:
    """What the page's front matter says, in a line."""
    if page is None:
        return Cell("No page is shown.  :runbook list names them, :runbook NAME opens one", Tone.DIM)
    return Cell(f"Page {page.name}, risk {page.risk}, for {', '.join(page.causes) or 'no cause'}", Tone.STRONG)
