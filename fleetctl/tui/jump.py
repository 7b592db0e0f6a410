"""`g` and `'`: where the next key leads."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from fleetctl.kit.printable import one_line
from fleetctl.tui.bookmarks import Bookmark
from fleetctl.tui.place import JUMPS, Place


class Jump(ModalScreen[None]):
    """Dismissed by the next key, after that has led to its screen: a key typed behind it finds that screen, and not the
    one before, as it did where the screen was left to the dismissal's callback."""

    def __init__(self, lead: Callable[[Place], None]) -> None:
        super().__init__()
        self._lead = lead

    def compose(self) -> ComposeResult:
        """Keys and their screens."""
        table = Table.grid(padding=(0, 2))
        for key, place in JUMPS.items():
            table.add_row(Text(f"g {key}", style="cyan"), Text(place.label))
        with Vertical(id="jump"):
            yield Static(table)

    def take(self, key: str) -> None:
        """Any key ends it. The app calls this for the next key; what is typed behind it is meant for the screen that
        comes, and would be told late, and behind later keys, had it to leave this screen's queue first."""
        if (place := JUMPS.get(key)) is not None:
            self._lead(place)
        self.dismiss()


class Recall(ModalScreen[Bookmark | None]):
    """Dismissed by the next key, with the bookmark of its number."""

    def __init__(self, marks: tuple[Bookmark, ...]) -> None:
        super().__init__()
        self._marks = marks

    def compose(self) -> ComposeResult:
        """Numbers and what they lead to."""
        table = Table.grid(padding=(0, 2))
        for number, mark in enumerate(self._marks, 1):
            table.add_row(Text(str(number), style="cyan"), Text(one_line(mark.label)))
        with Vertical(id="recall"):
            yield Static(table if self._marks else Text("No bookmarks: m keeps what is shown.", style="dim"))

    def on_key(self, event: events.Key) -> None:
        """Any key ends it."""
        event.stop()
        event.prevent_default()
        if self.is_current:
            number = int(event.key) if event.key.isdigit() else 0
            self.dismiss(self._marks[number - 1] if 1 <= number <= len(self._marks) else None)
