"""The one question before something changes: what exactly will happen, yes or no."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static


class Confirm(ModalScreen[bool]):
    """Dismissed with True only by the yes button or `y`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, details: Sequence[str], yes: str, *, dangerous: bool = False) -> None:
        super().__init__()
        self._question = question
        self._details = details
        self._yes = yes
        self._dangerous = dangerous

    def compose(self) -> ComposeResult:
        """The question and its two answers."""
        with Vertical(id="confirm"):
            yield Static(Text(self._question, style="bold"), id="confirm-question")
            with VerticalScroll(id="confirm-details", can_focus=False):
                yield Static(Text("\n".join(self._details)))
            with Horizontal(id="confirm-buttons"):
                yield Button(f"{self._yes} (y)", id="yes", variant="error" if self._dangerous else "success")
                yield Button("Back (n)", id="no")

    def on_mount(self) -> None:
        """Focus "yes", except where it can't be taken back."""
        # Enter alone carries out what was asked for, except where that can't be taken back.
        self.query_one("#no" if self._dangerous else "#yes", Button).focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        self.dismiss(answer)
