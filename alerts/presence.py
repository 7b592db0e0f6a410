"""Can silence be trusted: does the target of an alert still give signals, so that "no sample" means "clear"?

Answered from `up`. After a restart, or right after a target came back, windows such as rate(x[20s]) are still empty:
an alert may clear only when its target has been scraped without a gap for `clear_after_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from alerts.matcher import Matcher
from alerts.sample import NAME, to_ms
from alerts.series import Series
from alerts.store import SeriesStore

CLEAR_AFTER_S = 30.0  # longer than the windows of the signal rules
_TARGET_LABELS = ("node", "instance", "pool", "model", "zone", "job")
_SINGLE_TARGET_LABELS = ("node", "instance")
_FRESH_AT_MOST_MS = 5 * 60 * 1000
_FRESH_AT_LEAST_MS = 15 * 1000
_UP = (Matcher(NAME, "=", "up"),)


class Presence(StrEnum):
    PRESENT = "present"  # signals flow: no sample means the condition is over
    LOST = "lost"  # scrapes fail, stopped, or started again only now
    REMOVED = "removed"  # the target was given up on purpose
    NEVER_SEEN = "never_seen"  # no scrape of this target is known


def presence(
    store: SeriesStore, labels: Mapping[str, str], now: float, *, clear_after_s: float = CLEAR_AFTER_S
) -> Presence:
    """Of the target, or of all targets of the pool or model, that an alert with these labels speaks about."""
    every = store.select(_UP)
    used = {name for series in every for name, _ in series.labels.pairs}
    wanted = {name: labels[name] for name in _TARGET_LABELS if name in labels and name in used}
    single = any(name in labels for name in _SINGLE_TARGET_LABELS)
    matching = [series for series in every if all(series.labels.get(name) == value for name, value in wanted.items())]
    if not every and not single:
        return Presence.PRESENT  # a store without scrapes (a test, a recording): Prometheus' own behaviour
    if single and not any(name in wanted for name in _SINGLE_TARGET_LABELS):
        return Presence.NEVER_SEEN
    found = [_of_target(series, to_ms(now), to_ms(clear_after_s)) for series in matching]
    for answer in (Presence.PRESENT, Presence.LOST, Presence.REMOVED):
        if answer in found:
            return answer
    return Presence.NEVER_SEEN


def _of_target(up: Series, now_ms: int, clear_after_ms: int) -> Presence:
    if up.has_ended:
        return Presence.REMOVED
    _, end = up.window(0, now_ms)
    if end == 0:
        return Presence.NEVER_SEEN
    last_ms = up.times[end - 1]
    spacing_ms = last_ms - up.times[end - 2] if end > 1 else _FRESH_AT_LEAST_MS
    fresh_ms = min(max(3 * spacing_ms, _FRESH_AT_LEAST_MS), _FRESH_AT_MOST_MS)
    if now_ms - last_ms > fresh_ms or up.times[0] > now_ms - clear_after_ms:
        return Presence.LOST
    start, end = up.window(now_ms - clear_after_ms, now_ms)
    recent = up.values[min(start, end - 1) : end]
    return Presence.PRESENT if all(value == 1.0 for value in recent) else Presence.LOST
