"""How far the night is: a bar on a terminal, a line for each change in a pipe. On stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Step = Callable[[str, int, str], None]
"""Told: the fault's name, how many are done, and what happens now."""

_SECONDS = re.compile(r"\d+ s")


@contextmanager
def progress_reporter(total: int) -> Iterator[Step]:
    """While the block runs: a function that shows progress."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _plain_reporter(total)
        return
    columns = (
        MofNCompleteColumn(),
        BarColumn(bar_width=16),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda fault, done, news: bar.update(task, completed=done, description=f"{fault}: {news}"[:200])


def _plain_reporter(total: int) -> Step:
    told = ""

    def report(fault: str, done: int, news: str) -> None:
        nonlocal told
        line = f"{done + 1}/{total} {fault}: {news}"
        if _SECONDS.sub("", line) != _SECONDS.sub("", told):  # seconds that pass are no news
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        told = line

    return report
