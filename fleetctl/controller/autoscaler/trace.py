"""Recorded production traffic: when requests came and how long they were."""

from __future__ import annotations

import csv
import gzip
import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fleetctl.kit.errors import BadInputError

MAX_REQUESTS = 200_000
DAY_STEPS = 10_000
_REMEDY = (
    "give a CSV with TIMESTAMP,ContextTokens,GeneratedTokens or JSON lines with timestamp, input_length, output_length"
)


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """`at_s`: seconds since the first request of the trace."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path, *, minutes: float | None = None) -> list[TracedRequest]:
    """The requests of a trace in order: the public formats of Azure (CSV) and Mooncake (JSON lines), `.gz` too.

    Raises BadInputError naming the file and the line.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: {error}", remedy=_REMEDY) from error
    lines = text.splitlines()
    rows = _json_rows(path, lines) if lines and lines[0].startswith("{") else _csv_rows(path, lines)
    found = sorted(rows, key=lambda row: row.at_s)
    if not found:
        raise BadInputError(f"{path}: has no requests", remedy=_REMEDY)
    first, end = found[0].at_s, float("inf") if minutes is None else 60 * minutes
    kept = [TracedRequest(row.at_s - first, *_lengths(row)) for row in found if row.at_s - first <= end]
    if len(kept) > MAX_REQUESTS:
        raise BadInputError(f"{path}: {len(kept)} requests", remedy=f"at most {MAX_REQUESTS}: give --minutes")
    return kept


def columns_of(requests: Iterable[TracedRequest]) -> dict[str, list[Any]]:
    """As the simulator takes them."""
    rows = list(requests)
    return {name: [getattr(row, name) for row in rows] for name in TracedRequest.__slots__}


def as_day(requests: Sequence[TracedRequest], hours: float, low_ratio: float, rate: float = 1.0) -> list[TracedRequest]:
    """The same requests in the same order over `hours`, again from the first when they end, at the rate of a day.

    The rate follows a cosine: at both ends `low_ratio` of the middle's, which is `rate` times the trace's own mean.
    Bursts of the trace stay: its time is stretched, not drawn anew. Raises BadInputError.
    """
    span_s = requests[-1].at_s
    if span_s <= 0:
        raise BadInputError("the trace has no length", remedy="give one with requests at different times")
    day_s = 3600.0 * hours
    steps = [day_s * step / DAY_STEPS for step in range(DAY_STEPS + 1)]
    spent = [rate * _day_integral(at, day_s, low_ratio) for at in steps]  # of the trace's time, rising
    found: list[TracedRequest] = []
    for repeat in range(math.ceil(spent[-1] / span_s)):
        for row in requests:
            trace_s = repeat * span_s + row.at_s
            if trace_s >= spent[-1]:
                break
            index = max(1, bisect_right(spent, trace_s))
            share = (trace_s - spent[index - 1]) / (spent[index] - spent[index - 1])
            at_s = steps[index - 1] + share * (steps[index] - steps[index - 1])
            found.append(TracedRequest(at_s, row.prompt_tokens, row.output_tokens))
    if len(found) > MAX_REQUESTS:
        raise BadInputError(f"{len(found)} requests", remedy=f"at most {MAX_REQUESTS}: give a shorter --day")
    return found


def _day_integral(at_s: float, day_s: float, low_ratio: float) -> float:
    """Seconds of the trace that have passed: the integral of its rate, `low + (1 - low) (1 - cos) / 2`."""
    turn = 2.0 * math.pi / day_s
    return low_ratio * at_s + (1.0 - low_ratio) * (at_s - math.sin(turn * at_s) / turn) / 2.0


def _lengths(row: TracedRequest) -> tuple[int, int]:
    return max(1, row.prompt_tokens), max(1, row.output_tokens)


def _csv_rows(path: Path, lines: list[str]) -> Iterator[TracedRequest]:
    for number, row in enumerate(csv.DictReader(lines), start=2):
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield TracedRequest(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInputError(f"{path}, line {number}: {error}", remedy=_REMEDY) from error


def _json_rows(path: Path, lines: list[str]) -> Iterator[TracedRequest]:
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            yield TracedRequest(float(row["timestamp"]) / 1000, int(row["input_length"]), int(row["output_length"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInputError(f"{path}, line {number}: {error}", remedy=_REMEDY) from error
