"""Series in memory: what was scraped or recorded, for how long, and when a series ended.

Staleness is Prometheus': a point counts for 5 minutes; a series that is missing from a scrape, or whose scrape
failed, ends at once. Not thread-safe: one thread appends and evaluates.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import structlog

from alerts.arrays import Floats, Times
from alerts.errors import BadExpositionError
from alerts.labels import METRIC_NAME, LabelSet
from alerts.matcher import Matcher
from alerts.sample import STALE_NAN, is_stale_nan, to_ms
from alerts.series.appender import Appender
from alerts.series.head import HeadBlock
from alerts.series.index import SeriesIndex
from alerts.series.scrape_target import LayoutCache, TargetState, read_scrape
from alerts.series.selection import Selection
from alerts.series.series_group import MAX_CHUNK_POINTS, MemSeries, SeriesGroup

log = structlog.get_logger()

_PRUNE_EVERY_MS = 60_000
_SPACING_SAMPLE = 1000
_SCRAPE_METRICS = ("up", "scrape_samples_scraped", "scrape_series_added")
_REFUSED = "metrics text refused"
_FAILED = object()  # stands for the series of a scrape that failed: the target's own

DEFAULT_MAX_BYTES = 1 << 30
MAX_SERIES_PER_TARGET = 50_000
"""Ended ones included, which stay for the retention. An engine has a thousand; a label that is another one at each
scrape (a request's id) has as many as it likes, and must leave the other targets their room."""


class SeriesStore:
    """Bounded by `retention_s`, `max_points` a series, `max_series`, `max_target_series` a target and `max_bytes`.

    `max_bytes` is what older points may take (packed, one to eight bytes each); beyond it the oldest go before their
    time. The newest points and the labels come on top: about 1 KiB a series, so `max_series` bounds them. A new series
    that does not fit is dropped and counted. `is_recording`: keeps every point as it is and forgets nothing.
    """

    def __init__(
        self,
        *,
        retention_s: float = 3600.0,
        max_series: int = 1_000_000,
        max_target_series: int = MAX_SERIES_PER_TARGET,
        max_points: int = 20_000,
        max_bytes: int = DEFAULT_MAX_BYTES,
        is_recording: bool = False,
    ) -> None:
        self.retention_ms = to_ms(retention_s)
        self.max_series = max_series
        self.max_target_series = max_target_series
        self.max_points = max_points
        self.max_bytes = max_bytes
        self.dropped_samples = 0
        self._is_recording = is_recording
        self._head = HeadBlock()
        self._groups: dict[int, SeriesGroup] = {}
        self._index = SeriesIndex(self._head)
        self._targets: dict[LabelSet, TargetState] = {}
        self._layouts = LayoutCache()
        self._pruned_ms: int | None = None
        self._newest_ms: int | None = None
        self._warned_full = False
        self._full_groups: set[int] = set()  # of targets that have as many series as they may
        self._warned_bytes = False

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, labels: Mapping[str, str], at: float, value: float) -> None:
        """Adds one point (Unix seconds). A point not newer than the series' last one is dropped and counted."""
        self.append_at(LabelSet.of(labels), to_ms(at), value)

    def append_at(self, labels: LabelSet, at_ms: int, value: float) -> bool:
        """Whether the point was taken."""
        series = self._series_in_own_group(labels)
        group = series.group if series is not None else None
        taken = False
        if series is not None and group is not None:
            taken = bool(group.append_column(np.array([series.row]), at_ms, np.array([value])))
        self.dropped_samples += not taken
        self._advance(at_ms)
        return taken

    def append_points(self, labels: LabelSet, times: array[int] | Times, values: array[float] | Floats) -> None:
        """Adds many points of one series, rising in time; those not newer than its last one are dropped and counted."""
        at = np.array(times, dtype=np.int64)
        series = self._series_in_own_group(labels)
        group = series.group if series is not None else None
        if series is None or group is None or not len(at):
            self.dropped_samples += len(at)
            return
        last_ms = group.last_ms
        start = 0 if last_ms is None else int(np.searchsorted(at, last_ms, side="right"))
        self.dropped_samples += start
        if start < len(at):
            own = np.array(values, dtype=np.float64)[np.newaxis, start:]
            group.append_range(np.array([series.ref]), at[start:], own)
            self._advance(int(at[-1]))

    def append_matrix(self, labels: Sequence[LabelSet], times: Times, values: Floats) -> None:
        """Adds many points of several series at the same rising times. Shapes: `values` (series, times)."""
        new = [index for index, entry in enumerate(labels) if self._index.find(entry) is None]
        if len(new) < len(labels) or len(set(labels)) < len(labels) or not len(times):
            for entry, row in zip(labels, values, strict=True):
                self.append_points(entry, times, row)
            return
        group = self.new_group()
        made = [self.series_for(group, entry) for entry in labels]
        kept = [index for index, series in enumerate(made) if series is not None]
        self.dropped_samples += (len(made) - len(kept)) * len(times)
        if kept:
            refs = np.array([series.ref for series in made if series is not None], dtype=np.intp)
            group.append_range(refs, times, values if len(kept) == len(made) else values[kept])
            self._advance(int(times[-1]))

    def appender(self, *, keep_s: float = 0.0) -> Appender:
        """For a rule: to write the same series at each evaluation, which end when it no longer gives them.

        `keep_s`: other rules read these so far back, so they are kept longer than the rest when that is longer.
        """
        return Appender(self, keep_ms=to_ms(keep_s))

    def append_column(self, appender: Appender, at_ms: int, values: Floats) -> None:
        """One value for each series that the appender has taken."""
        _, dropped = appender.append(at_ms, values)
        self.dropped_samples += dropped
        self._advance(at_ms)

    def mark_stale(self, labels: LabelSet, at_ms: int) -> None:
        """Marks that the series ended; nothing when it is not there or already ended."""
        series = self._index.find(labels)
        if series is None or series.group is None or series.has_ended:
            return
        last_ms = series.group.last_ms
        if last_ms is None or at_ms > last_ms:
            self.append_at(labels, at_ms, STALE_NAN)

    def ingest(self, target: Mapping[str, str], text: str | None, at: float) -> int:
        """One scrape; the number of samples stored, without `up` and `scrape_*`.

        `text` None says the scrape failed: `up` becomes 0 and the target's series end. A text that cannot be read
        counts as failed too; `last_error` then says why. Labels of the scrape that clash with the target's become
        exported_<name>; series missing since the last scrape end.
        """
        at_ms = to_ms(at)
        owner = self._target_of(target)
        owner.last_ms = at_ms
        was_refused = (owner.last_error or "").startswith(_REFUSED)
        owner.last_error = "scrape failed" if text is None else None
        stored = 0
        if text is not None:
            try:
                scrape = read_scrape(text, owner.layout, self._layouts)
            except BadExpositionError as bad:
                owner.last_error = f"{_REFUSED}: {bad}"
                if not was_refused:
                    log.warning("scrape.refused", target=owner.labels.as_dict(), reason=str(bad))
            else:
                layout = owner.layout = scrape.layout
                timed = [self.append_at(owner.attach(labels), its_ms, value) for labels, value, its_ms in scrape.timed]
                is_first = not owner.appender.series
                added = owner.appender.set_series(layout, lambda: [*_own(owner), *map(owner.attach, layout.labels)])
                scraped = len(owner.appender.series) - len(_SCRAPE_METRICS) + sum(timed)
                added = max(0, added - len(_SCRAPE_METRICS)) if is_first else added
                taken, dropped = owner.appender.append(at_ms, np.array([1.0, scraped, added, *scrape.values]))
                stored = max(0, taken - len(_SCRAPE_METRICS)) + sum(timed)
                self.dropped_samples += dropped
        if owner.last_error is not None:
            owner.appender.set_series(_FAILED, lambda: _own(owner))
            owner.appender.append(at_ms, np.zeros(len(_SCRAPE_METRICS)))
        self._advance(at_ms)
        return stored

    def forget_target(self, target: Mapping[str, str]) -> None:
        """The target is no longer ours: all its series end, `up` included."""
        owner = self._targets.get(LabelSet.of(target))
        if owner is None or owner.is_forgotten:
            return
        owner.is_forgotten, owner.last_error = True, None
        owner.appender.mark_stale()

    def last_error(self, target: Mapping[str, str]) -> str | None:
        """Why the target's last scrape failed; None when it did not, or there was none."""
        owner = self._targets.get(LabelSet.of(target))
        return owner.last_error if owner else None

    # -- reading ------------------------------------------------------------------------------------------------

    def select(self, matchers: tuple[Matcher, ...]) -> Selection:
        """Every series that all matchers accept, whether it still has fresh points or not."""
        return self._index.select(matchers)

    def select_any(self, alternatives: Iterable[tuple[Matcher, ...]]) -> Selection:
        """Every series that one of the alternatives accepts."""
        return self._index.select_any(alternatives)

    @property
    def names_version(self) -> int:
        """Changes when the first series of a metric comes or the last one leaves."""
        return self._index.names_version

    def has_any(self, names: Iterable[str]) -> bool:
        """Whether there is a series of one of these metrics."""
        return self._index.has_any(names)

    def dump(
        self,
        since: float,
        until: float,
        *,
        names: Iterable[str] | None = None,
        wanted: Callable[[LabelSet], bool] = lambda labels: True,
    ) -> Iterator[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Each series with its points in [since, until] (Unix seconds). The end of a series is the value STALE_NAN.

        `names`: of these metrics only; `wanted`: of these labels only.
        """
        found = list(self._index) if names is None else [one for name in names for one in self._index.named(name)]
        for series in found:
            if not wanted(series.labels):
                continue
            times, values = series.points(to_ms(since) - 1, to_ms(until))
            if len(times):
                yield series.labels.as_dict(), list(zip((times / 1000).tolist(), values.tolist(), strict=True))

    def bounds(self) -> tuple[float, float] | None:
        """Times (Unix seconds) of the oldest and the newest point; None when there is none."""
        groups = [(group.first_ms, group.last_ms) for group in self._groups.values()]
        known = [(first, last) for first, last in groups if first is not None and last is not None]
        return (min(known)[0] / 1000, max(last for _, last in known) / 1000) if known else None

    def typical_spacing_s(self) -> float | None:
        """The median time from a point of a series to its next, looked up in some of them; None when it cannot be told.

        The median of each series too: a hole in a recording, however long, is one step among many.
        """
        every = max(1, len(self._index) // _SPACING_SAMPLE)
        spacings = []
        for series in islice(self._index, 0, None, every):
            times, _ = series.points()
            if len(times) > 1:
                steps = np.sort(np.diff(times))
                spacings.append(float(steps[(len(steps) - 1) // 2]))
        return float(np.sort(spacings)[(len(spacings) - 1) // 2]) / 1000 if spacings else None

    @property
    def num_series(self) -> int:
        """How many series are held."""
        return len(self._index)

    @property
    def num_bytes(self) -> int:
        """Of points, older and newest, without labels and indexes."""
        return self._head.num_bytes + sum(group.num_bytes for group in self._groups.values())

    def check_integrity(self) -> None:
        """Asserts what must always hold between the indexes, the groups and the head."""
        self._index.check_integrity()
        assert len(self._index) <= self.max_series
        assert len({series.row for series in self._index}) == len(self._index)
        assert sum(len(group.members) for group in self._groups.values()) == len(self._index)
        for series in self._index:
            assert series.group is not None
            assert series.group.members[series.ref] is series
            assert self._groups[series.group.head_row] is series.group
        for group in self._groups.values():
            refs, own = group.refs_and_rows()
            times, _ = group.block(refs, own, -(1 << 62), 1 << 62)
            assert (np.diff(times) > 0).all()
            assert list(refs) == sorted(refs)

    def keep_at_least(self, retention_s: float) -> None:
        """Points are kept for this long, from now on: a new rule may look further back."""
        self.retention_ms = max(self.retention_ms, to_ms(retention_s))
        for group in self._groups.values():
            group.keep_ms = max(group.keep_ms, self.retention_ms)

    # -- for writers --------------------------------------------------------------------------------------------

    def new_group(self, *, is_scrape: bool = False, keep_ms: int = 0) -> SeriesGroup:
        """A group without series; `keep_ms` counts when it is longer than the retention."""
        group = SeriesGroup(
            self._head,
            is_scrape=is_scrape,
            keep_ms=max(keep_ms, self.retention_ms),
            is_packed=not self._is_recording,
            max_chunk_ms=self.retention_ms // 8,
            max_chunk_points=min(MAX_CHUNK_POINTS, max(16, self.max_points // 4)),
        )
        self._groups[group.head_row] = group
        return group

    def series_for(self, group: SeriesGroup, labels: LabelSet) -> MemSeries | None:
        """The series, made in this group when it is new; None when the store is full, or the scraped target is.

        A series that others write too gets a group of its own: two writers keep no common time.
        """
        series = self._index.find(labels)
        if series is None:
            return self._make(group, labels) if self._may_add(labels) and self._may_grow(group, labels) else None
        if series.group is not group:
            self._move_to_own_group(series)
        return series

    @property
    def has_room(self) -> bool:
        """Whether a new series would be taken."""
        return len(self._index) < self.max_series

    # -- inside -------------------------------------------------------------------------------------------------

    def _may_add(self, labels: LabelSet) -> bool:
        if not self.has_room and not self._warned_full:
            log.error("store.full", max_series=self.max_series, refused=repr(labels))
            self._warned_full = True
        return self.has_room

    def _may_grow(self, group: SeriesGroup, labels: LabelSet) -> bool:
        """Whether the target may have one more. Which one may not is logged once, until it has room again."""
        if not group.is_scrape or len(group.members) < self.max_target_series:
            self._full_groups.discard(group.head_row)
            return True
        if group.head_row not in self._full_groups:
            self._full_groups.add(group.head_row)
            log.error("store.target_full", max_series=self.max_target_series, refused=repr(labels))
        return False

    def _make(self, group: SeriesGroup, labels: LabelSet) -> MemSeries:
        series = group.add(labels)
        self._index.add(series)
        return series

    def _series_in_own_group(self, labels: LabelSet) -> MemSeries | None:
        """The series in a group of its own, made when new; None when the store is full."""
        series = self._index.find(labels)
        if series is not None:
            self._move_to_own_group(series)
        elif self._may_add(labels):
            series = self._make(self.new_group(), labels)
        return series

    def _move_to_own_group(self, series: MemSeries) -> None:
        """Moves a series to a group of its own, points included."""
        shared = series.group
        if shared is None or len(shared.members) == 1:
            return
        times, values = series.points()
        shared.remove(series)
        group = self.new_group()
        own = group.add(series.labels)
        group.members[own.ref] = series
        series.group, series.ref, series.row = group, own.ref, own.row
        if len(times):
            group.append_range(np.array([series.ref]), times, values[np.newaxis, :])
        self._index.moved(series)

    def _target_of(self, target: Mapping[str, str]) -> TargetState:
        labels = LabelSet.of(target)
        owner = self._targets.get(labels)
        if owner is None:
            owner = self._targets[labels] = TargetState(labels, Appender(self, is_scrape=True), self._layouts)
        owner.is_forgotten = False
        return owner

    def _advance(self, at_ms: int) -> None:
        if self._newest_ms is None or at_ms > self._newest_ms:
            self._newest_ms = at_ms
        if self._pruned_ms is None:
            self._pruned_ms = self._newest_ms
        elif self._newest_ms - self._pruned_ms >= _PRUNE_EVERY_MS and not self._is_recording:
            self._prune(self._newest_ms)

    def _prune(self, now_ms: int) -> None:
        self._pruned_ms = now_ms
        share = self._share_kept(now_ms)
        gone: list[MemSeries] = []
        for group in list(self._groups.values()):
            group.trim(now_ms - int(share * group.keep_ms), self.max_points)
            gone += group.without_points()
        for series in gone:
            self._index.remove(series)
            assert series.group is not None
            series.group.remove(series)
        for group in [group for group in self._groups.values() if not group.members]:
            del self._groups[group.head_row]
            self._full_groups.discard(group.head_row)
            group.close()
        for labels, owner in list(self._targets.items()):
            if owner.is_forgotten and (owner.appender.group is None or owner.appender.group.is_closed):
                del self._targets[labels]
        if gone:
            self._warned_full = False

    def _share_kept(self, now_ms: int) -> float:
        """1 when all history fits into `max_bytes`, else the share of its time that does: the same for all series."""
        sizes = [
            ((now_ms - int(chunk.times[-1])) / group.keep_ms, chunk.num_bytes)
            for group in self._groups.values()
            for chunk in group.chunks
        ]
        if sum(num_bytes for _, num_bytes in sizes) <= self.max_bytes:
            return 1.0
        if not self._warned_bytes:
            self._warned_bytes = True
            log.warning("store.history_cut", max_bytes=self.max_bytes, series=len(self._index))
        total, kept = 0, 0.0
        for age, num_bytes in sorted(sizes):
            total += num_bytes
            if total > self.max_bytes:
                break
            kept = age
        return min(1.0, kept)


def _own(owner: TargetState) -> list[LabelSet]:
    return [owner.labels.having(((METRIC_NAME, name),)) for name in _SCRAPE_METRICS]


__all__ = ["SeriesStore", "is_stale_nan"]
