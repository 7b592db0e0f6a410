"""When it began: the change point in the series that show it, with its uncertainty. Pure.

An alert begins when its limit is passed. What it is about may have begun minutes before (a ramp, a window of a mean),
and a past that contains the beginning hides it. The split is the one of the largest rank sum (Mann-Whitney's U, as in
Pettitt's test for one change point): it needs no distribution, and single outliers move it little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

LOOK_BACK_S = 5400.0  # of the series before the alert
AFTER_S = 120.0  # and after it: a remedy, or a second change, is another story
MIN_BEFORE = 12  # samples; fewer are no past
MIN_AFTER = 3
MIN_Z = 3.5  # of the rank sum: one in some thousand splits of noise
MAX_TRIED = 60  # splits, the strongest first
MIN_SHIFT = 3.0  # medians apart, in the noise before (median absolute deviation, scaled to a standard deviation)
COMMON = (
    0.95  # of the past: where half of it is one value, as of rare events, its noise is how far so much of it lies off
)
MEAN_OF = 4  # samples: a minute. Rare events are many in it where each sample has none, one or two
FEW = 8  # samples for each value that there is, at the least: means and times are never the same twice
DRIFT_RATIO = 0.3  # of the value before, behind a drift
MIN_RATIO = 0.1  # and in the value before: a series without noise has many standard deviations


@dataclass(frozen=True, slots=True)
class Onset:
    """Unix seconds. It began between `early` and `late`; a past to compare with ends before `early`."""

    at: float
    early: float
    late: float
    how: str  # for a reader: where it comes from
    past_until: float | None = None  # where a past to compare with ends, if later than `early`: of what has always been

    @property
    def compares_until(self) -> float:
        """Where a past to compare with ends."""
        return self.early if self.past_until is None else max(self.early, self.past_until)


def alert_onset(active_at: float) -> Onset:
    """The alert's own word."""
    return Onset(active_at, active_at, active_at, "when the alert's limit was passed")


def find_onset(
    series: Iterable[Sequence[tuple[float, float]]],
    active_at: float,
    now: float,
    look_back_s: float = LOOK_BACK_S,
    not_before: float = -math.inf,
) -> Onset:
    """The change point nearest before the alert in any of `series` ((time, value), sorted); else the alert's own word.

    Of several series that changed, the earliest change counts: what follows is its consequence. Where none does by
    its samples, means of a minute are looked at of those that jump between few values, as a rate of rare events does.
    `not_before`: what certainly began earlier is another story.
    """

    def changes(given: Iterable[Sequence[tuple[float, float]]]) -> list[Onset]:
        found = (change_point(points, active_at, now, look_back_s) for points in given)
        return [one for one in found if one is not None and one.early >= not_before]

    given = list(series)
    if not (found := changes(given)):
        until = min(now, active_at + AFTER_S)
        counts = [points for points in given if len({value for _, value in points}) * FEW <= len(points)]
        found = changes(_means([point for point in points if point[0] <= until]) for points in counts)
    return min(found, key=lambda one: one.at, default=alert_onset(active_at))


def change_point(
    points: Sequence[tuple[float, float]],
    active_at: float,
    now: float,
    look_back_s: float,
    *,
    looks_past_drift: bool = False,
) -> Onset | None:
    """The last change of a series that lasts, before `active_at` or with it; None: it changes no more than ever.

    `looks_past_drift`: where the strongest split is a drift, a weaker one counts that is a change of level. Of a queue,
    which swells now and then, that would be any of its waves.
    """
    until = min(now, active_at + AFTER_S)
    window = [(at, value) for at, value in points if active_at - look_back_s <= at <= until and math.isfinite(value)]
    at = np.array([one[0] for one in window])
    values = np.array([one[1] for one in window])
    level = float(np.median(values[-MIN_AFTER:])) if len(values) else 0.0
    start = 0
    while (split := _split(values[start:], looks_past_drift)) is not None:
        best = start + split.at
        # A harmless step long before is no beginning: what came after it must explain most of how it is now.
        if abs(split.shift) >= 0.5 * abs(level - split.centre) and split.shift * (level - split.centre) > 0:
            return _onset(at, values, start, best, split, active_at)
        start = best
    return None


def _means(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The means of each `MEAN_OF` samples, at the first of them; counted from the end, where the change is."""
    known = [point for point in points if math.isfinite(point[1])]
    known = known[len(known) % MEAN_OF :]
    parts = [known[at : at + MEAN_OF] for at in range(0, len(known), MEAN_OF)]
    return [(part[0][0], sum(value for _, value in part) / MEAN_OF) for part in parts]


@dataclass(frozen=True, slots=True)
class _Split:
    at: int  # the change is before this sample
    near: tuple[int, int]  # the first and last split that are nearly as strong
    centre: float  # median before
    noise: float  # as a standard deviation, before
    shift: float  # of the median


def _split(values: np.ndarray, looks_past_drift: bool) -> _Split | None:
    """The one change that is in the values for certain; None: none is."""
    count = len(values)
    if count < MIN_BEFORE + MIN_AFTER:
        return None
    splits = np.arange(1, count)
    usable = (splits >= MIN_BEFORE) & (splits <= count - MIN_AFTER)
    strength = np.where(usable, np.abs(_rank_sums(values)), 0.0)
    best = int(np.argmax(strength)) + 1
    if strength[best - 1] < MIN_Z:
        return None
    near = np.flatnonzero(strength >= strength[best - 1] - 1.0) + 1
    found = _level_change(values, best)
    if found is None and not looks_past_drift:
        return _behind_drift(values, best)
    if found is None:
        # Of a series that drifts the strongest split is often no change of level, and a weaker one is: of what has just
        # begun there are few samples.
        order = (np.argsort(-strength)[:MAX_TRIED] + 1).tolist()
        tried = {
            at: one for at in order if strength[at - 1] >= MIN_Z and (one := _level_change(values, at)) is not None
        }
        if not tried:
            return None
        best = max(tried, key=lambda at: float(strength[at - 1]) * abs(tried[at][2]))
        found = tried[best]
        near = np.array([at for at, (_, _, shift) in tried.items() if shift / found[2] >= 0.5])
    return _Split(best, (int(near.min()), int(near.max())), *found)


def _behind_drift(values: np.ndarray, drift_at: int) -> _Split | None:
    """The change behind a drift that is the stronger split for its many samples on both of its sides; None: none is.

    Held to the noise of all that was before, the drift among it, and to a larger share of the value: a queue swells now
    and then, and each of its waves is a level of some minutes.
    """
    count = len(values) - drift_at
    if count < MIN_BEFORE + MIN_AFTER:
        return None
    splits = np.arange(1, count)
    usable = (splits >= MIN_BEFORE) & (splits <= count - MIN_AFTER)
    strength = np.where(usable, np.abs(_rank_sums(values[drift_at:])), 0.0)
    best = int(np.argmax(strength)) + 1
    found = _level_change(values, drift_at + best)
    if strength[best - 1] < MIN_Z or found is None or abs(found[2]) < DRIFT_RATIO * abs(found[0]):
        return None
    near = np.flatnonzero(strength >= strength[best - 1] - 1.0) + 1
    return _Split(drift_at + best, (drift_at + int(near.min()), drift_at + int(near.max())), *found)


def _level_change(values: np.ndarray, at: int) -> tuple[float, float, float] | None:
    """The median before a split, the noise there and by how much the median moves; None: no more than noise does."""
    past = values[:at]
    centre = float(np.median(past))
    off = np.abs(past - centre)
    noise = 1.4826 * float(np.median(off)) or float(np.quantile(off, COMMON)) / 2
    shift = float(np.median(values[at:])) - centre
    is_one = shift != 0 and abs(shift) >= max(MIN_SHIFT * noise, MIN_RATIO * abs(centre))
    return (centre, noise, shift) if is_one else None


def _onset(at: np.ndarray, values: np.ndarray, start: int, best: int, split: _Split, active_at: float) -> Onset | None:
    """A ramp is split in its middle: it began where the values last lay in the noise of the past."""
    past = values[start : start + max(MIN_BEFORE, split.at // 2)]
    centre = float(np.median(past))
    band = max(2 * split.noise, 0.1 * abs(split.shift))
    began = best
    while began > start + MIN_BEFORE and (values[began - 1] - centre) * math.copysign(1, split.shift) > band:
        began -= 1
    onset = float(at[began])
    if onset > active_at + 1:
        return None
    early = float(at[min(began, start + split.near[0])])
    late = float(at[max(began, start + split.near[1])])
    return Onset(onset, early, min(late, max(active_at, onset)), "the change point of its series")


def _rank_sums(values: np.ndarray) -> np.ndarray:
    """The standardised rank sum of each split; entry i is the split before sample i + 1."""
    count = len(values)
    order = np.argsort(values, kind="stable")
    ranks = np.empty(count)
    ranks[order] = np.arange(1, count + 1)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    sums = np.zeros(len(counts))
    np.add.at(sums, inverse, ranks)
    ranks = (sums / counts)[inverse]  # ties share their mean rank
    left = np.arange(1, count)
    right = count - left
    total = np.cumsum(ranks)[:-1]
    expected = left * (count + 1) / 2
    deviation = np.sqrt(left * right * (count + 1) / 12)
    return (total - expected) / deviation
