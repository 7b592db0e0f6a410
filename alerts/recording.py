"""Recorded series from files: OpenMetrics (or Prometheus) text in which every sample has its time."""

from __future__ import annotations

import gzip
import re
import warnings
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

import numpy as np

from alerts.errors import BadExpositionError, BadRecordingError
from alerts.exposition import parse_line
from alerts.promql.nodes import Node, Selector, children
from alerts.rules import RuleGroup
from alerts.sample import NAME, LabelSet
from alerts.store import SeriesStore

MAX_SAMPLES = 200_000_000
BLOCK_BYTES = 16 * 1024 * 1024
_NEWLINE, _SPACE = np.uint8(10), np.uint8(32)
_LONG_LINE = 512  # a line with that much after the name is none of a value and a time

Points = tuple["array[int]", "array[float]"]


def recording_store() -> SeriesStore:
    """A store that forgets nothing."""
    return SeriesStore(retention_s=1e11, max_series=2_000_000, max_points=1 << 60)


def wanted_names(groups: Iterable[RuleGroup]) -> Callable[[str], bool]:
    """Which metrics the rules read: others need not be kept. Every name when a rule selects without a name."""
    matchers = []
    for group in groups:
        for rule in group.rules:
            for selector in _selectors(rule.query.root):
                for alternatives in selector.groups:
                    named = [matcher for matcher in alternatives if matcher.name == NAME]
                    if not named:
                        return lambda name: True
                    matchers.append(named[0])
    exact = {matcher.value for matcher in matchers if matcher.op == "="}
    others = [matcher for matcher in matchers if matcher.op != "="]
    return lambda name: name in exact or any(matcher.accepts(name) for matcher in others)


def _selectors(node: Node) -> list[Selector]:
    if isinstance(node, Selector):
        return [node]
    return [selector for child in children(node) for selector in _selectors(child)]


def read_recordings(paths: Iterable[Path], store: SeriesStore, wanted: Callable[[str], bool]) -> int:
    """Adds the files' wanted series to the store; the number of samples kept. `.gz` is unpacked.

    Raises BadRecordingError naming file and line.
    """
    found: dict[LabelSet, Points] = {}
    for path in paths:
        try:
            with _open(path) as raw:
                _read(path, raw, found, wanted, in_seconds=_is_openmetrics(path))
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise BadRecordingError(f"{path}: cannot be read: {error}") from None
    return load(store, found)


def load(store: SeriesStore, found: dict[LabelSet, Points]) -> int:
    """Moves the points to the store, sorted by time; of several at one time the first stays."""
    total = 0
    for labels, (times, values) in found.items():
        if not times:
            continue
        if (np.diff(np.frombuffer(times, dtype=np.int64)) <= 0).any():
            rows: dict[int, float] = {}
            for at_ms, value in zip(times, values, strict=True):
                rows.setdefault(at_ms, value)
            times, values = array("q", sorted(rows)), array("d", (rows[at_ms] for at_ms in sorted(rows)))
        store.extend(labels, times, values)
        total += len(times)
    return total


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _is_openmetrics(path: Path) -> bool:
    """OpenMetrics ends with `# EOF` and counts in seconds; the older format in milliseconds."""
    tail = b""
    with _open(path) as raw:
        if path.suffix != ".gz":
            raw.seek(0, 2)
            raw.seek(max(0, raw.tell() - 64))
        while block := raw.read(BLOCK_BYTES):
            tail = (tail + block)[-64:]
    return tail.rstrip().endswith(b"# EOF")


def _read(
    path: Path, raw: IO[bytes], found: dict[LabelSet, Points], wanted: Callable[[str], bool], *, in_seconds: bool
) -> None:
    by_text: dict[bytes, Points | None] = {}
    number, rest, ended = 1, b"", False
    while not ended:
        block = raw.read(BLOCK_BYTES)
        ended = not block
        data = rest + (block or b"\n")
        cut = data.rfind(b"\n") + 1
        data, rest = data[:cut], data[cut:]
        if len(rest) > BLOCK_BYTES:
            raise BadRecordingError(f"{path}:{number}: a line longer than {BLOCK_BYTES} bytes")
        at = 0
        while at < len(data):
            end = data.index(b"\n", at) + 1
            line = data[at:end]
            if line[0] not in b"#\n":
                text = line.rpartition(b" ")[0].rpartition(b" ")[0]
                if text not in by_text:
                    by_text[text] = _series(path, line.decode(), number, found, wanted, in_seconds=in_seconds)
                points = by_text[text]
                if data.startswith(text + b" ", end):
                    # Recordings go series by series: the lines of one are read as one array.
                    match = re.compile(rb"(?:" + re.escape(text) + rb" [^\n]*\n)+").match(data, at)
                    assert match is not None
                    end = match.end()
                    if points is not None:
                        _add_run(path, number, data[at:end], text, points, in_seconds=in_seconds)
                    number += data.count(b"\n", at, end) - 1
                elif points is not None:
                    _add_line(path, number, line, points, in_seconds=in_seconds)
            number += 1
            at = end
    if sum(len(each[0]) for each in found.values()) > MAX_SAMPLES:
        raise BadRecordingError(f"{path}: more than {MAX_SAMPLES} samples")


def _add_run(path: Path, number: int, run: bytes, text: bytes, points: Points, *, in_seconds: bool) -> None:
    """Lines of one series."""
    characters = np.frombuffer(run, dtype=np.uint8)
    ends = np.flatnonzero(characters == _NEWLINE)
    starts = np.concatenate(([0], ends[:-1] + 1)) + len(text) + 1
    # What follows the series' name in each line, as rows of one width, filled with spaces.
    if (ends - starts).max() > _LONG_LINE:
        raise BadRecordingError(f"{path}:{number}: not a value and a time")
    columns = starts[:, np.newaxis] + np.arange((ends - starts).max() + 1)
    bare = np.where(columns < ends[:, np.newaxis], characters[np.minimum(columns, len(run) - 1)], _SPACE).tobytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns of text that is no number
            numbers = np.fromstring(bare, dtype=np.float64, sep=" ")
    except (DeprecationWarning, ValueError):
        numbers = np.empty(0)
    at_ms = numbers[1::2] * (1000.0 if in_seconds else 1.0)
    if len(numbers) == 2 * len(ends) and np.all(np.abs(at_ms) < 2.0**53):
        points[0].frombytes(np.rint(at_ms).astype(np.int64).tobytes())
        points[1].frombytes(numbers[::2].tobytes())
        return
    for index, line in enumerate(run.splitlines()):  # something in it is no number: say in which line
        _add_line(path, number + index, line, points, in_seconds=in_seconds)


def _add_line(path: Path, number: int, line: bytes, points: Points, *, in_seconds: bool) -> None:
    head, _, at = line.rpartition(b" ")
    try:
        at_ms = round(float(at) * (1000.0 if in_seconds else 1.0))
        points[1].append(float(head.rpartition(b" ")[2]))
    except (ValueError, OverflowError):
        shown = line.decode(errors="replace").strip()[-60:]
        raise BadRecordingError(f"{path}:{number}: not a value and a time: {shown!r}") from None
    points[0].append(at_ms)


def _series(
    path: Path, line: str, number: int, found: dict[LabelSet, Points], wanted: Callable[[str], bool], *,
    in_seconds: bool,
) -> Points | None:  # fmt: skip
    """The series' points so far; None when no rule reads it."""
    try:
        read = parse_line(line.rstrip("\n"), number, openmetrics=in_seconds)
    except BadExpositionError as error:
        raise BadRecordingError(f"{path}:{number}: {error.reason}") from None
    if not wanted(read.labels.name):
        return None
    if read.at_ms is None:
        raise BadRecordingError(f"{path}:{number}: a sample without a time: a recording needs one on every line")
    return found.setdefault(read.labels, (array("q"), array("d")))
