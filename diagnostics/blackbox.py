"""The black box: one gzip file of JSON lines per incident, enough to read it and to replay it elsewhere.

    {"kind": "header", "format": "fleetctl.blackbox", "version": 1, "written_at", "since", "until", ...}
    {"kind": "incident", ...}              without alerts, diagnosis, runs and timeline: one line each below
    {"kind": "alert" | "diagnosis" | "run" | "event" | "around", ...}    around: an event that is not the incident's own
    {"kind": "impact", ...}                what became of the requests meanwhile, by node and outcome
    {"kind": "series", "labels": {...}, "points": [[at, value], ...]}      null: the series went stale there
    {"kind": "end", "lines": N}            lines before this one: a file cut short is noticed

Values that JSON has no number for are the strings "NaN", "+Inf" and "-Inf".
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ValidationError

from alerts.sample import is_stale_nan
from diagnostics.record import Impact, IncidentRecord
from diagnostics.redaction import redacted_tree

FORMAT = "fleetctl.blackbox"
VERSION = 1
SUFFIX = ".blackbox.jsonl.gz"
MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_TOTAL_BYTES = 512 * 1024 * 1024  # unpacked: a small hostile file must not fill the memory
MAX_SERIES = 200_000
MAX_POINTS = 20_000_000

Point = tuple[float, float | None]
"""Unix time and value; None is a stale marker."""

_PACKING = 6  # of zlib: the best takes three times as long for a few percent
_NOT_FINITE = {"NaN": math.nan, "+Inf": math.inf, "-Inf": -math.inf}
_LISTS = {"alert": "alerts", "run": "runs", "event": "timeline", "around": "around"}
_EVENTS = ("event", "around")  # they have a kind of their own, which travels as `event`


class BadBlackBoxError(Exception):
    """A file that is no readable black box. The message names the file, the line, and what is wrong."""


@dataclass(frozen=True, slots=True)
class RecordedSeries:
    """One label set and its points, in rising time."""

    labels: Mapping[str, str]  # the metric's name under "__name__"
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class BlackBox:
    """One incident with the series around it; times are Unix seconds."""

    incident: IncidentRecord
    written_at: float
    since: float  # the window of the series
    until: float
    series: tuple[RecordedSeries, ...] = ()
    software: str = ""  # what wrote it, with its version
    impact: Impact | None = None  # None: a file of before it was kept


def record_series(dumped: Iterable[tuple[dict[str, str], list[tuple[float, float]]]]) -> tuple[RecordedSeries, ...]:
    """A store's `dump(since, until)` as the black box keeps it, sorted by labels: the same facts, the same file."""
    series = [
        RecordedSeries(labels, tuple((at, None if is_stale_nan(value) else value) for at, value in points))
        for labels, points in dumped
    ]
    return tuple(sorted(series, key=lambda one: sorted(one.labels.items())))


@dataclass(frozen=True, slots=True)
class Resolution:
    """Every point from `full_from` to `full_until` (Unix seconds); outside of it the first one in each `step_s`."""

    full_from: float
    full_until: float
    step_s: float

    def thinned(self, points: Iterable[tuple[float, float]]) -> tuple[Point, ...]:
        """The points that are kept, in their order. The end of a series always is."""
        kept: list[Point] = []
        slot: float | None = None
        for at, value in points:
            if is_stale_nan(value):
                kept.append((at, None))
                slot = None
            elif self.full_from <= at <= self.full_until:
                kept.append((at, value))
            elif (own := at // self.step_s) != slot:
                kept.append((at, value))
                slot = own
        return tuple(kept)


class BlackBoxWriter:
    """Writes a black box series by series, so that memory holds one of them; the whole file or none.

    A context manager: a reader never sees half of it, a crash or an error inside leaves the old one. Only the owner may
    read it. Raises OSError.
    """

    def __init__(self, path: Path, head: BlackBox) -> None:
        """`head`: all but the series; those that it has are written first."""
        self._path = path
        self._head = head
        self._temporary = Path()
        self._raw: IO[bytes] | None = None
        self._packed: gzip.GzipFile | None = None
        self._lines = 0

    def __enter__(self) -> BlackBoxWriter:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        self._temporary, self._raw = Path(temporary), os.fdopen(handle, "wb")
        # mtime 0: the same recording gives the same bytes.
        self._packed = gzip.GzipFile(filename="", fileobj=self._raw, mode="wb", mtime=0, compresslevel=_PACKING)
        try:
            for line in _lines(self._head):
                self._write(line)
        except BaseException:
            self._abandon()
            raise
        return self

    def add(self, series: RecordedSeries) -> None:
        """Write one series."""
        self._write(_series_line(series))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._abandon()
            return
        assert self._packed is not None
        assert self._raw is not None
        try:
            self._write({"kind": "end", "lines": self._lines})
            self._packed.close()
            self._raw.flush()
            os.fsync(self._raw.fileno())
            self._raw.close()
            self._temporary.replace(self._path)
        except BaseException:
            self._abandon()
            raise
        _sync_directory(self._path.parent)

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._packed is not None
        self._packed.write(_encode(line))
        self._lines += 1

    def _abandon(self) -> None:
        for file in (self._packed, self._raw):
            if file is not None:
                with contextlib.suppress(OSError):  # of a full disk: what is left in its buffer
                    file.close()
        self._temporary.unlink(missing_ok=True)


def write(path: Path, recording: BlackBox) -> None:
    """Write the file as a whole or not at all: a reader never sees half of it, a crash leaves the old one."""
    with BlackBoxWriter(path, recording):
        pass


def read(path: Path, *, keeps: Callable[[Mapping[str, str]], bool] = lambda labels: True) -> BlackBox:
    """The recording in `path`; of its series, all of which are checked, those whose labels `keeps` accepts.

    Raises:
        BadBlackBoxError: it is missing, damaged, cut short, too large, or of a newer version.
    """
    header: dict[str, Any] | None = None
    incident: dict[str, Any] | None = None
    impact: Any = None
    series: list[RecordedSeries] = []
    num_series = points = 0
    ended = False
    number = 0
    for number, line in _decoded(path):
        kind = line.get("kind")
        if ended:
            raise BadBlackBoxError(f"{path}: line {number}: text after the end")
        if header is None:
            header = _header(path, line)
        elif kind == "incident":
            incident = {**line, "alerts": [], "runs": [], "timeline": [], "around": [], "diagnosis": None}
        elif kind == "end":
            if line.get("lines") != number - 1:
                raise BadBlackBoxError(f"{path}: {line.get('lines')} lines were written, {number - 1} are here")
            ended = True
        elif kind == "series":
            one = _series(path, number, line)
            num_series, points = num_series + 1, points + len(one.points)
            if keeps(one.labels):
                series.append(one)
            if num_series > MAX_SERIES or points > MAX_POINTS:
                raise BadBlackBoxError(f"{path}: line {number}: more than {MAX_SERIES} series or {MAX_POINTS} points")
        elif incident is None:
            raise BadBlackBoxError(f"{path}: line {number}: {kind} before the incident")
        elif kind == "diagnosis":
            incident["diagnosis"] = line
        elif kind == "impact":
            impact = line
        elif kind in _LISTS:
            incident[_LISTS[str(kind)]].append({**line, "kind": line.get("event")} if kind in _EVENTS else line)
        # Other kinds come from a later minor version: they are passed over.
    if header is None:
        raise BadBlackBoxError(f"{path}: empty")
    if not ended or incident is None:
        raise BadBlackBoxError(f"{path}: cut short after line {number}")
    try:
        record = IncidentRecord.model_validate(incident)
        counted = None if impact is None else Impact.model_validate(impact)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadBlackBoxError(f"{path}: incident.{where}: {first['msg']}") from error
    return BlackBox(
        incident=record,
        written_at=header["written_at"],
        since=header["since"],
        until=header["until"],
        series=tuple(series),
        software=str(header.get("software", "")),
        impact=counted,
    )


def is_black_box(path: Path) -> bool:
    """Whether the file is one, whatever its name: by its first line. What can't be read is none."""
    try:
        with gzip.open(path, "rb") as packed:
            line = json.loads(packed.readline(MAX_LINE_BYTES))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        return False
    return isinstance(line, dict) and line.get("kind") == "header" and line.get("format") == FORMAT


def _lines(recording: BlackBox) -> Iterator[dict[str, Any]]:
    yield {
        "kind": "header",
        "format": FORMAT,
        "version": VERSION,
        "written_at": recording.written_at,
        "since": recording.since,
        "until": recording.until,
        "software": recording.software,
    }
    record = recording.incident
    yield {"kind": "incident", **_plain(record, without={"alerts", "diagnosis", "runs", "timeline", "around"})}
    for alert in record.alerts:
        yield {"kind": "alert", **_plain(alert)}
    if record.diagnosis is not None:
        yield {"kind": "diagnosis", **_plain(record.diagnosis)}
    for run in record.runs:
        yield {"kind": "run", **_plain(run)}
    for event in record.timeline:
        yield {**_plain(event), "event": event.kind, "kind": "event"}
    for event in record.around:
        yield {**_plain(event), "event": event.kind, "kind": "around"}
    if recording.impact is not None:
        yield {"kind": "impact", **_plain(recording.impact)}
    for one in recording.series:
        yield _series_line(one)


def _series_line(one: RecordedSeries) -> dict[str, Any]:
    return {
        "kind": "series",
        "labels": dict(one.labels),
        "points": [[at, _number_out(value)] for at, value in one.points],
    }


def _plain(record: BaseModel, without: set[str] | None = None) -> dict[str, Any]:
    """JSON-ready fields without credentials; a NaN or infinite number becomes null."""
    fields: dict[str, Any] = redacted_tree(json.loads(record.model_dump_json(exclude=without)))
    return fields


def _encode(line: Mapping[str, Any]) -> bytes:
    text = json.dumps(line, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def _decoded(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    total = 0
    number = 0
    try:
        with gzip.open(path, "rb") as packed:
            while raw := packed.readline(MAX_LINE_BYTES + 1):
                number += 1
                total += len(raw)
                if len(raw) > MAX_LINE_BYTES or total > MAX_TOTAL_BYTES:
                    raise BadBlackBoxError(f"{path}: line {number}: larger than a black box may be")
                line = json.loads(raw)
                if not isinstance(line, dict):
                    raise BadBlackBoxError(f"{path}: line {number}: not a JSON object")
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadBlackBoxError(f"{path}: damaged or cut short after line {number}: {error}") from error
    except OSError as error:
        raise BadBlackBoxError(f"{path}: can't be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise BadBlackBoxError(f"{path}: line {number}: not JSON: {error}") from error


def _header(path: Path, line: Mapping[str, Any]) -> dict[str, Any]:
    if line.get("kind") != "header" or line.get("format") != FORMAT:
        raise BadBlackBoxError(f"{path}: not a black box: the first line has no format {FORMAT}")
    if line.get("version") != VERSION:
        raise BadBlackBoxError(f"{path}: version {line.get('version')}, this program reads {VERSION}; update it")
    for name in ("written_at", "since", "until"):
        if not _is_number(line.get(name)):
            raise BadBlackBoxError(f"{path}: line 1: {name}: not a time")
    return dict(line)


def _series(path: Path, number: int, line: Mapping[str, Any]) -> RecordedSeries:
    labels, points = line.get("labels"), line.get("points")
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise BadBlackBoxError(f"{path}: line {number}: labels: not a map of texts")
    if not isinstance(points, list):
        raise BadBlackBoxError(f"{path}: line {number}: points: not a list")
    decoded: list[Point] = []
    for point in points:
        if not isinstance(point, list) or len(point) != 2 or not _is_number(point[0]):
            raise BadBlackBoxError(f"{path}: line {number}: points: expected [time, value]")
        if decoded and point[0] <= decoded[-1][0]:
            raise BadBlackBoxError(f"{path}: line {number}: points: times must rise")
        decoded.append((float(point[0]), _number_in(path, number, point[1])))
    return RecordedSeries(labels, tuple(decoded))


def _number_out(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _number_in(path: Path, number: int, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if not _is_number(value):
        raise BadBlackBoxError(f"{path}: line {number}: points: {value!r} is not a value")
    assert isinstance(value, int | float)
    return float(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
