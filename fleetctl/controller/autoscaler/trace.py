"""Recorded production traffic: when requests came and how long they were."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fleetctl.kit.errors import BadInputError

MAX_REQUESTS = 200_000
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
