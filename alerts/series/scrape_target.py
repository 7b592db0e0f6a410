"""One scraped target: its labels, how its lines map to series, and what its last scrape said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from alerts.errors import BadExpositionError
from alerts.labels import METRIC_NAME, LabelSet
from alerts.native_name import native_name
from alerts.series.appender import Appender
from alerts.series.exposition import is_openmetrics, parse_line, read_value

MAX_SAMPLES_PER_SCRAPE = 100_000
MAX_KNOWN_TEXTS = 100_000


class ExpositionLayout:
    """The lines of an exposition without their values. Targets with the same lines share it."""

    __slots__ = ("__weakref__", "labels", "num_chars", "texts")

    def __init__(self, texts: tuple[str, ...], labels: Sequence[LabelSet]) -> None:
        self.texts = list(texts)  # up to the value, the space before it included
        self.num_chars = sum(map(len, texts))
        self.labels = labels  # as scraped, without the target's


class LayoutCache:
    """All layouts in use, and what single texts mean: most targets say what another one has said before."""

    def __init__(self) -> None:
        self._layouts: WeakValueDictionary[tuple[str, ...], ExpositionLayout] = WeakValueDictionary()
        self.labels_of: dict[str, LabelSet] = {}
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}

    def of(self, texts: Sequence[str], labels: Sequence[LabelSet]) -> ExpositionLayout:
        """The layout of these texts: the same object for the same texts."""
        key = tuple(texts)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = ExpositionLayout(key, labels)
        return found

    def learn(self, text: str, labels: LabelSet) -> None:
        """Remembers what a line up to its value means."""
        if len(self.labels_of) >= MAX_KNOWN_TEXTS:
            self.labels_of.clear()
            self._pairs.clear()
        self.labels_of[text] = labels

    def shared(self, name: str, value: str) -> tuple[str, str]:
        """One object for equal pairs: thousands of series have them."""
        pair = (name, value)
        return self._pairs.setdefault(pair, pair)


@dataclass(frozen=True, slots=True)
class ParsedScrape:
    """`values` follow the layout. `timed` are lines that state a time of their own: labels, value, milliseconds."""

    layout: ExpositionLayout
    values: list[float]
    timed: list[tuple[LabelSet, float, int]]


class TargetState:
    """Mutable state that belongs to the SeriesStore; only the store calls it."""

    __slots__ = ("_layouts", "_own_names", "appender", "is_forgotten", "labels", "last_error", "last_ms", "layout")

    def __init__(self, labels: LabelSet, appender: Appender, layouts: LayoutCache) -> None:
        self._layouts = layouts
        self.labels = labels
        self.appender = appender
        self.layout: ExpositionLayout | None = None
        self.last_ms: int | None = None
        self.last_error: str | None = None
        self.is_forgotten = False
        self._own_names = frozenset(name for name, _ in labels.pairs)

    def attach(self, scraped: LabelSet) -> LabelSet:
        """Scraped labels plus the target's own, under the native name; a label that clashes becomes exported_<name>."""
        pairs = []
        for pair in scraped.pairs:
            name, value = pair
            if name == METRIC_NAME:
                native = native_name(value)
                pairs.append(pair if native == value else self._layouts.shared(METRIC_NAME, native))
            elif name in self._own_names:
                exported = f"exported_{name}"
                while exported in self._own_names or scraped.get(exported):
                    exported = f"exported_{exported}"
                pairs.append(self._layouts.shared(exported, value))
            else:
                pairs.append(pair)
        return LabelSet.of([*pairs, *self.labels.pairs])


def read_scrape(text: str, last: ExpositionLayout | None, layouts: LayoutCache) -> ParsedScrape:
    """What one exposition says. When its lines are those of the last one, only the numbers are read.

    Raises BadExpositionError.
    """
    if last is not None:
        lines = [line for line in text.split("\n") if line and line[0] != "#"]
        if len(lines) == len(last.texts):
            raw = list(map(str.removeprefix, lines, last.texts))
            numbers = "".join(raw)
            # Python reads 1_0 as a number, Prometheus does not.
            if len(numbers) + last.num_chars == len("".join(lines)) and "_" not in numbers:
                try:
                    return ParsedScrape(last, list(map(float, raw)), [])
                except ValueError:
                    pass  # a time behind a value, a hexadecimal number or no number at all: read it in full
    return _read_all(text, layouts)


def _read_all(text: str, layouts: LayoutCache) -> ParsedScrape:
    texts: list[str] = []
    labels: list[LabelSet] = []
    values: list[float] = []
    timed: list[tuple[LabelSet, float, int]] = []
    openmetrics: bool | None = None
    known = layouts.labels_of
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line[0] == "#":
            continue
        series_text, space, raw = line.rpartition(" ")
        found = known.get(series_text)
        if found is not None:
            values.append(read_value(raw.rstrip("\r"), number))
        elif line.isspace() or line.lstrip().startswith("#"):
            continue
        else:
            if openmetrics is None:
                openmetrics = is_openmetrics(text)
            read = parse_line(line, number, openmetrics=openmetrics)
            if read.at_ms is not None:
                timed.append((read.labels, read.value, read.at_ms))
                continue
            if read.series_text is None:
                series_text, space = line, "\n"  # read in full each time: no line is its own beginning plus a number
            else:
                series_text = read.series_text
                layouts.learn(series_text, read.labels)
            found = read.labels
            values.append(read.value)
        texts.append(series_text + space)
        labels.append(found)
        if len(values) + len(timed) > MAX_SAMPLES_PER_SCRAPE:
            raise BadExpositionError(number, f"more than {MAX_SAMPLES_PER_SCRAPE} samples in one scrape")
    return ParsedScrape(layouts.of(texts, labels), values, timed)
