"""The notation in which promtool's and Prometheus' own tests write series: `up{job="a"}` and `0+10x5 _ stale`."""

from __future__ import annotations

import re

from alerts.errors import AlertsError, BadExpositionError
from alerts.labels import LabelSet
from alerts.sample import STALE_NAN
from alerts.series.exposition import read_series

MAX_VALUES = 1_000_000

_NUMBER = r"[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[iI]nf|[nN]a[nN])"
_REPEATED = re.compile(rf"({_NUMBER})(?:([-+])({_NUMBER}))?x(\d+)")
_ONE = re.compile(_NUMBER)
_HISTOGRAM = re.compile(r"\{\{.*?\}\}(?:[-+]\{\{.*?\}\})?(?:x\d+)?")


class BadNotationError(AlertsError):
    """A text that is not promtool's notation of series or values."""


class NativeHistogramError(BadNotationError):
    """The text holds a native histogram, which we do not keep."""


def parse_series(text: str) -> tuple[LabelSet, str]:
    """Labels of a series and the text after it. Raises BadNotationError."""
    try:
        return read_series(text)
    except BadExpositionError as error:
        raise BadNotationError(f"{text.strip()!r}: {error.reason}") from None


def parse_values(text: str) -> list[float | None]:
    """One entry per step: a number, STALE_NAN, or None for a gap. Raises BadNotationError."""
    if _HISTOGRAM.search(text):
        raise NativeHistogramError("native histograms are not supported")
    values: list[float | None] = []
    for word in text.split():
        if word == "_":
            values.append(None)
        elif word == "stale":
            values.append(STALE_NAN)
        elif word.startswith("_x") and word[2:].isdecimal():
            values.extend([None] * _checked(int(word[2:])))
        elif match := _REPEATED.fullmatch(word):
            first, sign, step, times = match.groups()
            start = parse_number(first)
            change = parse_number(step) * (-1.0 if sign == "-" else 1.0) if step else 0.0
            value = start
            for _ in range(_checked(int(times)) + 1):
                values.append(value)
                value += change
        elif _ONE.fullmatch(word):
            values.append(parse_number(word))
        else:
            raise BadNotationError(f"{word!r} is not a value such as 1, 0+10x5, _, _x3 or stale")
        _checked(len(values))
    return values


def parse_number(text: str) -> float:
    """A number as the notation writes it. Raises BadNotationError."""
    try:
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except ValueError:
        raise BadNotationError(f"{text!r} is not a number") from None


def _checked(count: int) -> int:
    if count > MAX_VALUES:
        raise BadNotationError(f"more than {MAX_VALUES} values in one series")
    return count
