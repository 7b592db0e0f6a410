"""What a command of fleetctl prints, in a frame over the screen: it runs while this is open, and ends with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from fleetctl.tui.shell import Command, Shell

FRAME_COLUMNS = 8  # what border and padding take
MIN_COLUMNS = 40


class CommandScreen(ModalScreen[None]):
    """Closed by the keys that leave things; `y` copies what is printed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "app.pop_screen", "Back"),
        Binding("y", "copy", "Copy"),
        Binding("j,down", "scroll_lines(1)", "Down", show=False),
        Binding("k,up", "scroll_lines(-1)", "Up", show=False),
        Binding("pagedown,space", "scroll_lines(20)", "Page down", show=False),
        Binding("pageup", "scroll_lines(-20)", "Page up", show=False),
    ]

    def __init__(self, shell: Shell, command: Command, done: Callable[[], None]) -> None:
        """`done`: called when it has ended."""
        super().__init__()
        self._shell, self._command, self._done = shell, command, done
        self._printed = ""
        self._head = Static(Text(f"{command.line}   runs", style="bold"), id="command-title")
        self._lines = VerticalScroll(id="command-lines", can_focus=False)
        self._text = Static(Text(""), id="command-text")

    def compose(self) -> ComposeResult:
        """The line that is run, and what it prints."""
        with Vertical(id="command"):
            yield self._head
            with self._lines:
                yield self._text
            yield Static(Text("Esc goes back and ends it, y copies, j k scroll", style="dim"))

    def on_mount(self) -> None:
        """Run it."""
        self.run_worker(self._run(), name="command", exit_on_error=True)

    def action_copy(self) -> None:
        """What it printed, to the clipboard of the terminal."""
        if self._printed:
            self.app.copy_to_clipboard(self._printed)
            self.app.notify(self._command.line, title="Copied what it printed", timeout=3, markup=False)

    def action_scroll_lines(self, lines: int) -> None:
        """Scroll by so many lines."""
        self._lines.scroll_relative(y=lines, animate=False)

    async def _run(self) -> None:
        columns = max(MIN_COLUMNS, self.app.size.width * 95 // 100 - FRAME_COLUMNS)
        printed = await self._shell.run(self._command.words, columns)
        self._printed = printed.text
        ended = "done" if printed.exit_code == 0 else f"exit code {printed.exit_code}"
        style = "bold" if printed.exit_code == 0 else "bold reverse"
        self._head.update(Text(f"{self._command.line}   {ended}", style=style))
        self._text.update(Text(printed.text.strip("\n") or "It printed nothing.", overflow="fold"))
        self._done()
