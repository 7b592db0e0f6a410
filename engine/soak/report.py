"""Progress while a run lasts, and its report: a bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from engine.soak.accounting import RequestAccounting
from engine.soak.soak import Progress, SoakPlan, SoakResult

PLAIN_STEP = 0.1  # a line for each tenth of the way


@contextmanager
def progress_reporter() -> Iterator[Callable[[Progress], None]]:
    """While the block runs: a function that shows progress on stderr."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _plain_reporter()
        return
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[requests]} requests, {task.fields[problems]} problems"),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("start", total=1.0, requests=0, problems=0)
        yield lambda p: bar.update(
            task, description=p.doing, completed=p.done, requests=p.requests, problems=p.problems
        )


def _plain_reporter() -> Callable[[Progress], None]:
    told = [-1]

    def report_progress(progress: Progress) -> None:
        step = int(progress.done / PLAIN_STEP)
        if step > told[0]:
            told[0] = step
            sys.stderr.write(f"{progress.done:.0%} {progress.requests} requests, {progress.problems} problems\n")

    return report_progress


def report_of(result: SoakResult, accounting: RequestAccounting | None, plan: SoakPlan) -> dict[str, object]:
    """The report as plain data; `ok` is the verdict."""
    endings: dict[str, dict[str, int]] = {}
    for (kind, ending), count in sorted(accounting.endings.items() if accounting is not None else ()):
        endings.setdefault(kind, {})[ending] = count
    return {
        "ok": not result.problems,
        "problems": result.problems,
        "seconds": round(result.seconds, 1),
        "seed": plan.seed,
        "requests": result.requests,
        "disturbances": result.disturbances,
        "endings": endings,
        "states": {} if accounting is None else dict(accounting.states),
        "tokens": 0 if accounting is None else accounting.tokens,
        "known_answers": 0 if accounting is None else accounting.known_answers,
        "leak_on_purpose_detected": result.leak_detected,
        "readings": [reading.as_dict() for reading in result.readings],
    }


def render(report: dict[str, object]) -> str:
    """The report for people."""
    readings = report["readings"]
    assert isinstance(readings, list)
    lines = [
        f"{report['requests']} requests and {report['disturbances']} disturbances in {report['seconds']} s",
        f"ended as {report['states']}, {report['tokens']} tokens; {report['known_answers']} answers as they are alone",
    ]
    if readings:
        first, last = readings[0], readings[-1]
        names = ("node_rss_mib", "core_rss_mib", "files", "threads", "tasks")
        lines += [f"{n:<14}{first[n]} at {first['at_s']} s, {last[n]} at {last['at_s']} s" for n in names]
    problems = report["problems"]
    assert isinstance(problems, list)
    lines += [f"problem: {problem}" for problem in problems] or ["nothing leaked; every request has one end"]
    return "\n".join(lines) + "\n"
