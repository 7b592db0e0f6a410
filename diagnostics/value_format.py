"""Numbers as a person reads them: one place decides how a value of each unit is written."""

from __future__ import annotations

from typing import Literal

Unit = Literal["ratio", "points", "seconds", "tokens", "times", "per_second", "count", "before_onset"]
NONE_ON_RECORD_S = 1e8  # of `before_onset`: whoever tells was asked, and knows of none
BEFORE, AFTER, AT_ONCE = "before it began", "after it began", "as it began"


def format_value(value: float | None, unit: str) -> str:
    """`value` with its unit, mostly in at most ten characters; None is "unknown", never a number."""
    if value is None:
        return "unknown"
    if unit == "ratio":
        percent = value * 100
        return f"{percent:.0f} %" if abs(percent) >= 10 else f"{percent:.2g} %"
    if unit == "points":
        return f"{value * 100:.0f} points"  # of per cent: from 72 to 45 % are 27 of them, and no fall by 27 %
    if unit == "seconds":
        return format_seconds(value)
    if unit == "before_onset":
        return format_before(value)
    if unit == "tokens":
        return f"{value:,.0f} tokens"
    if unit == "times":
        return f"{value:.1f}×" if abs(value) >= 1 or value == 0 else f"{value:.2g}×"  # 0.75× is less than 0.8×
    if unit == "per_second":
        return f"{value:.3g}/s"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def format_before(seconds: float) -> str:
    """How long before an incident began something happened, or how long after: "9 s after it began".

    After: what caused it is told with a node's next scrape, and a rollout goes on while it already shows.
    """
    if seconds >= NONE_ON_RECORD_S:
        return "none on record"
    if abs(seconds) < 1:
        return AT_ONCE
    whole = abs(round(seconds))
    length = f"{whole} s" if whole < 10 else format_seconds(whole)
    return f"{length} {BEFORE if seconds > 0 else AFTER}"


def came_after(told: str) -> bool:
    """Whether what was told with `format_before` lies wholly after the beginning: it is no cause of it."""
    return AFTER in told and BEFORE not in told and AT_ONCE not in told


def format_seconds(seconds: float | None) -> str:
    """A length of time: "12 ms", "1.4 s", "75 s", "4 min 05 s", "3 h 20 min"."""
    if seconds is None:
        return "unknown"
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
