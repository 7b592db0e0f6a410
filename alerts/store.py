"""Series in memory: what was scraped or recorded, for how long, and when a series ended.

Staleness is Prometheus': a point counts for 5 minutes; a series that is missing from a scrape, or whose scrape
failed, ends at once. Not thread-safe: one thread appends and evaluates.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from statistics import median

import structlog

from alerts.errors import BadExpositionError
from alerts.matcher import Matcher
from alerts.sample import NAME, STALE, LabelSet, is_stale, to_ms
from alerts.series import Series
from alerts.target import Target, read_scrape

log = structlog.get_logger()

_PRUNE_EVERY_MS = 60_000
_MAX_CACHED_SELECTIONS = 4096
_SPACING_SAMPLE = 1000


class SeriesStore:
    """Bounded by `retention_s`, `max_points` a series and `max_series`. What does not fit is dropped and counted."""

    def __init__(self, *, retention_s: float = 3600.0, max_series: int = 200_000, max_points: int = 20_000) -> None:
        self.retention_ms = to_ms(retention_s)
        self.max_series = max_series
        self.max_points = max_points
        self.dropped_samples = 0
        self._series: dict[LabelSet, Series] = {}
        self._by_name: dict[str, dict[LabelSet, Series]] = {}
        self._targets: dict[LabelSet, Target] = {}
        self._selections: dict[tuple[Matcher, ...], tuple[int, list[Series]]] = {}
        self._shape = 0  # changes with every series added or removed: selections of an older shape are redone
        self._epoch = 0  # changes when series are removed: targets then look their series up again
        self._pruned_ms: int | None = None
        self._newest_ms: int | None = None
        self._told_full = False

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, labels: Mapping[str, str], at: float, value: float) -> None:
        """Adds one point (Unix seconds). A point not newer than the series' last one is dropped and counted."""
        self.append_at(LabelSet.of(labels), to_ms(at), value)

    def append_at(self, labels: LabelSet, at_ms: int, value: float) -> None:
        series = self._series_of(labels)
        if series is None or not series.append(at_ms, value):
            self.dropped_samples += 1
        self._advance(at_ms)

    def extend(self, labels: LabelSet, times: array[int], values: array[float]) -> None:
        """Adds many points of one series, rising in time; those not newer than its last one are dropped and counted."""
        series = self._series_of(labels)
        if series is None or not times:
            self.dropped_samples += len(times)
            return
        last_ms = series.last_ms
        start = 0 if last_ms is None else bisect_right(times, last_ms)
        self.dropped_samples += start
        series.times.extend(times[start:] if start else times)
        series.values.extend(values[start:] if start else values)
        self._advance(times[-1])

    def end(self, labels: LabelSet, at_ms: int) -> None:
        """Marks that the series ended; nothing when it is not there or already ended."""
        series = self._series.get(labels)
        if series is not None and not series.has_ended:
            series.append(at_ms, STALE)

    def ingest(self, target: Mapping[str, str], text: str | None, at: float) -> int:
        """One scrape; the number of samples stored, without `up` and `scrape_*`.

        `text` None says the scrape failed: `up` becomes 0 and the target's series end. A text that cannot be read
        counts as failed too; `last_error` then says why. Labels of the scrape that clash with the target's become
        exported_<name>; series missing since the last scrape end.
        """
        at_ms = to_ms(at)
        owner = self._target_of(target)
        error: str | None = "scrape failed" if text is None else None
        current: list[Series] = []
        stored = 0
        if text is not None:
            try:
                current, stored = self._store_scrape(owner, text, at_ms)
            except BadExpositionError as bad:
                error = f"metrics text refused: {bad}"
                log.warning("scrape.refused", target=owner.labels.as_dict(), reason=str(bad))
        added = self._end_vanished(owner, current, at_ms)
        owner.previous = current
        owner.last_ms = at_ms
        owner.last_error = error
        self._append_own(owner, "up", at_ms, 0.0 if error else 1.0)
        self._append_own(owner, "scrape_samples_scraped", at_ms, float(stored))
        self._append_own(owner, "scrape_series_added", at_ms, float(added))
        self._advance(at_ms)
        return stored

    def forget(self, target: Mapping[str, str]) -> None:
        """The target is no longer ours: all its series end, `up` included."""
        owner = self._targets.pop(LabelSet.of(target), None)
        if owner is None or owner.last_ms is None:
            return
        end_ms = owner.last_ms + 1
        for series in owner.previous:
            series.append(end_ms, STALE)
        for name in ("up", "scrape_samples_scraped", "scrape_series_added"):
            self.end(owner.labels.having(((NAME, name),)), end_ms)

    def last_error(self, target: Mapping[str, str]) -> str | None:
        """Why the target's last scrape failed; None when it did not, or there was none."""
        owner = self._targets.get(LabelSet.of(target))
        return owner.last_error if owner else None

    # -- reading ------------------------------------------------------------------------------------------------

    def select(self, matchers: tuple[Matcher, ...]) -> list[Series]:
        """Every series that all matchers accept, whether it still has fresh points or not."""
        cached = self._selections.get(matchers)
        if cached is not None and cached[0] == self._shape:
            return cached[1]
        rest = matchers
        candidates: Iterable[Series] = self._series.values()
        for matcher in matchers:
            if matcher.name == NAME and matcher.op == "=":
                candidates = self._by_name.get(matcher.value, {}).values()
                rest = tuple(other for other in matchers if other is not matcher)
                break
            if matcher.name == NAME and matcher.op == "=~":
                names = [name for name in self._by_name if matcher.accepts(name)]
                candidates = [series for name in names for series in self._by_name[name].values()]
                rest = tuple(other for other in matchers if other is not matcher)
                break
        found = [series for series in candidates if all(m.accepts(series.labels.get(m.name)) for m in rest)]
        if len(self._selections) >= _MAX_CACHED_SELECTIONS:
            self._selections.clear()
        self._selections[matchers] = (self._shape, found)
        return found

    def dump(self, since: float, until: float) -> Iterator[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Each series with its points in [since, until] (Unix seconds). The end of a series is the value STALE."""
        for series in list(self._series.values()):
            low, high = series.window(to_ms(since) - 1, to_ms(until))
            if low < high:
                points = zip(series.times[low:high], series.values[low:high], strict=True)
                yield series.labels.as_dict(), [(at_ms / 1000, value) for at_ms, value in points]

    def bounds(self) -> tuple[float, float] | None:
        """Times (Unix seconds) of the oldest and the newest point; None when there is none."""
        firsts = [series.times[0] for series in self._series.values() if series.times]
        lasts = [series.times[-1] for series in self._series.values() if series.times]
        return (min(firsts) / 1000, max(lasts) / 1000) if firsts else None

    def typical_spacing_s(self) -> float | None:
        """The median time between two points of a series, looked up in some of them; None when it cannot be told."""
        every = max(1, len(self._series) // _SPACING_SAMPLE)
        spacings = [
            (series.times[-1] - series.times[0]) / (len(series.times) - 1)
            for series in islice(self._series.values(), 0, None, every)
            if len(series.times) > 1
        ]
        return median(spacings) / 1000 if spacings else None

    @property
    def num_series(self) -> int:
        return len(self._series)

    def check_integrity(self) -> None:
        """Asserts what must always hold between the indexes and inside every series."""
        assert sum(len(group) for group in self._by_name.values()) == len(self._series)
        assert len(self._series) <= self.max_series
        for labels, series in self._series.items():
            assert series.labels is labels
            assert self._by_name[labels.name][labels] is series
            assert len(series.times) == len(series.values)
            times = series.times
            assert all(times[i] < times[i + 1] for i in range(len(times) - 1))
        for key, target in self._targets.items():
            assert target.labels is key
            if target.store_epoch == self._epoch:
                for series in target.previous:
                    assert self._series.get(series.labels) is series

    # -- inside -------------------------------------------------------------------------------------------------

    def _store_scrape(self, owner: Target, text: str, at_ms: int) -> tuple[list[Series], int]:
        if owner.store_epoch != self._epoch:
            owner.series_by_text.clear()
            owner.store_epoch = self._epoch
        known, lines = read_scrape(owner, text)
        current: list[Series] = []
        stored = 0
        for series, value in known:
            if series.append(at_ms, value):
                stored += 1
            else:
                self.dropped_samples += 1
            current.append(series)
        for line in lines:
            found = self._series_of(owner.attach(line.labels))
            if found is None:
                self.dropped_samples += 1
                continue
            if line.series_text is not None:
                owner.series_by_text[line.series_text] = found
            if line.at_ms is None:
                current.append(found)  # a line with a time of its own ends by age alone, as in Prometheus
            if found.append(at_ms if line.at_ms is None else line.at_ms, line.value):
                stored += 1
            else:
                self.dropped_samples += 1
        owner.trim(current)
        return current, stored

    def _end_vanished(self, owner: Target, current: list[Series], at_ms: int) -> int:
        """Ends the series of the last scrape that this one lacks; how many are new."""
        if current == owner.previous:
            return 0
        now_there = {id(series) for series in current}
        for series in owner.previous:
            if id(series) not in now_there:
                series.append(at_ms, STALE)
        return len(now_there - {id(series) for series in owner.previous})

    def _append_own(self, owner: Target, name: str, at_ms: int, value: float) -> None:
        self.append_at(owner.labels.having(((NAME, name),)), at_ms, value)

    def _target_of(self, target: Mapping[str, str]) -> Target:
        labels = LabelSet.of(target)
        owner = self._targets.get(labels)
        if owner is None:
            owner = self._targets[labels] = Target(labels)
            owner.store_epoch = self._epoch
        return owner

    def _series_of(self, labels: LabelSet) -> Series | None:
        """The series, made when new; None when the store is full."""
        series = self._series.get(labels)
        if series is None:
            if len(self._series) >= self.max_series:
                if not self._told_full:
                    log.error("store.full", max_series=self.max_series, refused=repr(labels))
                    self._told_full = True
                return None
            series = self._series[labels] = Series(labels)
            self._by_name.setdefault(labels.name, {})[labels] = series
            self._shape += 1
        return series

    def _advance(self, at_ms: int) -> None:
        if self._newest_ms is None or at_ms > self._newest_ms:
            self._newest_ms = at_ms
        if self._pruned_ms is None:
            self._pruned_ms = self._newest_ms
        elif self._newest_ms - self._pruned_ms >= _PRUNE_EVERY_MS:
            self._prune(self._newest_ms)

    def _prune(self, now_ms: int) -> None:
        self._pruned_ms = now_ms
        before_ms = now_ms - self.retention_ms
        gone = []
        for series in self._series.values():
            if (series.times and series.times[0] <= before_ms) or len(series.times) > self.max_points:
                series.trim(before_ms, self.max_points)
            if not series.times:
                gone.append(series)
        for series in gone:
            del self._series[series.labels]
            group = self._by_name[series.labels.name]
            del group[series.labels]
            if not group:
                del self._by_name[series.labels.name]
        if gone:
            self._shape += 1
            self._epoch += 1
            self._told_full = False
            removed = {id(series) for series in gone}
            for target in self._targets.values():
                target.previous = [series for series in target.previous if id(series) not in removed]


__all__ = ["SeriesStore", "is_stale"]
