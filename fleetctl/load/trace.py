"""Recorded traffic: Mooncake's JSON lines (with shared prefixes) and Azure's CSV. Bad lines are named as path:line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fleetctl.kit.errors import BadInputError
from fleetctl.load.shape import BLOCK_TOKENS, RequestShape

MAX_TOKENS = 10_000_000
MAX_LINE_CHARS = 4_000_000
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]


class _MooncakeLine(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    timestamp: Annotated[float, Field(ge=0, allow_inf_nan=False)]  # milliseconds since the start
    input_length: Tokens
    output_length: Tokens
    hash_ids: Annotated[list[int], Field(max_length=MAX_TOKENS)] = Field(default_factory=list)


def load_trace(path: Path) -> list[RequestShape]:
    """The requests of a trace in order of arrival, by its suffix: .jsonl (Mooncake) or .csv (Azure).

    Raises BadInputError naming path and line.
    """
    readers = {".jsonl": _read_mooncake, ".csv": _read_azure}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise BadInputError(
            f"{path}: unknown kind of trace", remedy="give Mooncake's JSON lines as .jsonl or Azure's table as .csv"
        )
    try:
        shapes = list(reader(path))
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}", remedy="give an existing trace") from error
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    if not shapes:
        raise BadInputError(f"{path}: no requests in it")
    return sorted(shapes, key=lambda shape: shape.at_s)


def _read_mooncake(path: Path) -> Iterator[RequestShape]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if len(line) > MAX_LINE_CHARS:
                raise BadInputError(f"{path}:{number}: longer than {MAX_LINE_CHARS} characters")
            try:
                entry = _MooncakeLine.model_validate(json.loads(line))
            except ValidationError as error:
                first = error.errors()[0]
                raise BadInputError(f"{path}:{number}: {_place(first['loc'])}: {first['msg']}") from error
            except (ValueError, RecursionError) as error:
                raise BadInputError(f"{path}:{number}: not JSON: {error}") from error
            yield RequestShape(
                at_s=entry.timestamp / 1000,
                prompt_tokens=max(1, entry.input_length),
                output_tokens=max(1, entry.output_length),
                prefix_ids=tuple(entry.hash_ids),
            )


def _read_azure(path: Path) -> Iterator[RequestShape]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames is None or any(column not in rows.fieldnames for column in AZURE_COLUMNS):
            raise BadInputError(f"{path}:1: expected the columns {', '.join(AZURE_COLUMNS)}")
        first: datetime | None = None
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                raise BadInputError(f"{path}:{rows.line_num}: {error}") from error
            place = f"{path}:{rows.line_num}"
            at = _timestamp(row["TIMESTAMP"], place)
            first = first or at
            try:
                at_s = (at - first).total_seconds()
            except TypeError as error:
                raise BadInputError(f"{place}: TIMESTAMP: some have a time zone and some have none") from error
            yield RequestShape(
                at_s=at_s,
                prompt_tokens=max(1, _tokens(row, "ContextTokens", place)),
                output_tokens=max(1, _tokens(row, "GeneratedTokens", place)),
                block_tokens=BLOCK_TOKENS,
            )


def _timestamp(text: str | None, place: str) -> datetime:
    """The time, whose seconds have seven decimals: Python knows six."""
    whole, dot, decimals = (text or "").strip().partition(".")
    digits = decimals[: len(decimals) - len(decimals.lstrip("0123456789"))]
    try:
        return datetime.fromisoformat(
            whole + dot + digits[:6].ljust(6, "0") + decimals[len(digits) :] if dot else whole
        )
    except ValueError as error:
        raise BadInputError(f"{place}: TIMESTAMP: not a time: {text!r}") from error


def _tokens(row: dict[str, Any], column: str, place: str) -> int:
    text = row[column]
    if not isinstance(text, str) or not text.strip().isdigit() or int(text) > MAX_TOKENS:
        raise BadInputError(f"{place}: {column}: not a number of tokens: {text!r}")
    return int(text)


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "line"
