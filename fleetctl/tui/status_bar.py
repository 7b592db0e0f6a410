"""The line at the top: what fires, what serves, and whether any of it is current. A second one has traffic rules."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual import events

from fleetctl.tui.cell import Tone
from fleetctl.tui.header_view import HeaderView, header
from fleetctl.tui.place import JUMPS, Place, Visit
from fleetctl.tui.rich_text import line, paint, style_of
from fleetctl.tui.snapshot import Snapshot
from fleetctl.tui.still import Redrawn, Still


class StatusBar(Redrawn, Still):
    """The line at the top, and one for traffic rules while there are any."""

    def __init__(self, title: str) -> None:
        super().__init__(id="status")
        self._title = title
        self._shown: HeaderView | None = None

    def forget_drawn(self) -> None:
        """Draw it again."""
        self._shown = None

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Draw this snapshot's header."""
        view = header(snapshot, now)
        if view == self._shown:
            return
        self._shown = view
        bar = Table.grid(expand=True, padding=(0, 2, 0, 0))
        bar.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        bar.add_column(justify="right", no_wrap=True)
        bar.add_row(Text(f"{self._title}  ", style="bold") + line(view.facts, "  "), paint(view.link))
        if not view.rules:
            self.redraw(bar)
            return
        rules = line(view.rules, "  ")
        rules.no_wrap, rules.overflow = True, "ellipsis"
        self.redraw(Group(bar, rules))


class PlaceBar(Redrawn, Still):
    """Which screen is shown, about what, and by which filter. A click goes to another."""

    def __init__(self) -> None:
        super().__init__(id="places")
        self._shown: tuple[Visit, str, int] | None = None
        self._ends: list[tuple[int, Place]] = []

    def forget_drawn(self) -> None:
        """Draw it again."""
        self._shown = None

    def show(self, here: Visit, words: str) -> None:
        """Draw it, where it is not as before."""
        width = self.app.size.width  # its own is known only after it was laid out
        if (here, words, width) == self._shown:
            return
        self._shown = (here, words, width)
        about = Text()
        if here.subject is not None:
            about.append(f"  {here.subject}", style="bold")
        if words:
            about.append(f"  /{words}", style=style_of(Tone.WARN))
        room = width - 2 - len(about)
        has_room = sum(len(place.label) + 2 for place in Place) <= room
        text = Text(no_wrap=True, overflow="ellipsis")
        self._ends = []
        for key, place in JUMPS.items():  # where there is no room for names, the keys behind `g`
            is_here = place is here.place
            text.append(f" {place.label if has_room or is_here else key} ", style="bold reverse" if is_here else "dim")
            self._ends.append((len(text), place))
        self.redraw(text + about)

    def on_click(self, event: events.Click) -> None:
        """Go to the screen under the pointer."""
        x = event.x - self.styles.padding.left
        place = next((place for end, place in self._ends if x < end), None)
        if place is not None:
            self.app.call_later(self.app.run_action, f"app.go('{place.value}')")
