"""How long users waited for their first token by the gateway's own clock. Pure.

Nodes count from when a request reaches them: what waits at the gateway, for a seat or for a worker, is not in theirs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

from fleetctl.controller.incidents.counter_growth import Points, growths

WINDOW_S = 20.0  # as the nodes' p99 has it
WINDOWS_BEFORE = 5  # of what users waited just before


def worst_p99_s(buckets: Mapping[float, Sequence[Points]], since: float) -> float | None:
    """The worst p99 of a window from `since` on, out of a histogram's series by their upper bound; None: no request.

    A bucket of 40 to 80 s tells 79 s of who waited 45: nobody waited longer than since it began, beyond what users
    waited before.
    """
    windows: dict[int, dict[float, float]] = defaultdict(dict)
    for bound, series in buckets.items():
        for points in series:
            for at, grown in islice(growths(points), 1, None):  # what the first point has is of before
                if at >= since - WINDOWS_BEFORE * WINDOW_S:
                    counts = windows[int((at - since) // WINDOW_S)]
                    counts[bound] = counts.get(bound, 0.0) + grown
    found = {number: one for number, counts in windows.items() if (one := _quantile(counts, 0.99)) is not None}
    before = max((one for number, one in found.items() if number < 0), default=math.inf)
    return max(
        (min(one, (number + 1) * WINDOW_S + before) for number, one in found.items() if number >= 0), default=None
    )


def _quantile(counts: Mapping[float, float], share: float) -> float | None:
    """Linear within its bucket; of the last, open one its lower bound, as PromQL's histogram_quantile."""
    bounds = sorted(counts)
    if not bounds or counts[bounds[-1]] <= 0:
        return None
    rank, below, low = share * counts[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            if math.isinf(bound):
                return low
            within = counts[bound] - below
            return low + (bound - low) * ((rank - below) / within if within else 1.0)
        below, low = counts[bound], bound
    return low
