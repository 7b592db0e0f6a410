"""Numbers as Go and Prometheus print them in annotations."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np

_LARGE = ("k", "M", "G", "T", "P", "E", "Z", "Y")
_LARGE_1024 = ("ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")
_SMALL = ("m", "u", "n", "p", "f", "a", "z", "y")


def plain(value: float) -> str:
    """Go's %v: the shortest text that reads back as the number, with an exponent from 1e+06 and below 1e-04."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return np.format_float_positional(value, trim="-")
    return np.format_float_scientific(value, trim="-", exp_digits=2)


def humanize(value: float) -> str:
    """Four significant digits with an SI prefix: `1.234k`, `12m`."""
    return _prefixed(value, 1000.0, _LARGE)


def humanize1024(value: float) -> str:
    """Four significant digits with a binary prefix: `1.5ki`."""
    if abs(value) <= 1 or not math.isfinite(value):
        return _significant(value)
    prefix = ""
    for prefix_ in _LARGE_1024:
        if abs(value) < 1024:
            break
        prefix = prefix_
        value /= 1024
    return _significant(value) + prefix


def humanize_percentage(value: float) -> str:
    """A ratio as percent, four significant digits: `12.34%`."""
    return _significant(value * 100) + "%"


def humanize_duration(value: float) -> str:
    """Seconds as `1d 2h 3m 4s`, or with four significant digits below a minute."""
    if not math.isfinite(value):
        return _significant(value)
    if value == 0:
        return "0s"
    if abs(value) < 1:
        return _prefixed(value, 1000.0, ()) + "s"
    sign = "-" if value < 0 else ""
    value = abs(value)
    minutes, seconds = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{sign}{days}d {hours}h {minutes}m {seconds}s"
    if hours:
        return f"{sign}{hours}h {minutes}m {seconds}s"
    if minutes:
        return f"{sign}{minutes}m {seconds}s"
    return f"{sign}{_significant(value)}s"


def humanize_timestamp(value: float) -> str:
    """Unix seconds in UTC, as Go prints a time.Time."""
    if not math.isfinite(value):
        return _significant(value)
    moment = datetime.fromtimestamp(math.trunc(value * 1000) / 1000, UTC)  # Prometheus counts in milliseconds
    fraction = f"{moment:.%f}".rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction} +0000 UTC"


def _prefixed(value: float, base: float, large: tuple[str, ...]) -> str:
    if value == 0 or not math.isfinite(value):
        return _significant(value)
    prefix = ""
    if abs(value) >= 1:
        for name in large:
            if abs(value) < base:
                break
            prefix = name
            value /= base
    else:
        for name in _SMALL:
            if abs(value) >= 1:
                break
            prefix = name
            value *= base
    return _significant(value) + prefix


def _significant(value: float) -> str:
    """Four significant digits, as Go's %.4g."""
    if not math.isfinite(value):
        return plain(value)
    return f"{value:.4g}"


def duration(value: float) -> str:
    """Seconds as Go writes a time.Duration: `1h2m3.5s`, `1.5ms`."""
    if not math.isfinite(value) or value == 0:
        return "0s" if value == 0 else plain(value)
    sign, rest = ("-" if value < 0 else ""), abs(value)
    for unit, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if rest < size * 1000:
            return f"{sign}{plain(round(rest / size, 9))}{unit}"
    minutes, seconds = divmod(round(rest, 9), 60)
    hours, minutes = divmod(int(minutes), 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{head}{plain(round(seconds, 9))}s"
