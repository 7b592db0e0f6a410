"""Can silence be trusted: does the target of an alert still give signals, so that "no sample" means "clear"?

Answered from `up`. After a restart, or right after a target came back, windows such as rate(x[20s]) are still empty:
an alert may clear only when its target has been scraped without a gap for `clear_after_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import numpy as np

from alerts.arrays import Times
from alerts.labels import METRIC_NAME
from alerts.matcher import Matcher
from alerts.sample import to_ms
from alerts.series.label_column import LabelColumn
from alerts.series.series_group import MemSeries
from alerts.series.store import SeriesStore

CLEAR_AFTER_S = 30.0  # longer than the windows of the signal rules
_TARGET_LABELS = ("node", "instance", "pool", "model", "zone", "job")
_SINGLE_TARGET_LABELS = ("node", "instance")
_FRESH_AT_MOST_MS = 5 * 60 * 1000
_FRESH_AT_LEAST_MS = 15 * 1000
_UP = (Matcher(METRIC_NAME, "=", "up"),)


class Liveness(StrEnum):
    """Whether the silence of a target means that the condition is over."""

    LIVE = "live"  # signals flow: no sample means the condition is over
    LOST = "lost"  # scrapes fail, stopped, or started again only now
    REMOVED = "removed"  # the target was given up on purpose
    NEVER_SEEN = "never_seen"  # no scrape of this target is known


_ORDER = (Liveness.LIVE, Liveness.LOST, Liveness.REMOVED)


class TargetLiveness:
    """Which targets are live at one timestamp: looked up once, for all alerts that may clear then."""

    def __init__(self, store: SeriesStore, now: float, clear_after_s: float = CLEAR_AFTER_S) -> None:
        self._up = store.select(_UP)
        self._now_ms, self._clear_after_ms = to_ms(now), to_ms(clear_after_s)
        self._places: dict[tuple[str, str], set[int]] = self._up.labels.remembered(
            "places", lambda: _places(self._up.labels)
        )
        self._names = {name for name, _ in self._places}
        self._known: dict[int, Liveness] = {}

    def of_alert(self, labels: Mapping[str, str]) -> Liveness:
        """Of the target, or of all targets of the pool or model, that an alert with these labels speaks about."""
        wanted = [(name, labels[name]) for name in _TARGET_LABELS if name in labels and name in self._names]
        single = any(name in labels for name in _SINGLE_TARGET_LABELS)
        if not len(self._up) and not single:
            return Liveness.LIVE  # a store without scrapes (a test, a recording): Prometheus' own behaviour
        if single and not any(name in _SINGLE_TARGET_LABELS for name, _ in wanted):
            return Liveness.NEVER_SEEN
        parts = sorted((self._places.get(pair, set()) for pair in wanted), key=len)
        places = parts[0].intersection(*parts[1:]) if parts else range(len(self._up))
        found = set()
        for place in places:
            if place not in self._known:
                self._known[place] = _of_target(self._up.series[place], self._now_ms, self._clear_after_ms)
            found.add(self._known[place])
            if Liveness.LIVE in found:
                break  # nothing counts for more
        return next((answer for answer in _ORDER if answer in found), Liveness.NEVER_SEEN)


def liveness_of(
    store: SeriesStore, labels: Mapping[str, str], now: float, *, clear_after_s: float = CLEAR_AFTER_S
) -> Liveness:
    """For one alert alone: see TargetLiveness."""
    return TargetLiveness(store, now, clear_after_s).of_alert(labels)


def _places(labels: LabelColumn) -> dict[tuple[str, str], set[int]]:
    """Which series have a label."""
    places: dict[tuple[str, str], set[int]] = {}
    for place, entry in enumerate(labels):
        for pair in entry.pairs:
            places.setdefault(pair, set()).add(place)
    return places


def _of_target(up: MemSeries, now_ms: int, clear_after_ms: int) -> Liveness:
    if up.has_ended:
        return Liveness.REMOVED
    times, values = up.points(now_ms - _FRESH_AT_MOST_MS - clear_after_ms, now_ms)
    if len(times) < 2:
        times, values = up.points(until_ms=now_ms)
    if not len(times):
        return Liveness.NEVER_SEEN
    last_ms = int(times[-1])
    spacing_ms = _middle(np.diff(times)) if len(times) > 1 else _FRESH_AT_LEAST_MS
    fresh_ms = min(max(3 * spacing_ms, _FRESH_AT_LEAST_MS), _FRESH_AT_MOST_MS)
    if now_ms - last_ms > fresh_ms or int(times[0]) > now_ms - clear_after_ms:
        return Liveness.LOST
    start = int(np.searchsorted(times, now_ms - clear_after_ms, side="right"))
    start = min(start, len(times) - 1)
    gap_ms = int(np.diff(times[max(0, start - 1) :]).max(initial=0))
    if gap_ms > max(fresh_ms, clear_after_ms):
        return Liveness.LOST  # nobody looked for a while: what windows hold now is from before it, or too little
    return Liveness.LIVE if (values[start:] == 1.0).all() else Liveness.LOST


def _middle(spacings_ms: Times) -> int:
    """The median, in whole milliseconds. numpy's own brings masked arrays along, 2 MB of code."""
    ordered = np.sort(spacings_ms)
    half = len(ordered) // 2
    return int(ordered[half]) if len(ordered) % 2 else int(ordered[half - 1] + ordered[half]) // 2
