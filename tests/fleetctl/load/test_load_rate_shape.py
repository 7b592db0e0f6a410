"""How a rate goes: counted over the run, beside what its name says."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fleetctl.load.rate_shape import RateShape, shaped
from fleetctl.load.shape import RequestShape

STEADY = [RequestShape(at_s=i / 100, prompt_tokens=8, output_tokens=8) for i in range(24_000)]  # 100/s, 4 minutes


def counts(how: RateShape, lasts_s: float = 120.0, parts: int = 12) -> list[float]:
    """Arrivals a second in each part of the run."""
    times = [shape.at_s for shape in shaped(STEADY, how, lasts_s=lasts_s)]
    width = lasts_s / parts
    return [sum(i * width <= at < (i + 1) * width for at in times) / width for i in range(parts)]


def test_steady_traffic_is_all_of_it_until_the_end() -> None:
    assert counts(RateShape.steady) == [100.0] * 12


def test_a_ramp_rises_from_nothing_to_the_rate() -> None:
    found = counts(RateShape.ramp)
    assert found[0] < 15
    assert found[-1] > 85
    assert all(later > sooner - 10 for sooner, later in pairwise(found))


def test_bursts_come_once_a_minute_above_a_quarter() -> None:
    found = counts(RateShape.burst)
    assert (found[5], found[11]) == (100.0, 100.0)
    assert all(15 < rate < 35 for rate in [*found[:5], *found[6:11]])


def test_a_run_shorter_than_a_minute_has_one_burst_all_the_same() -> None:
    found = counts(RateShape.burst, lasts_s=12.0, parts=6)
    assert found[5] == 100.0
    assert all(5 < rate < 45 for rate in found[:5])


def test_a_wave_has_one_hill() -> None:
    found = counts(RateShape.wave)
    assert max(found) in found[5:7]
    assert found[0] < 40
    assert found[-1] < 40


@pytest.mark.parametrize("how", RateShape)
def test_the_same_seed_is_the_same_traffic(how: RateShape) -> None:
    first, again, other = (list(shaped(STEADY, how, lasts_s=30, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert how is RateShape.steady or first != other
