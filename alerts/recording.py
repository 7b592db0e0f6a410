"""Recorded series from files: OpenMetrics (or Prometheus) text in which every sample has its time."""

from __future__ import annotations

import gzip
import re
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import IO

import numpy as np

from alerts.arrays import Floats, Times
from alerts.errors import BadExpositionError, BadRecordingError
from alerts.exposition import parse_line
from alerts.promql.nodes import Node, Selector, children
from alerts.rules import RuleGroup
from alerts.sample import NAME, LabelSet
from alerts.store import SeriesStore

MAX_SAMPLES = 200_000_000
BLOCK_BYTES = 16 * 1024 * 1024
_REACH = 4096

Points = tuple["array[int]", "array[float]"]


def recording_store() -> SeriesStore:
    """A store that forgets nothing."""
    return SeriesStore(is_recording=True, max_series=2_000_000)


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
    together: dict[bytes, tuple[Times, list[LabelSet], list[Floats]]] = {}  # series that were scraped at the same times
    for labels, (times, values) in found.items():
        if not times:
            continue
        at, numbers = np.frombuffer(times, dtype=np.int64), np.frombuffer(values, dtype=np.float64)
        if (np.diff(at) <= 0).any():
            at, first = np.unique(at, return_index=True)
            numbers = numbers[first]
        group = together.setdefault(at.tobytes(), (at, [], []))
        group[1].append(labels)
        group[2].append(numbers)
        total += len(at)
    found.clear()
    for at, entries, rows in together.values():
        store.extend_all(entries, at, np.stack(rows))
        rows.clear()
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
    number = 1
    for data in _blocks(raw):
        if not data.endswith(b"\n"):
            raise BadRecordingError(f"{path}: after line {number}: a line longer than {BLOCK_BYTES} bytes")
        at = 0
        while at < len(data):
            end = data.index(b"\n", at) + 1
            if data[at] not in b"#\n":
                line = data[at:end]
                text = line.rpartition(b" ")[0].rpartition(b" ")[0]
                if text not in by_text:
                    by_text[text] = _series(path, line.decode(), number, found, wanted, in_seconds=in_seconds)
                points = by_text[text]
                if text and data.startswith(text + b" ", end):
                    # Recordings go series by series: the lines of one are read as one array.
                    end, count, bare = _run(data, at, text + b" ")
                    if points is not None:
                        _add_run(path, number, data[at:end], bare, count, points, in_seconds=in_seconds)
                    number += count - 1
                elif points is not None:
                    _add_line(path, number, line, points, in_seconds=in_seconds)
            number += 1
            at = end
    if sum(len(each[0]) for each in found.values()) > MAX_SAMPLES:
        raise BadRecordingError(f"{path}: more than {MAX_SAMPLES} samples")


def _blocks(raw: IO[bytes]) -> Iterator[bytes]:
    """Whole lines, many at a time, the next ones read meanwhile; no line's end where a line is too long."""

    def read() -> bytes:
        block = raw.read(BLOCK_BYTES)
        if not block or block.endswith(b"\n"):
            return block
        rest = raw.readline(BLOCK_BYTES)
        return block + rest if rest.endswith(b"\n") or len(rest) == BLOCK_BYTES else block + rest + b"\n"

    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(read)
        while data := coming.result():
            coming = ahead.submit(read)
            yield data


def _run(data: bytes, at: int, text: bytes) -> tuple[int, int, bytes]:
    """The lines from `at` on that begin with `text`: where they end, how many, and what follows `text` in each.

    The end is guessed by looking at single lines further and further away; that all lines up to it are of the series
    is then seen by their number.
    """

    def line_at(place: int) -> int:
        """Where the line begins that holds this place."""
        return data.rfind(b"\n", at, place) + 1 or at

    last, beyond, reach = at, len(data), _REACH
    while last + reach < len(data):
        line = line_at(last + reach)
        if not data.startswith(text, line):
            beyond = line
            break
        last, reach = line, 2 * reach
    while beyond - last > _REACH:
        line = line_at((last + beyond) // 2)
        if line <= last or not data.startswith(text, line):
            beyond = line_at((last + beyond) // 2)
            if beyond <= last:
                break
        else:
            last = line
    end = data.index(b"\n", last) + 1
    while data.startswith(text, end):
        end = data.index(b"\n", end) + 1
    run = data[at:end]
    lines = run.split(b"\n")[:-1]
    bare = b" ".join(map(bytes.removeprefix, lines, repeat(text)))
    if len(bare) + len(lines) * len(text) + 1 != len(run):  # lines of other series between them
        match = re.compile(rb"(?:" + re.escape(text) + rb"[^\n]*\n)+").match(data, at)
        assert match is not None
        end = match.end()
        lines = match.group().split(b"\n")[:-1]
        bare = b" ".join(map(bytes.removeprefix, lines, repeat(text)))
    return end, len(lines), bare


def _add_run(path: Path, number: int, run: bytes, bare: bytes, count: int, points: Points, *, in_seconds: bool) -> None:
    """Lines of one series; `bare` is what follows its name in each."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns of text that is no number
            numbers = np.fromstring(bare, dtype=np.float64, sep=" ")
    except (DeprecationWarning, ValueError):
        numbers = np.empty(0)
    at_ms = numbers[1::2] * (1000.0 if in_seconds else 1.0)
    if len(numbers) == 2 * count and bare.count(b" ") == 2 * count - 1 and np.all(np.abs(at_ms) < 2.0**53):
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
