"""The line at the bottom into which a filter or a command is typed, with what would complete it above."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Label, Static

Purpose = Literal["filter", "order"]
MARKS: dict[Purpose, str] = {"filter": "/", "order": ":"}
MAX_HISTORY = 100


class PromptLine(Vertical):
    """Hidden until it is opened."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", show=False),
        Binding("tab", "complete", "Complete", show=False, priority=True),
        Binding("up", "recall(-1)", show=False),
        Binding("down", "recall(1)", show=False),
    ]

    class Typed(Message):
        """The text as it stands: a filter works while it is typed."""

        def __init__(self, purpose: Purpose, text: str) -> None:
            super().__init__()
            self.purpose, self.text = purpose, text

    class Done(Typed):
        """The person pressed Enter."""

    class Left(Message):
        """The person went back without it."""

        def __init__(self, purpose: Purpose) -> None:
            super().__init__()
            self.purpose = purpose

    def __init__(self, complete: Callable[[str], list[str]]) -> None:
        super().__init__(id="prompt")
        self._complete = complete
        self.display = False
        self._purpose: Purpose = "filter"
        self._history: list[str] = []
        self._at = 0
        self._offers = Static(id="prompt-offers")
        self._mark = Label("/", id="prompt-mark")
        self._input = Input(id="prompt-input", compact=True, select_on_focus=False)

    def compose(self) -> ComposeResult:
        """What would complete it; the line."""
        yield self._offers
        with Horizontal(id="prompt-line"):
            yield self._mark
            yield self._input

    @property
    def is_open(self) -> bool:
        """Whether it takes what is typed."""
        return bool(self.display)

    def open(self, purpose: Purpose, text: str = "") -> None:
        """Show it for a filter or a command."""
        self._purpose = purpose
        self._at = len(self._history)
        self._mark.update(MARKS[purpose])
        self.display = True
        self._input.value = text
        self._input.cursor_position = len(text)
        self.screen.set_focus(self._input)  # now: `focus` would let the next key go where the last one went
        self._offer()

    def close(self) -> None:
        """Hide it."""
        self.display = False

    def on_input_changed(self, event: Input.Changed) -> None:
        """Tell the filter so far; offer what completes a command."""
        event.stop()
        if not self.is_open:
            return
        self._offer()
        if self._purpose == "filter":
            self.post_message(self.Typed("filter", event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """It is typed."""
        event.stop()
        text = event.value.strip()
        if self._purpose == "order" and text and self._history[-1:] != [text]:
            self._history = [*self._history, text][-MAX_HISTORY:]
        self.close()
        self.post_message(self.Done(self._purpose, text))

    def action_leave(self) -> None:
        """Back without it."""
        self.close()
        self.post_message(self.Left(self._purpose))

    def action_complete(self) -> None:
        """Take what all completions begin with; the first where nothing more is common."""
        found = self._complete(self._input.value) if self._purpose == "order" else []
        if found:
            common = _common(found)
            grown = common if len(common) > len(self._input.value) else found[0]
            self._input.value = grown + (" " if len(found) == 1 or grown == found[0] else "")
            self._input.cursor_position = len(self._input.value)

    def action_recall(self, by: int) -> None:
        """An earlier command."""
        if self._purpose != "order" or not self._history:
            return
        self._at = max(0, min(len(self._history), self._at + by))
        self._input.value = self._history[self._at] if self._at < len(self._history) else ""
        self._input.cursor_position = len(self._input.value)

    def _offer(self) -> None:
        if self._purpose == "filter":
            self._offers.update(Text("text, zone=a, !word; Enter keeps it, Esc ends it", style="dim"))
            return
        found = self._complete(self._input.value)
        words = [one.rpartition(" ")[2] for one in found[:12]]
        self._offers.update(Text("  ".join(words) or "Enter does it, Esc goes back", style="dim", overflow="ellipsis"))


def _common(lines: list[str]) -> str:
    """The longest beginning of all."""
    first, last = min(lines), max(lines)
    length = next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:length]
