"""`?`: the keys of the screen that is shown, then those of every screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

Keys = Sequence[tuple[str, str]]


class HelpScreen(ModalScreen[None]):
    """Closed by any of the keys that open or leave things."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "app.pop_screen", "Back")]

    def __init__(self, title: str, parts: Sequence[tuple[str, Keys]]) -> None:
        super().__init__()
        self._title, self._parts = title, parts

    def compose(self) -> ComposeResult:
        """Each part's keys under its name."""
        with Vertical(id="help"):
            yield Static(Text(f"Keys of {self._title}", style="bold"))
            with VerticalScroll(id="help-keys"):
                for name, keys in self._parts:
                    yield Static(Text(f"\n{name}", style="bold") if name else Text(""))
                    table = Table.grid(padding=(0, 2))
                    table.add_column(no_wrap=True)
                    table.add_column()
                    for key, what in keys:
                        table.add_row(Text(key, style="cyan"), Text(what))
                    yield Static(table)
            yield Static(Text("Esc goes back", style="dim"))
