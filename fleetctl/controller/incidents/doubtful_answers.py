"""How many answers of an incident may be wrong: those that nodes gave which failed their known prompt. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

from fleetctl.controller.incidents.counter_growth import Points, increase

# A known prompt is asked once a minute: the last right answer to it is at most so old when one is wrong.
CHECKED_EVERY_S = 60.0


@dataclass(slots=True)
class DoubtfulAnswers:
    """What was read of the nodes that an incident is about."""

    checks: dict[str, Points] = field(default_factory=dict)  # by node: 1 right, 0 wrong
    finished: dict[str, list[Points]] = field(default_factory=dict)  # by node, as gateways count them
    served: dict[str, Points] = field(default_factory=dict)  # a second, by the node's own count

    def counted(self, since: float, *, by_gateway: bool) -> dict[str, int] | None:
        """By node, the answers since its last right one to the known prompt. None: no node was found wrong.

        `by_gateway`: whether its counts tell the whole time; else, and where it has none of a node, the node's own do.
        """
        spans = {node: found for node, points in self.checks.items() if (found := wrong_spans(points, since))}
        if not spans:
            return None
        told = {}
        for node, parts in spans.items():
            if by_gateway and node in self.finished:
                told[node] = round(sum(increase(points, *part) for points in self.finished[node] for part in parts))
            elif node in self.served:
                told[node] = round(sum(_summed(self.served[node], *part) for part in parts))
        return told


def wrong_spans(points: Points, since: float) -> list[tuple[float, float]]:
    """From when until when answers may be wrong: from the last check before the first that failed to the next that
    did not. What was wrong before `since`, less that minute, is another incident's."""
    spans: list[tuple[float, float]] = []
    first: float | None = None
    last = -math.inf
    for at, value in points:
        if not math.isfinite(value):
            continue
        last = at
        if value < 1 and first is None:
            first = at
        elif value >= 1 and first is not None:
            spans.append((first, at))
            first = None
    if first is not None:
        spans.append((first, last))
    least = since - CHECKED_EVERY_S
    return [(max(begin - CHECKED_EVERY_S, least), end) for begin, end in spans if end > since]


def _summed(points: Points, since: float, until: float) -> float:
    """A rate over a span: each value holds until the next one."""
    known = [(at, value) for at, value in points if since <= at <= until and math.isfinite(value)]
    return sum(value * (later - at) for (at, value), (later, _) in pairwise(known))
