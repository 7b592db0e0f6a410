"""A line of a node's log as a person reads it: when, what, then the rest. What is no JSON stays as it is. Pure."""

from __future__ import annotations

import json
from typing import Any

from fleetctl.kit.printable import one_line

_FIRST = ("timestamp", "level", "event")
_QUIET_LEVELS = ("info", "debug")


def log_words(line: str) -> str:
    """`20:23:31 sequence.finished  request_id=load-332 finish_reason=length`; what is empty is left out."""
    text = line.strip()
    if not text.startswith("{"):
        return one_line(line)
    try:
        told = json.loads(text)
    except ValueError:
        return one_line(line)
    at, level, event = (str(told.get(name) or "") for name in _FIRST)
    head = [_clock(at), level.upper() if level and level not in _QUIET_LEVELS else "", event]
    rest = [f"{name}={_value(value)}" for name, value in told.items() if name not in _FIRST and value not in (None, "")]
    return one_line(" ".join([*filter(None, head), *rest]))


def _clock(at: str) -> str:
    """Of an ISO time its time of day; anything else as it is."""
    day, separator, time = at.partition("T")
    return time[:8] if separator and day.count("-") == 2 else at


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
