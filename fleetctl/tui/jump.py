"""`g`: where the next key leads."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from fleetctl.tui.place import JUMPS, Place


class Jump(ModalScreen[Place | None]):
    """Dismissed by the next key, with the screen that it leads to."""

    def compose(self) -> ComposeResult:
        """Keys and their screens."""
        table = Table.grid(padding=(0, 2))
        for key, place in JUMPS.items():
            table.add_row(Text(f"g {key}", style="cyan"), Text(place.label))
        with Vertical(id="jump"):
            yield Static(table)

    def on_key(self, event: events.Key) -> None:
        """Any key ends it. What was typed behind that key is meant for the screen that comes."""
        event.stop()
        event.prevent_default()
        if not self.is_current:
            self.app.post_message(events.Key(event.key, event.character))
            return
        self.dismiss(JUMPS.get(event.key))
