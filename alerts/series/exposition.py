"""Read Prometheus text 0.0.4 and OpenMetrics text: lines to samples.

Reads what is a sample and nothing else: HELP, TYPE and UNIT lines are skipped, exemplars are dropped. A file with a
line that is neither is refused as a whole, as Prometheus does, because half a scrape looks like vanished series.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from alerts.errors import BadExpositionError
from alerts.labels import METRIC_NAME, LabelSet

MAX_LINE_CHARS = 64 * 1024
MAX_LABELS = 128

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PLAIN_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*)"([,}])')  # as nearly all are written
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_BLANK = re.compile(r"[ \t]*")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}


@dataclass(frozen=True, slots=True)
class SampleLine:
    """One sample line. `at_ms` is the time the line itself states, None for "now", which is the usual case.

    `series_text` is the text before the value when nothing but the value follows it: the key under which the next
    scrape finds the same labels without reading them again. None when the line must be read in full each time.
    """

    labels: LabelSet
    value: float
    at_ms: int | None
    series_text: str | None


def is_openmetrics(text: str) -> bool:
    """True when the text ends as OpenMetrics must end; its timestamps are then seconds, not milliseconds."""
    return text.rstrip().endswith("# EOF")


def parse(text: str) -> list[SampleLine]:
    """All samples of one exposition, in order. Raises BadExpositionError naming the first bad line."""
    openmetrics = is_openmetrics(text)
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        if line and not line.isspace() and not line.lstrip().startswith("#"):
            lines.append(parse_line(line, number, openmetrics=openmetrics))
    return lines


def parse_line(line: str, number: int, *, openmetrics: bool) -> SampleLine:
    """One sample line, in full. Raises BadExpositionError."""
    if len(line) > MAX_LINE_CHARS:
        raise BadExpositionError(number, f"longer than {MAX_LINE_CHARS} characters")
    line = line.rstrip("\r")
    labels, at = _read_series(line, number)
    if METRIC_NAME not in labels:
        raise BadExpositionError(number, "has labels but no metric name")
    rest, _, exemplar = line[at:].partition(" # ")
    fields = rest.split()
    if not fields:
        raise BadExpositionError(number, "has no value")
    if len(fields) > 2:
        raise BadExpositionError(number, f"unexpected text after the value: {fields[2]!r}")
    value = read_value(fields[0], number)
    at_ms = _read_time(fields[1], number, openmetrics=openmetrics) if len(fields) == 2 else None
    plain = at_ms is None and not exemplar and line.endswith(fields[0]) and line[-len(fields[0]) - 1] == " "
    series_text = line[: -len(fields[0]) - 1] if plain else None
    return SampleLine(LabelSet.of(labels), value, at_ms, series_text)


def read_series(text: str) -> tuple[LabelSet, str]:
    """The labels at the start of `name{a="b"} rest`, with or without a name, and the rest.

    Raises BadExpositionError.
    """
    labels, at = _read_series(text, 1)
    return LabelSet.of(labels), text[at:]


def _read_series(line: str, number: int) -> tuple[dict[str, str], int]:
    labels: dict[str, str] = {}
    at = _skip_blank(line, 0)
    name = _NAME.match(line, at)
    if name is not None:
        labels[METRIC_NAME] = name.group()
        at = name.end()
    at = _skip_blank(line, at)
    if line[at : at + 1] == "{" and line[at : at + 2] != "{{":
        return labels, _read_labels(line, at + 1, number, labels)
    if name is None:
        raise BadExpositionError(number, f"expected a metric name, found {_excerpt(line, at)}")
    if at == name.end() and at < len(line):
        raise BadExpositionError(number, f"expected a space after the metric name, found {_excerpt(line, at)}")
    return labels, at


def read_value(text: str, number: int) -> float:
    """The number as Go reads it: decimal, hexadecimal, Inf, NaN. Raises BadExpositionError."""
    try:
        if "_" in text:
            raise ValueError
        if text[:2].lower() == "0x" or text[1:3].lower() == "0x":
            return float.fromhex(text)
        return float(text)
    except (ValueError, OverflowError):
        raise BadExpositionError(number, f"{_shorten(text)!r} is not a number") from None


def _read_time(text: str, number: int, *, openmetrics: bool) -> int:
    try:
        at_ms = float(text) * 1000 if openmetrics else float(int(text))
    except ValueError:
        raise BadExpositionError(number, f"{_shorten(text)!r} is not a timestamp") from None
    if not math.isfinite(at_ms) or abs(at_ms) >= 2**53:
        raise BadExpositionError(number, f"timestamp {_shorten(text)!r} is out of range")
    return round(at_ms)


def _read_labels(line: str, at: int, number: int, labels: dict[str, str]) -> int:
    """Reads `a="b",c="d"}` from `at` into `labels`; the position after the closing brace."""
    while True:
        while (plain := _PLAIN_LABEL.match(line, at)) is not None:
            key, text, end = plain.groups()
            _put(labels, key, text, number)
            at = plain.end()
            if end == "}":
                return at
        at = _skip_blank(line, at)
        if line[at : at + 1] == "}":
            return at + 1
        quoted = _QUOTED.match(line, at)
        label = quoted or _LABEL_NAME.match(line, at)
        if label is None:
            raise BadExpositionError(number, f"expected a label name, found {_excerpt(line, at)}")
        key = _unescape(quoted.group(1), number) if quoted else label.group()
        at = _skip_blank(line, label.end())
        if quoted and line[at : at + 1] != "=":
            _put(labels, METRIC_NAME, key, number)  # {"metric.with.dots", a="b"}
        else:
            if line[at : at + 1] != "=":
                raise BadExpositionError(number, f"expected = after label {key}, found {_excerpt(line, at)}")
            value = _QUOTED.match(line, _skip_blank(line, at + 1))
            if value is None:
                raise BadExpositionError(number, f"the value of label {key} is not a closed, quoted string")
            _put(labels, key, _unescape(value.group(1), number), number)
            at = _skip_blank(line, value.end())
        if line[at : at + 1] == ",":
            at += 1
        elif line[at : at + 1] != "}":
            raise BadExpositionError(number, f"expected , or }} after label {key}, found {_excerpt(line, at)}")


def _put(labels: dict[str, str], name: str, value: str, number: int) -> None:
    if name in labels:
        raise BadExpositionError(number, f"label {name} is given twice")
    if len(labels) >= MAX_LABELS:
        raise BadExpositionError(number, f"more than {MAX_LABELS} labels")
    labels[name] = value


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        char = match.group(1)
        if char not in _ESCAPES:
            raise BadExpositionError(number, f"unknown escape \\{char}")
        return _ESCAPES[char]

    return _ESCAPE.sub(one, text)


def _skip_blank(line: str, at: int) -> int:
    match = _BLANK.match(line, at)
    return match.end() if match else at


def _excerpt(line: str, at: int) -> str:
    return repr(_shorten(line[at:])) if at < len(line) else "the end of the line"


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "..."
