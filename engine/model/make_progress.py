"""Making a model with a progress bar on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from engine.model.make import make_model


def make_with_progress(directory: str, seed: int) -> None:
    """Makes the model, or finds it whole; says which on stdout. Raises BadModelError, OSError."""
    console = Console(file=sys.stderr)
    seen: list[float] = []
    with _bar(console) as show:

        def tell(phase: str, done: float) -> None:
            seen.append(done)
            show(phase, done)

        target = make_model(Path(directory), seed=seed, progress=tell)
    is_new = any(0.0 < done < 1.0 for done in seen)
    sys.stdout.write(f"{target}: {'made' if is_new else 'already there'}\n")


class _Show:
    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task("model", total=1.0)

    def __call__(self, phase: str, done: float) -> None:
        if self._progress is None or self._task is None:
            if 0.0 < done < 1.0:
                sys.stderr.write(f"{phase}: {done:.0%}\n")
        else:
            self._progress.update(self._task, description=phase, completed=done)


@contextmanager
def _bar(console: Console) -> Iterator[_Show]:
    if not console.is_terminal:
        yield _Show(None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Show(progress)
