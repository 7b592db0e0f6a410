"""Logging set-up: structlog to stderr, pretty on a terminal, JSON elsewhere. stdout is data."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, TextIO

import structlog

from fleetctl.kit.printable import printable, printable_tree

SECRET_KEYS = frozenset({"token", "password", "authorization", "api_key", "secret"})

LogFormat = Literal["auto", "pretty", "json"]


_json_stream: TextIO | None = None


def json_stream() -> TextIO | None:
    """Where whole JSON lines of level info may be written past structlog; None when the log is not in that form."""
    return _json_stream


def configure_logging(level: str = "info", log_format: LogFormat = "auto") -> None:
    """Route structlog and the standard library's loggers to stderr in one format."""
    pretty = log_format == "pretty" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _mask_secrets,
        structlog.processors.format_exc_info,
    ]
    renderer: Any = structlog.processors.JSONRenderer()  # spells out control characters itself
    last: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
    if pretty:
        last[1:] = [_spell_out, structlog.dev.ConsoleRenderer()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    global _json_stream
    _json_stream = None if pretty or logging.getLevelName(level.upper()) > logging.INFO else sys.stderr
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=last,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpx2", "httpcore", "httpcore2", "uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _spell_out(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    """On a terminal: an exception keeps its lines, everything else is on one."""
    return {key: (printable(value) if key == "exception" else printable_tree(value)) for key, value in event.items()}


def _mask_secrets(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    for key in event.keys() & SECRET_KEYS:
        event[key] = "***"
    return event
