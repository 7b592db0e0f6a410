"""Log lines kept off the screen while the cockpit owns the terminal."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

MAX_HELD = 500


@contextmanager
def held_logs(level: int = logging.WARNING) -> Iterator[None]:
    """Hold what is logged; afterwards, log the newest `MAX_HELD` records of at least `level` as usual.

    Our log goes to stderr, which is the terminal that the cockpit draws on: one line would tear the picture.
    """
    root = logging.getLogger()
    handlers = root.handlers[:]
    held = _Held(level)
    root.handlers[:] = [held]
    try:
        yield
    finally:
        root.handlers[:] = handlers
        for record in held.records:
            root.handle(record)


class _Held(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.records: deque[logging.LogRecord] = deque(maxlen=MAX_HELD)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
