"""The line at the top: what fires, what serves, and whether any of it is current. A second one has traffic rules."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual import events
from textual.widgets import Static

from fleetctl.tui.header_view import header
from fleetctl.tui.place import Place, Visit
from fleetctl.tui.rich_text import line, paint
from fleetctl.tui.snapshot import Snapshot


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


class PlaceBar(Static):
    """Which screen is shown, about what, and by which filter. A click goes to another."""

    def __init__(self) -> None:
        super().__init__(id="places")
        self._shown: tuple[Visit, str] | None = None
        self._ends: list[tuple[int, Place]] = []

    def show(self, here: Visit, words: str) -> None:
        """Draw it, where it is not as before."""
        if (here, words) == self._shown:
            return
        self._shown = (here, words)
        about = Text()
        if here.subject is not None:
            about.append(f"  {here.subject}", style="bold")
        if words:
            about.append(f"  /{words}", style="yellow")
        room = (self.size.width or self.app.size.width) - len(about)
        has_room = sum(len(place.label) + 2 for place in Place) <= room
        text = Text(no_wrap=True, overflow="ellipsis")
        self._ends = []
        for place in Place if has_room else (here.place,):  # what is looked at comes before what could be
            text.append(f" {place.label} ", style="bold reverse" if place is here.place else "dim")
            self._ends.append((len(text), place))
        self.update(text + about)

    def on_click(self, event: events.Click) -> None:
        """Go to the screen under the pointer."""
        x = event.x - self.styles.padding.left
        place = next((place for end, place in self._ends if x < end), None)
        if place is not None:
            self.app.call_later(self.app.run_action, f"app.go('{place.value}')")
