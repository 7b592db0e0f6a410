"""A Prometheus' series kept up to date in our store, as if we had scraped them ourselves.

Range queries do not show where a series ended, so that is found from `up`: a scrape counts once its `up` is there, and
with it all its series; one that it lacks has ended. What belongs to no scrape (series that rules record, or exporters
give a time of its own) ends when no point came for two and a half of its own intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from alerts.history.prometheus_source import RangeSeries
from alerts.labels import LabelSet
from alerts.series.appender import Appender
from alerts.series.label_column import LabelColumn
from alerts.series.store import SeriesStore

_MISSED_INTERVALS = 2.5
_FIRST_INTERVAL_MS = 60_000  # of a series of which only one point is known

Relabel = Callable[[LabelSet], LabelSet]
_Target = tuple[str, str]  # job and instance


@dataclass(slots=True)
class _MirroredTarget:
    """One target of that Prometheus."""

    appender: Appender
    column: LabelColumn = field(default_factory=LabelColumn)
    last_ms: int = -1


@dataclass(slots=True)
class _UnscrapedSeries:
    last_ms: int
    interval_ms: int = _FIRST_INTERVAL_MS
    has_ended: bool = False


class Mirror:
    """Not thread-safe: `add_scrapes` belongs to the thread of the store."""

    def __init__(self, store: SeriesStore, relabel: Relabel = lambda labels: labels) -> None:
        """`relabel` gives the labels under which a series is kept."""
        self._store = store
        self._relabel = relabel
        self._kept: dict[LabelSet, LabelSet] = {}
        self._targets: dict[_Target, _MirroredTarget] = {}
        self._unscraped: dict[LabelSet, _UnscrapedSeries] = {}

    def add_scrapes(self, up: Iterable[RangeSeries], others: Iterable[RangeSeries], now_ms: int) -> int:
        """Adds what is newer than before; how many points. `up` was read before `others`.

        A scrape whose `up` was not there yet is left for the next time.
        """
        scrapes: dict[_Target, dict[int, list[tuple[LabelSet, float]]]] = {}
        known_until: dict[_Target, int] = {}
        count = 0
        for row in up:
            target = _target_of(row.labels)
            labels = self._labels(row.labels)
            known_until[target] = int(row.times[-1])
            scrapes[target] = {
                at_ms: [(labels, value)] for at_ms, value in zip(row.times.tolist(), row.values.tolist(), strict=True)
            }
        for row in others:
            target = _target_of(row.labels)
            moments = scrapes.get(target, {})
            labels = self._labels(row.labels)
            own: list[tuple[int, float]] = []
            for at_ms, value in zip(row.times.tolist(), row.values.tolist(), strict=True):
                scrape = moments.get(at_ms)
                if scrape is not None:
                    scrape.append((labels, value))
                elif at_ms <= known_until.get(target, now_ms):
                    own.append((at_ms, value))
            count += self._write_unscraped(labels, own)
        for target, moments in scrapes.items():
            for at_ms in sorted(moments):
                count += self._write_scrape(target, at_ms, moments[at_ms])
        self._end_missed(now_ms)
        return count

    def _labels(self, given: LabelSet) -> LabelSet:
        kept = self._kept.get(given)
        if kept is None:
            if len(self._kept) > 2 * self._store.num_series + 10_000:
                self._kept.clear()
            kept = self._kept[given] = self._relabel(given)
        return kept

    def _write_scrape(self, target: _Target, at_ms: int, points: list[tuple[LabelSet, float]]) -> int:
        mirrored = self._targets.get(target)
        if mirrored is None:
            mirrored = self._targets[target] = _MirroredTarget(self._store.appender())
        if at_ms <= mirrored.last_ms:
            return 0
        labels = [entry for entry, _ in points]
        if list(mirrored.column) != labels:
            mirrored.column = LabelColumn(labels)
        column = mirrored.column
        mirrored.appender.set_series(column, lambda: column)
        self._store.append_column(mirrored.appender, at_ms, np.array([value for _, value in points]))
        mirrored.last_ms = at_ms
        return len(points)

    def _write_unscraped(self, labels: LabelSet, points: list[tuple[int, float]]) -> int:
        known = self._unscraped.get(labels)
        new = [point for point in points if known is None or point[0] > known.last_ms]
        for at_ms, value in new:
            self._store.append_at(labels, at_ms, value)
            interval_ms = _FIRST_INTERVAL_MS if known is None else at_ms - known.last_ms
            known = self._unscraped[labels] = _UnscrapedSeries(at_ms, interval_ms)
        return len(new)

    def _end_missed(self, now_ms: int) -> None:
        for labels, known in list(self._unscraped.items()):
            silent_ms = now_ms - known.last_ms
            if not known.has_ended and silent_ms > _MISSED_INTERVALS * known.interval_ms:
                self._store.mark_stale(labels, now_ms)
                known.has_ended = True
            elif known.has_ended and silent_ms > self._store.retention_ms:
                del self._unscraped[labels]
        for target, mirrored in list(self._targets.items()):
            if now_ms - mirrored.last_ms > self._store.retention_ms:
                del self._targets[target]


def relabelling(rules: Mapping[str, str]) -> Relabel:
    """Labels added to each series that lacks them: `{"node": "$instance", "engine": "vllm"}`; `$x` copies label x."""

    def relabel(labels: LabelSet) -> LabelSet:
        added = {}
        for name, value in rules.items():
            given = labels.get(value[1:]) if value.startswith("$") else value
            if given and not labels.get(name):
                added[name] = given
        return labels.having_now(tuple(added.items())) if added else labels

    return relabel


def _target_of(labels: LabelSet) -> _Target:
    return labels.get("job"), labels.get("instance")
