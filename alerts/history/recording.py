"""Recorded series from files: OpenMetrics (or Prometheus) text in which every sample has its time."""

from __future__ import annotations

import gzip
import re
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise, repeat
from pathlib import Path
from typing import IO

import numpy as np

from alerts.arrays import Floats, Times
from alerts.errors import BadExpositionError, BadRecordingError
from alerts.evaluation.rules import RuleGroup
from alerts.labels import METRIC_NAME, LabelSet
from alerts.native_name import with_native_name
from alerts.promql.nodes import Node, Selector, children
from alerts.series.exposition import SampleLine, parse_line, read_series
from alerts.series.store import SeriesStore

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
                    named = [matcher for matcher in alternatives if matcher.name == METRIC_NAME]
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
                _File(path, found, wanted, in_seconds=_is_openmetrics(path)).read(raw)
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
        store.append_matrix(entries, at, np.stack(rows))
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


class _File:
    """Reads one file's lines into `found`. Series come one after the other or, timestamp by timestamp, all at once."""

    def __init__(
        self, path: Path, found: dict[LabelSet, Points], wanted: Callable[[str], bool], *, in_seconds: bool
    ) -> None:
        self._path, self._found, self._wanted = path, found, wanted
        self._in_seconds: bool | None = in_seconds or None  # None: not known before the first time is seen
        self._heads: dict[bytes, int] = {}  # a series as it is written, and its place in the lists
        self._texts: list[bytes] = [b"#"]  # the same with the space after it; comments are like a series nobody reads
        self._points: list[Points | None] = [None]  # None: no rule reads it
        self._next: list[int] = [0]  # which series came after this one the last time

    def read(self, raw: IO[bytes]) -> None:
        number, total = 1, 0
        for data in _blocks(raw):
            if not data.endswith(b"\n"):
                raise BadRecordingError(f"{self._path}: after line {number}: a line longer than {BLOCK_BYTES} bytes")
            kept = self._block(data, number)
            total += self._one_by_one(data, number) if kept is None else kept
            number += int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")))
            if total > MAX_SAMPLES:
                raise BadRecordingError(f"{self._path}: more than {MAX_SAMPLES} samples")

    def _block(self, data: bytes, number: int) -> int | None:
        """How many samples were kept; None when some line is not as the others and all must be read in full.

        The order of series repeats, so the next one is guessed: comparing is much cheaper than looking it up.
        """
        texts, points, after = self._texts, self._points, self._next
        places: list[int] = []
        tails: list[bytes] = []
        at = last = count = 0
        size = len(data)
        while at < size:
            place = after[last]
            text = texts[place]
            if data.startswith(text, at):
                start = at + len(text)
                end = data.index(b"\n", start)
            else:
                end = data.index(b"\n", at)
                head = self._head(data[at:end], lambda at=at: number + data.count(b"\n", 0, at))  # type: ignore[misc]
                if head is None:
                    at = end + 1
                    continue
                place, start = head[0], at + head[1]
                after[last] = place
            if place == last and data.startswith(texts[place], at):  # a recording that goes series by series
                end, rows, lines = _run(data, at, texts[place])
                if points[place] is not None and not self._take([place], lines, rows):
                    return None
                at, count = end, count + rows
                continue
            if points[place] is not None:
                places.append(place)
                tails.append(data[start:end])
            last, at = place, end + 1
        return count + len(tails) if not tails or self._take(places, b"\n".join(tails), len(tails)) else None

    def _head(self, line: bytes, number: Callable[[], int]) -> tuple[int, int] | None:
        """The place of a line's series and where its value begins; None for what is no sample."""
        guess = line.rpartition(b" ")[0].rpartition(b" ")[0]
        place = self._heads.get(guess)
        if place is not None:
            return place, len(guess) + 1
        bare = line.strip()
        if not bare or bare.startswith(b"#"):
            return None
        text = line.decode()
        if self._in_seconds is None:
            self._in_seconds = _counts_seconds(text)
        try:
            labels, rest = read_series(text)
            if not labels.name:
                raise BadExpositionError(0, "has labels but no metric name")
        except BadExpositionError as error:
            raise BadRecordingError(f"{self._path}:{number()}: {error.reason}") from None
        head = text[: len(text) - len(rest)].rstrip().encode()
        place = self._heads.get(head)
        if place is None:
            place = self._heads[head] = len(self._texts)
            self._texts.append(head + b" ")
            kept = with_native_name(labels)
            wanted = self._wanted(kept.name)
            self._points.append(self._found.setdefault(kept, (array("q"), array("d"))) if wanted else None)
            self._next.append(0)
        return place, len(head) + 1

    def _take(self, places: list[int], lines: bytes, count: int) -> bool:
        """Values and times, two words a line, dealt out to their series: one for each line, or one for all.

        False when they are not such lines.
        """
        if b"#" in lines:
            lines = b"\n".join([line.partition(b" # ")[0] for line in lines.split(b"\n")])  # without exemplars
        if b"\r" in lines:
            lines = lines.replace(b"\r\n", b"\n").removesuffix(b"\r")
        both = _numbers(lines) if _is_in_pairs(lines) else np.empty(0)
        at_ms = both[1::2] * (1000.0 if self._in_seconds else 1.0)
        if len(both) != 2 * count or not np.all(np.abs(at_ms) < 2.0**53):
            return False
        times, values = np.rint(at_ms).astype(np.int64), np.ascontiguousarray(both[::2])
        where = np.array(places, dtype=np.int32)
        if (np.diff(where) < 0).any():
            order = np.argsort(where, kind="stable")
            where, times, values = where[order], times[order], values[order]
        borders = [0, *(np.flatnonzero(np.diff(where)) + 1).tolist(), count]
        times_bytes, values_bytes = times.data.cast("B"), values.data.cast("B")
        for low, high in pairwise(borders):
            points = self._points[where[low]]
            assert points is not None
            points[0].frombytes(times_bytes[8 * low : 8 * high])
            points[1].frombytes(values_bytes[8 * low : 8 * high])
        return True

    def _one_by_one(self, data: bytes, number: int) -> int:
        """Each line in full: more than one space, hexadecimal, or the line that cannot be read. How many were kept."""
        count = 0
        for index, line in enumerate(data.split(b"\n")):
            if line.strip() and not line.lstrip().startswith(b"#"):
                read = self._parsed(line.decode(), lambda index=index: number + index)  # type: ignore[misc]
                if self._wanted(read.labels.name):
                    assert read.at_ms is not None
                    times, values = self._found.setdefault(read.labels, (array("q"), array("d")))
                    times.append(read.at_ms)
                    values.append(read.value)
                    count += 1
        return count

    def _parsed(self, line: str, number: Callable[[], int]) -> SampleLine:
        """Raises BadRecordingError; a line without a time counts as bad only when a rule reads it."""
        try:
            read = parse_line(line, 0, openmetrics=bool(self._in_seconds))
        except BadExpositionError as error:
            raise BadRecordingError(f"{self._path}:{number()}: {error.reason}") from None
        read = replace(read, labels=with_native_name(read.labels))
        if read.at_ms is None and self._wanted(read.labels.name):
            raise BadRecordingError(
                f"{self._path}:{number()}: a sample without a time: a recording needs one on every line,"
                " as `promtool tsdb dump-openmetrics` writes it"
            )
        return read


def _run(data: bytes, at: int, text: bytes) -> tuple[int, int, bytes]:
    """The lines from `at` on that begin with `text`: where they end, how many, and the lines without it.

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
    bare = b"\n".join(map(bytes.removeprefix, lines, repeat(text)))
    if len(bare) + len(lines) * len(text) + 1 != len(run):  # lines of other series between them
        match = re.compile(rb"(?:" + re.escape(text) + rb"[^\n]*\n)+").match(data, at)
        assert match is not None
        end = match.end()
        lines = match.group().split(b"\n")[:-1]
        bare = b"\n".join(map(bytes.removeprefix, lines, repeat(text)))
    return end, len(lines), bare


def _is_in_pairs(text: bytes) -> bool:
    """True when each line is two words with one space between them."""
    chars = np.frombuffer(text, dtype=np.uint8)
    between = chars[chars <= ord(" ")]
    return bool(len(between) % 2 and np.all(between[::2] == ord(" ")) and np.all(between[1::2] == ord("\n")))


def _numbers(text: bytes) -> Floats:
    """Empty when something in it is no number."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns of text that is no number
            return np.fromstring(text, dtype=np.float64, sep=" ")
    except (DeprecationWarning, ValueError):
        return np.empty(0)


def _counts_seconds(line: str) -> bool | None:
    """Of a text without `# EOF`, which may be OpenMetrics cut short: milliseconds below 10^11 would be 1973.

    None where the line has no time.
    """
    try:
        at_ms = parse_line(line, 1, openmetrics=True).at_ms
    except BadExpositionError:
        return None
    return None if at_ms is None else abs(at_ms) < 1e14


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
