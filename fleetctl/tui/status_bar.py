"""The line at the top: what fires, what serves, and whether any of it is current. A second one has traffic rules."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.widgets import Static

from fleetctl.tui.rich_text import line, paint
from fleetctl.tui.snapshot import Snapshot
from fleetctl.tui.view_model import header


class StatusBar(Static):
    """The line at the top, and one for traffic rules while there are any."""

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
        if not view.rules:
            self.update(bar)
            return
        rules = line(view.rules, "  ")
        rules.no_wrap, rules.overflow = True, "ellipsis"
        self.update(Group(bar, rules))
