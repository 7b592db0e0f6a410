"""Lengths of time as Prometheus and Alertmanager write them. Light: the command line imports it too."""

from __future__ import annotations

import re

from alerts.errors import AlertsError

_UNIT_MS = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION = re.compile("".join(rf"(?:([0-9]{{1,15}}){unit})?" for unit in _UNIT_MS))
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_DECIMAL = re.compile(r"([0-9]{1,15}\.[0-9]{1,9})(ms|[ywdhms])")
_LONGEST_S = 2.0**63 / 1e9  # Go counts nanoseconds in 64 bits


class BadDurationError(AlertsError):
    """A text that is no duration; its message has the remedy."""


def parse_duration_s(text: str, *, typed: bool = False) -> float:
    """Seconds in `500ms`, `1h30m` or `1d12h`: whole numbers, units from large to small, each once; `0` needs none.

    `typed`: as people type it, on a command line or a runbook page: a plain number is seconds, and one unit may have a
    fraction (`1.5h`). Rule and test files do not have that: Prometheus would refuse them. Raises BadDurationError with
    the remedy in its message.
    """
    match = _DURATION.fullmatch(text) if text else None
    if match is not None:
        counts = zip(match.groups(), _UNIT_MS.values(), strict=True)
        seconds = sum(int(count) * unit_ms for count, unit_ms in counts if count) / 1000
    elif text == "0" or (typed and _NUMBER.fullmatch(text)):
        seconds = float(text)
    elif typed and (decimal := _DECIMAL.fullmatch(text)):
        seconds = float(decimal[1]) * _UNIT_MS[decimal[2]] / 1000
    else:
        raise BadDurationError(f"{text[:50]!r} is not a duration{_remedy(text)}")
    if seconds >= _LONGEST_S:
        raise BadDurationError(f"{text[:50]!r} is longer than 292 years")
    return seconds


def _remedy(text: str) -> str:
    if _NUMBER.fullmatch(text) and text.isdecimal():
        return f": write {text}s for seconds"
    if re.fullmatch(r"(?:[0-9]{1,15}(?:ms|[ywdhms]))+", text):
        return ": units go from large to small, each once, as in 1d12h"
    return " such as 500ms, 30s, 5m, 1h30m or 1d12h"
