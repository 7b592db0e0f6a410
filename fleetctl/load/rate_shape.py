"""How a rate changes while traffic runs: steady, ramp, burst, wave. Pure: a shape of traffic is thinned by it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

from fleetctl.load.shape import RequestShape

BURST_EVERY_S = 60.0
BURST_S = 10.0
QUIET_SHARE = 0.25  # of the rate, between two bursts and in the valley of a wave


class RateShape(StrEnum):
    """How the rate goes. The rate that is asked for is the highest."""

    steady = "steady"  # the rate all the time
    ramp = "ramp"  # from nothing to the rate, over the whole run
    burst = "burst"  # a quarter of the rate, and all of it for the last 10 s of each minute, or sixth of a shorter run
    wave = "wave"  # from a quarter to all of it and back, once in the run


def _burst(at_s: float, lasts_s: float) -> float:
    """In a run shorter than the time between two bursts there is one, shorter by as much."""
    every_s = min(BURST_EVERY_S, lasts_s)
    burst_s = BURST_S * every_s / BURST_EVERY_S
    return 1.0 if at_s % every_s >= every_s - burst_s else QUIET_SHARE


def _wave(at_s: float, lasts_s: float) -> float:
    height = (1 - math.cos(2 * math.pi * at_s / lasts_s)) / 2
    return QUIET_SHARE + (1 - QUIET_SHARE) * height


SHARES: Mapping[RateShape, Callable[[float, float], float]] = {
    RateShape.steady: lambda at_s, lasts_s: 1.0,
    RateShape.ramp: lambda at_s, lasts_s: min(1.0, at_s / lasts_s),
    RateShape.burst: _burst,
    RateShape.wave: _wave,
}
"""The share of the rate at a time, of a run that lasts so long."""


def shaped(shapes: Iterable[RequestShape], how: RateShape, *, lasts_s: float, seed: int = 0) -> Iterator[RequestShape]:
    """Those of steady shapes that are left when the rate goes so, until the run's end. The same for a seed."""
    rng, share_at = random.Random(seed), SHARES[how]
    for shape in shapes:
        if shape.at_s >= lasts_s:
            return
        if rng.random() < share_at(shape.at_s, lasts_s):
            yield shape
