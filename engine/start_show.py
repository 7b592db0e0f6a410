"""A bar for a person at a terminal while the model loads. Elsewhere the log says how far it is."""

from __future__ import annotations

import asyncio
import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from engine.node.node import Node

REFRESH_S = 0.1
PHASES = {"loading": "loading", "warming_up": "warming up"}


async def show_loading(node: Node) -> None:
    """Draws the bar until the core is ready for the first time."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    # The log goes through sys.stderr, which the bar takes over: lines come out above it.
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("starting", total=1.0)
        while not node.core.first_ready.is_set():
            if (progress := node.core.progress) is not None:
                bar.update(task, description=PHASES.get(progress.phase, progress.phase), completed=progress.done)
            bar.refresh()
            await asyncio.sleep(REFRESH_S)
