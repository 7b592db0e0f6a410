"""When it began: before the alert where the series show it, with an honest uncertainty."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from alerts.series.store import SeriesStore
from diagnostics.evidence.onset import find_onset
from diagnostics.evidence.symptom_onset import onset_of_series
from diagnostics.tree_file import builtin_tree_files, load_trees

STEP_S = 15.0
ALERT = 7200.0


def _series(value_at, *, noise: float, seed: int = 1, until: float = ALERT + 60) -> list[tuple[float, float]]:
    rng = random.Random(seed)
    times = [1800.0 + STEP_S * i for i in range(int((until - 1800) / STEP_S))]
    return [(at, value_at(at) * (1 + rng.gauss(0, noise))) for at in times]


@pytest.mark.parametrize("before_s", [120.0, 300.0, 1100.0, 2400.0])
@pytest.mark.parametrize("factor", [1.8, 3.0, 10.0])
def test_step_is_found_within_a_minute_nineteen_times_of_twenty(before_s: float, factor: float) -> None:
    began = ALERT - before_s
    found = [
        find_onset(
            [_series(lambda at: 0.18 * (factor if at >= began else 1), noise=0.08, seed=seed)], ALERT, ALERT + 60
        )
        for seed in range(60)
    ]
    assert sum(abs(one.at - began) <= 60 for one in found) >= 57
    assert sum(one.early <= began + STEP_S for one in found) >= 57
    assert all(one.early <= one.at <= one.late for one in found)


def test_ramp_began_where_it_left_the_noise_not_in_its_middle() -> None:
    began = ALERT - 1800
    points = _series(lambda at: 0.4 + max(0.0, at - began) / 1800 * 0.5, noise=0.02)
    assert abs(find_onset([points], ALERT, ALERT + 60).early - began) < 300


def test_noise_alone_is_no_onset() -> None:
    found = [find_onset([_series(lambda _: 1.0, noise=0.2, seed=seed)], ALERT, ALERT + 60) for seed in range(60)]
    assert all(one.at == ALERT for one in found)


def test_harmless_step_long_before_is_not_the_beginning() -> None:
    points = _series(lambda at: 1.0 if at < ALERT - 3000 else 1.3 if at < ALERT - 30 else 9.0, noise=0.03)
    assert find_onset([points], ALERT, ALERT + 60).at >= ALERT - 60


def test_no_history_and_nan_leave_the_alerts_own_word() -> None:
    assert find_onset([], ALERT, ALERT).at == ALERT
    assert find_onset([[(ALERT - 15 * i, math.nan) for i in range(100, 0, -1)]], ALERT, ALERT).at == ALERT
    assert find_onset([[(ALERT - 15, 1.0), (ALERT, 9.0)]], ALERT, ALERT).at == ALERT


def test_change_in_the_third_minute_of_a_record_is_found_and_leaves_a_minute_of_past() -> None:
    store, began = SeriesStore(), ALERT + 120
    for at in range(int(ALERT), int(began) + 60, 5):
        noisy = (0.2 if at >= began else 0.1) * (1 + 0.05 * math.sin(at))
        store.append({"__name__": "llm:ttft_seconds:mean", "pool": "chat"}, at, noisy)
    now = began + 55
    found = onset_of_series(['avg(llm:ttft_seconds:mean{pool="{{pool}}"})'], {"pool": "chat"}, store, now, now)
    assert abs(found.at - began) <= 15
    assert ALERT + 90 <= found.early <= found.at


@pytest.mark.parametrize(("invalid_from", "invalid", "expected"), [(0, 0.02, 1500), (900, 0.8, 900)])
def test_few_bad_requests_are_no_beginning_of_failing_ones_and_many_are(
    invalid_from: int, invalid: float, expected: int
) -> None:
    """Of a few in minutes the first comes early in a record, and every mean after it is above zero."""
    store, rng, labels = SeriesStore(), random.Random(7), {"node": "node-1", "pool": "chat"}
    for at in range(0, 1860, 15):
        bad = invalid if at >= max(invalid_from, 105) else 0.0
        failed = 0.6 * (1 + rng.gauss(0, 0.2)) if at >= 1500 else 0.0
        for name, value in (("invalid", bad), ("requests", 5.0), ("failed", failed)):
            store.append({"__name__": f"llm:{name}:rate", **labels}, ALERT + at, value)
    onset = load_trees(builtin_tree_files())["errors"].onset
    found = onset_of_series(onset, {"pool": "chat"}, store, ALERT + 1700, ALERT + 1850)
    assert abs(found.at - ALERT - expected) <= 60


def _rates(low: float, high: float, began: float, window_s: float, seed: int) -> list[tuple[float, float]]:
    """The rate, over a window, of events that come at random: `low` a second, from `began` on `high`."""
    rng, events, at = random.Random(seed), [], 1700.0
    while at < ALERT + 60:
        rate = high if at >= began else low
        step = rng.expovariate(rate) if rate else began - at
        crosses = at < began < at + step  # from there on it is another rate
        at = began if crosses else at + step
        events += [] if crosses else [at]
    times = [1800.0 + STEP_S * i for i in range(int((ALERT + 60 - 1800) / STEP_S))]
    return [(now, sum(now - window_s < one <= now for one in events) / window_s) for now in times]


@pytest.mark.parametrize(
    ("low", "high", "window_s"), [(0.0, 0.1, 20.0), (0.002, 0.1, 20.0), (0.05, 0.2, 20.0), (0.05, 0.2, 60.0)]
)
def test_rare_events_that_become_more_are_found_within_a_minute_four_times_of_five(
    low: float, high: float, window_s: float
) -> None:
    """A sample of 20 s has none, one or two: of 0.05 and 0.2 a second no sample is beyond what it was before."""
    began = ALERT - 300
    found = [find_onset([_rates(low, high, began, window_s, seed)], ALERT, ALERT + 60) for seed in range(40)]
    assert sum(abs(one.at - began) <= 60 for one in found) >= 32


@pytest.mark.parametrize("rate", [0.002, 0.01, 0.05])
def test_rare_events_that_overlapping_windows_make_into_runs_are_no_onset(rate: float) -> None:
    """Half of such a past is zero, so its median deviation is too: two events in one window were a change of level."""
    found = [find_onset([_rates(rate, rate, ALERT, 60.0, seed)], ALERT, ALERT + 60) for seed in range(40)]
    assert sum(one.at == ALERT for one in found) >= 39


def test_change_behind_a_drift_is_found_though_the_drift_has_more_samples_on_both_of_its_sides() -> None:
    rng = np.random.default_rng(5)
    values = [*(0.0190 + 0.0003 * rng.standard_normal(60)), *(0.0203 + 0.0003 * rng.standard_normal(160))]
    values += [*(0.0370 + 0.0005 * rng.standard_normal(20))]
    points = [(15.0 * n, float(value)) for n, value in enumerate(values)]
    assert find_onset([points], points[-1][0], points[-1][0]).at == pytest.approx(220 * 15.0, abs=30)
    calm = points[:220]
    assert find_onset([calm], calm[-1][0], calm[-1][0]).at == calm[-1][0]
