"""How a fleet starts, on a terminal: a line for each part that changes in its place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fleetctl.stack import Tell

READY = "ready"
OURS = ("controller", "gateway")


class StartScreen:
    """What was last told of each part."""

    def __init__(self, num_nodes: int) -> None:
        self._num_parts = num_nodes + 2  # a controller and a gateway
        self._began = time.monotonic()
        self._told: dict[str, str] = {}
        self._spinner = Spinner("dots")

    def tell(self, line: str) -> None:
        """A line of `Stack.up`: `starting gateway at URL`, `node-1: ready`."""
        if line.startswith("starting "):
            name, _, news = line.removeprefix("starting ").partition(" ")
        else:
            name, _, news = line.partition(": ")
        if not news:
            return
        self._told[name] = news
        if name not in OURS:  # it starts the nodes, so it is there
            self._told["controller"] = READY

    @property
    def ready(self) -> int:
        """How many parts are."""
        return sum(news.startswith(READY) for news in self._told.values())

    def __rich__(self) -> Group:
        parts = Table.grid(padding=(0, 2, 0, 0))
        for name, news in self._told.items():
            done = news.startswith(READY)
            parts.add_row(
                Text("  ✓", style="green") if done else Text("  ·", style="dim"), name, Text(news, style="dim")
            )
        waited = time.monotonic() - self._began
        text = f"Starting a fleet: {self.ready} of {self._num_parts} parts are ready, {waited:.0f} s.  Ctrl-C stops it."
        head = Table.grid(padding=(0, 1, 0, 0))
        head.add_row(self._spinner, Text(text, style="bold"))
        return Group(head, parts)


@contextmanager
def start_screen(console: Console, num_nodes: int) -> Iterator[Tell]:
    """What it yields is told each line; the lines stay on the terminal behind it."""
    screen = StartScreen(num_nodes)
    with Live(screen, console=console, refresh_per_second=8):
        yield screen.tell
