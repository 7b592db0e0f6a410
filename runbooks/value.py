"""Typed values of runbook inputs and command options: what text is accepted, and as what.

Values end up in commands and in PromQL label matchers, so each type admits only text that can't close a quote, start
an option or add a word. No shell is ever involved.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from enum import StrEnum

from alerts.duration import BadDurationError, parse_duration_s
from runbooks.errors import BadInputError

MAX_DURATION_S = 24 * 3600.0
MAX_TEXT_CHARS = 1000


class ValueType(StrEnum):
    """The types of page inputs."""

    NODE = "node"  # a node that exists
    NEW_NODE = "new_node"  # a name that no node has yet
    DURATION = "duration"  # "30s", "2m", "1h" or plain seconds
    STRING = "string"  # a label value: letters, digits and . _ : / @ + -
    NUMBER = "number"  # not negative
    POOL = "pool"  # a pool that has nodes
    SIZE = "size"  # of a pool: "5", or "+2" for more than it has
    THRESHOLD = "threshold"  # of a prompt: "32k" tokens, "5s" of prefill, "25%" of a KV cache
    RATIO = "ratio"  # above 0 and below 1: 0.25 or 25%


# fullmatch throughout: `$` would let a trailing newline pass
_NODE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_STRING = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,9})?")
_SIZE = re.compile(r"\+?\d{1,4}")
_TOKENS = re.compile(r"(\d{1,9})(k|M)?")
_RATIO = re.compile(r"0?\.\d{1,6}")
_NOTHING = re.compile(r"0(\.0{1,6})?%?")
_SHARE_PERCENT = re.compile(r"(\d{1,2}(?:\.\d{1,4})?)%")
_PERCENT = re.compile(r"(\d{1,3})%")
_UNITS = {None: 1, "k": 1024, "M": 1024**2}

EXAMPLES = {
    ValueType.NODE: "node-1",
    ValueType.NEW_NODE: "node-1b",
    ValueType.DURATION: "30s",
    ValueType.STRING: "default",
    ValueType.NUMBER: "1",
    ValueType.POOL: "default",
    ValueType.SIZE: "+1",
    ValueType.THRESHOLD: "32k",
    ValueType.RATIO: "0.25",
}


def parse_duration(text: str) -> float:
    """Seconds in "30s", "1h30m", "1.5h" or "45": the house's notation, at most 24 hours. Raises BadInputError."""
    try:
        seconds = parse_duration_s(text, typed=True)
    except BadDurationError:
        raise BadInputError(f"{_shown(text)} is not a duration", remedy="write it like 30s, 2m or 1h30m") from None
    if seconds > MAX_DURATION_S:
        raise BadInputError(f"{text!r} is more than 24h", remedy="give at most 24h")
    return seconds


class ThresholdUnit(StrEnum):
    """What a threshold counts."""

    TOKENS = "tokens"
    SECONDS = "seconds"
    RATIO = "ratio"


def parse_threshold(text: str) -> tuple[ThresholdUnit, float]:
    """Tokens in `32k` (32,768, as context lengths are counted), seconds in `5s`, a ratio in `25%`; above 0.

    Raises BadInputError.
    """
    if (match := _TOKENS.fullmatch(text)) and int(match[1]):
        return ThresholdUnit.TOKENS, int(match[1]) * _UNITS[match[2]]
    if (match := _PERCENT.fullmatch(text)) and 0 < int(match[1]) <= 100:
        return ThresholdUnit.RATIO, int(match[1]) / 100
    try:
        seconds = parse_duration(text) if not text.isdigit() else 0.0
    except BadInputError:
        seconds = 0.0
    if not seconds:
        raise BadInputError(f"{_shown(text)} is not a threshold", remedy="write it like 32k (tokens), 5s or 25%")
    return ThresholdUnit.SECONDS, seconds


def parse_ratio(text: str) -> float:
    """A share in `0.25` or `25%`, above 0 and below 1. Raises BadInputError."""
    percent = _SHARE_PERCENT.fullmatch(text)
    ratio = float(percent[1]) / 100 if percent else float(text) if _RATIO.fullmatch(text) else 0.0
    if not 0 < ratio < 1:
        raise BadInputError(f"{_shown(text)} is not a share", remedy="write it like 0.25 or 25%: above 0, below 1")
    return ratio


def parse_share(text: str) -> float:
    """As `parse_ratio`, or 0: none at all. Raises BadInputError."""
    return 0.0 if _NOTHING.fullmatch(text) else parse_ratio(text)


def check_value(value_type: ValueType, text: str) -> str:
    """The value itself, once it is known to be of its type. Raises BadInputError without the name of the input."""
    match value_type:
        case ValueType.NODE | ValueType.NEW_NODE:
            if not _NODE.fullmatch(text):
                raise BadInputError(
                    f"{_shown(text)} is not a node name",
                    remedy="use a-z, 0-9 and -, at most 63 characters, not starting with -",
                )
        case ValueType.DURATION:
            parse_duration(text)
        case ValueType.THRESHOLD:
            parse_threshold(text)
        case ValueType.RATIO:
            parse_ratio(text)
        case ValueType.STRING | ValueType.POOL:
            if not _STRING.fullmatch(text):
                raise BadInputError(
                    f"{_shown(text)} is not a plain string",
                    remedy="start with a letter or digit, then letters, digits and . _ : / @ + - (at most 200)",
                )
        case ValueType.NUMBER:
            if not _NUMBER.fullmatch(text):
                raise BadInputError(f"{_shown(text)} is not a number", remedy="write it like 3 or 0.5")
        case ValueType.SIZE:
            if not _SIZE.fullmatch(text):
                raise BadInputError(f"{_shown(text)} is not a size", remedy="write it like 5 or +2")
    return text


def check_text(text: str) -> str:
    """The text, once it is one line of a length that people read. Raises BadInputError."""
    if not text.strip() or not text.isprintable() or len(text) > MAX_TEXT_CHARS:
        raise BadInputError(f"{_shown(text)} is no line of text", remedy=f"write 1 to {MAX_TEXT_CHARS} characters")
    return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A remedy: the nearest known word, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(names)}" if names else "there are none"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
