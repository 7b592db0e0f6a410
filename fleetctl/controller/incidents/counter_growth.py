"""How much a counter grew, of the points that were kept of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Points = Sequence[tuple[float, float]]


def growths(points: Points) -> Iterator[tuple[float, float]]:
    """When, and by how much, at each point that is a number: at the first by all of it, as behind a reset."""
    last = 0.0
    for at, value in points:
        if math.isfinite(value):
            yield at, value - last if value >= last else value
            last = value


def increase(points: Points, since: float, until: float = math.inf) -> float:
    """How much it grew from `since` to `until`; from zero where its first point is in between, and after a reset."""
    return sum((grown for at, grown in growths(points) if since <= at <= until), 0.0)
