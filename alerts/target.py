"""One scraped target: its labels, how its lines map to series, and which series it had last time."""

from __future__ import annotations

from alerts.errors import BadExpositionError
from alerts.exposition import Line, is_openmetrics, parse_line, read_value
from alerts.sample import NAME, LabelSet
from alerts.series import Series

MAX_SAMPLES_PER_SCRAPE = 100_000
_ESCAPED_PREFIXES = ("vllm_", "sglang_")


class Target:
    """Mutable state that belongs to the SeriesStore; only the store calls it."""

    __slots__ = ("labels", "last_error", "last_ms", "previous", "series_by_text", "store_epoch")

    def __init__(self, labels: LabelSet) -> None:
        self.labels = labels
        self.series_by_text: dict[str, Series] = {}
        self.previous: list[Series] = []  # series of the last good scrape, in order
        self.last_ms: int | None = None
        self.last_error: str | None = None
        self.store_epoch = 0

    def attach(self, scraped: LabelSet) -> LabelSet:
        """Scraped labels plus the target's own; a scraped label that clashes becomes exported_<name>.

        vllm_x and sglang_x become vllm:x and sglang:x: OpenMetrics answers of these engines escape the colon.
        """
        own = dict(self.labels.pairs)
        labels: dict[str, str] = {}
        for name, value in scraped.pairs:
            if name == NAME and value.startswith(_ESCAPED_PREFIXES):
                labels[NAME] = value.replace("_", ":", 1)
            elif name in own and name != NAME:
                exported = f"exported_{name}"
                while exported in own or exported in dict(scraped.pairs):
                    exported = f"exported_{exported}"
                labels[exported] = value
            else:
                labels[name] = value
        return LabelSet.of({**labels, **own})

    def trim(self, current: list[Series]) -> None:
        """Forgets texts that no longer appear, once they outnumber those that do."""
        if len(self.series_by_text) > 2 * len(current) + 1000:
            wanted = {id(series) for series in current}
            self.series_by_text = {text: series for text, series in self.series_by_text.items() if id(series) in wanted}


def read_scrape(target: Target, text: str) -> tuple[list[tuple[Series, float]], list[Line]]:
    """Samples of one scrape: those of series known by their text, and lines that had to be read in full.

    Raises BadExpositionError; the target is unchanged then.
    """
    known: list[tuple[Series, float]] = []
    read: list[Line] = []
    by_text = target.series_by_text
    openmetrics: bool | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line[0] == "#":
            continue
        series_text, _, raw = line.rpartition(" ")
        series = by_text.get(series_text)
        if series is not None:
            try:
                known.append((series, float(raw) if "_" not in raw else read_value(raw, number)))
            except ValueError:
                known.append((series, read_value(raw.rstrip("\r"), number)))
        elif not line.isspace() and not line.lstrip().startswith("#"):
            if openmetrics is None:
                openmetrics = is_openmetrics(text)
            read.append(parse_line(line, number, openmetrics=openmetrics))
        if len(known) + len(read) > MAX_SAMPLES_PER_SCRAPE:
            raise BadExpositionError(number, f"more than {MAX_SAMPLES_PER_SCRAPE} samples in one scrape")
    return known, read
