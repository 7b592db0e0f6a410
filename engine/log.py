"""Where a node's events go: structlog to stderr, JSON lines unless stderr is a terminal.

stdout is data and stays free. Library logs (uvicorn, asyncio) come out of the same door, from WARNING up.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

import structlog
from structlog.typing import Processor


class _Stderr:
    """Whatever sys.stderr is at the moment: a progress bar puts itself in between while it is drawn."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _console_renderer() -> structlog.dev.ConsoleRenderer:
    # Not the default for exceptions: it prints local variables, and prompts and tokens are among them.
    return structlog.dev.ConsoleRenderer(
        colors="NO_COLOR" not in os.environ,
        pad_event_to=20,
        pad_level=False,
        exception_formatter=structlog.dev.plain_traceback,
    )


@contextmanager
def events_on_stderr() -> Iterator[None]:
    """For a command that prints data on stdout; before and after it events go where they went."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=sys.stderr))
    try:
        yield
    finally:
        structlog.configure(**before)


def configure_logging(*, level: str = "INFO", pretty: bool | None = None, **bound: str) -> None:
    """Sends structlog and the standard library's logging to stderr; `bound` facts appear in every event.

    `pretty` None asks whether stderr is a terminal.
    """
    if pretty is None:
        pretty = sys.stderr.isatty()
    stderr = cast("TextIO", _Stderr()) if pretty else sys.stderr
    minimum = logging.getLevelNamesMapping()[level]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        if pretty
        else structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[Processor] = (
        [_console_renderer()] if pretty else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(minimum),
        logger_factory=structlog.WriteLoggerFactory(file=stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
