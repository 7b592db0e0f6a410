"""The one line at the top: what fires, what serves, and whether any of it is current."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text
from textual.widgets import Static

from fleetctl.tui.rich_text import line, paint
from fleetctl.tui.snapshot import Snapshot
from fleetctl.tui.view_model import header


class StatusBar(Static):
    """The line at the top."""

    def __init__(self, title: str) -> None:
        super().__init__(id="status")
        self._title = title

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Draw this snapshot's header."""
        view = header(snapshot, now)
        bar = Table.grid(expand=True)
        bar.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        bar.add_column(justify="right", no_wrap=True)
        bar.add_row(Text(f"{self._title}  ", style="bold") + line(view.facts, "  "), paint(view.link))
        self.update(bar)
