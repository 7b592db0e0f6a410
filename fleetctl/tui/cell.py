"""A text with its meaning, and how numbers are written: pure, no Textual, no colours, only tones.

Rules of the screen: unknown is "-" and never 0; a value that is too old is dim and ends in "?".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from fleetctl.wire.diagnosis import NONE_ON_RECORD_S
from fleetctl.wire.node import Signal

STALE_AFTER_S = 15.0  # three scrapes of 5 s: one may be missed without alarm
UNKNOWN = "-"
BLOCKS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"

Formatter = Callable[[float], str]


class Tone(StrEnum):
    """What a text means; the style sheet of the terminal decides how that looks."""

    PLAIN = "plain"
    GOOD = "good"
    BUSY = "busy"  # on its way somewhere, by our will
    WARN = "warn"
    BAD = "bad"
    DIM = "dim"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Cell:
    """A text, its tone, and whether it stands at the right."""

    text: str
    tone: Tone = Tone.PLAIN
    right: bool = False  # numbers line up at the right


@dataclass(frozen=True, slots=True)
class StorySection:
    """A heading, a table under it, and lines under that."""

    heading: Cell
    rows: tuple[tuple[Cell, ...], ...] = ()
    notes: tuple[Cell, ...] = ()


def span(seconds: float | None) -> str:
    """A length of time in at most six characters: "210ms", "1.4s", "75s", "12m", "3h", "2d"."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return "0s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 172_800 else f"{whole // 86_400}d"


def clip(text: str, width: int) -> str:
    """The text, cut with an ellipsis where it is wider."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def age(seconds: float | None) -> str:
    """Whole seconds and up: an age in milliseconds is noise."""
    return UNKNOWN if seconds is None else span(max(0.0, seconds)) if seconds >= 9.95 else f"{max(0.0, seconds):.0f}s"


def signal_cell(
    signal: Signal,
    drift_s: float,
    write: Formatter,
    bad_above: float | None = None,
    warn_above: float | None = None,
) -> Cell:
    if signal.value is None or signal.value != signal.value:
        return Cell(UNKNOWN, Tone.DIM, right=True)
    text = write(signal.value)
    if signal.age_s is None or signal.age_s + drift_s > STALE_AFTER_S:
        return Cell(f"{text}?", Tone.DIM, right=True)
    tone = Tone.PLAIN
    if bad_above is not None and signal.value > bad_above:
        tone = Tone.BAD
    elif warn_above is not None and signal.value > warn_above:
        tone = Tone.WARN
    return Cell(text, tone, right=True)


def age_tone(heard_s: float | None) -> Tone:
    if heard_s is None:
        return Tone.DIM
    return Tone.BAD if heard_s > STALE_AFTER_S else Tone.PLAIN


def unknown_cell() -> Cell:
    """Not known, in a column of numbers."""
    return Cell(UNKNOWN, Tone.DIM, right=True)


def bar(ratio: float, width: int) -> str:
    """A ratio as a bar of so many cells, to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, ratio)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(values: tuple[float | None, ...], width: int) -> str:
    """The last values as blocks between their lowest and highest; a gap where one was not known."""
    shown = values[-width:]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (high - low) / (len(BLOCKS) - 1)
    text = "".join(" " if v is None else BLOCKS[0] if step == 0 else BLOCKS[round((v - low) / step)] for v in shown)
    return text.rjust(width)


def clock_time(at: float) -> str:
    """Time of day in UTC, with seconds."""
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%H:%M:%S")


def day_time(at: float) -> str:
    """Time of day in UTC."""
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%H:%M")


def day(at: float) -> str:
    """The date in UTC."""
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%b %d")


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 node", "2 nodes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def whole(value: float) -> str:
    """Without decimals."""
    return f"{value:.0f}"


def percent(value: float) -> str:
    """A ratio in percent."""
    return f"{value * 100:.0f}%"


def rate(value: float) -> str:
    """A rate in at most six characters."""
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}" if value < 99_999.5 else f"{value / 1000:.0f}k"


def quantity(value: float | None, unit: str) -> str:
    """A measured value in its unit: "27%", "1.2s", "3.4×", "8,192 tok"; "-" when not known."""
    if value is None:
        return UNKNOWN
    if unit == "ratio":
        return f"{value * 100:.3g}%"
    if unit == "points":
        return f"{value * 100:.0f} points"
    if unit == "seconds":
        return span(value)
    if unit == "before_onset":
        if value >= NONE_ON_RECORD_S:
            return "none on record"
        return f"{span(abs(value))} {'before' if value > 0 else 'after'} it began"
    if unit == "times":
        return f"{value:.1f}×"
    if unit == "tokens":
        return f"{value:,.0f} tok"
    return f"{value:.3g}/s" if unit == "per_second" else f"{value:.4g}"
