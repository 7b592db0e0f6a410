"""Textual's driver of a terminal, for a terminal that may be closed under the cockpit.

Textual writes in a thread of its own that ends at the first OSError, and whoever writes more than 30 times after that
waits for ever: a demo whose window was closed never stopped its fleet. It also takes the SIGCONT that comes with a
closed terminal for the end of a pause, and starts its threads once more; those read an end without end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from io import TextIOWrapper
from typing import IO, Any, cast

from textual.drivers.linux_driver import LinuxDriver


class TerminalDriver(LinuxDriver):
    """What is written to a terminal that is gone is lost, nobody waits for it, and the app ends."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self._file is not None:
            self._file = cast("TextIOWrapper", _UnlessGone(self._file, self._end))

    def _sigcont_application(self, *_: object) -> None:
        if os.isatty(self.fileno):
            super()._sigcont_application()
        else:
            self._end()

    def _end(self) -> None:
        self._app.call_later(self._app.exit)


class _UnlessGone:
    """The part of a file that Textual's writer uses."""

    def __init__(self, file: IO[str], on_gone: Callable[[], None]) -> None:
        self._file = file
        self._on_gone = on_gone
        self._is_gone = False

    def write(self, text: str) -> None:
        self._tried(lambda: self._file.write(text))

    def flush(self) -> None:
        self._tried(self._file.flush)

    def fileno(self) -> int:
        return self._file.fileno()

    def _tried(self, write: Callable[[], object]) -> None:
        if self._is_gone:
            return
        try:
            write()
        except OSError:
            self._is_gone = True
            self._on_gone()
