"""The one question before something changes: what exactly will happen, yes or no. What is dangerous is typed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static


class Confirm(ModalScreen[str | None]):
    """Dismissed with the text that was typed ("" where none is asked for), or None: no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n", "answer(False)", "No"),
        Binding("escape", "answer(False)", "No", show=False),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, details: Sequence[str], yes: str, *, name: str = "", ask: str = "") -> None:
        """`name`: has to be typed before a yes counts. `ask`: a text to type, which is the answer."""
        super().__init__()
        self._question = question
        self._details = details
        self._yes = yes
        self._name = name
        self._input = Input(placeholder=f"type {name}" if name else ask, id="confirm-name") if name or ask else None

    def compose(self) -> ComposeResult:
        """The question and its two answers."""
        with Vertical(id="confirm", classes="-dangerous" if self._name else ""):
            yield Static(Text(self._question, style="bold"), id="confirm-question")
            with VerticalScroll(id="confirm-details", can_focus=False):
                yield Static(Text("\n".join(line for line in self._details if line)))
            if self._input is not None:
                yield self._input
            with Horizontal(id="confirm-buttons"):
                key = "Enter" if self._input is not None else "y"
                back = "Esc" if self._input is not None else "n"
                yield Button(
                    f"{self._yes} ({key})",
                    id="yes",
                    variant="error" if self._name else "success",
                    disabled=bool(self._name),
                )
                yield Button(f"Back ({back})", id="no")

    def on_mount(self) -> None:
        """Enter alone carries out what was asked for, except where a name is asked for."""
        (self._input if self._input is not None else self.query_one("#yes", Button)).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The right name makes a yes possible."""
        self.query_one("#yes", Button).disabled = bool(self._name) and event.value.strip() != self._name

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in the line is a yes, once it holds what it has to."""
        event.stop()
        self.action_answer(True)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_answer(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        if not self.is_current:
            return  # it was answered: a key was pressed twice
        text = self._input.value.strip() if self._input is not None else ""
        if not answer:
            self.dismiss(None)
        elif not self._name or text == self._name:
            self.dismiss(text)


class Told(ModalScreen[None]):
    """Something to read: what a dry run would do."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "app.pop_screen", "Back")]

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._title, self._lines = title, lines

    def compose(self) -> ComposeResult:
        """The title, and the lines under it."""
        with Vertical(id="told"):
            yield Static(Text(self._title, style="bold reverse"), id="told-title")
            with VerticalScroll(id="told-lines"):
                yield Static(Text("\n".join(self._lines)))
            yield Static(Text("Enter goes back", style="dim"))
