"""When no gateway answered, and how many came a second before that. Pure.

Who finds no gateway is counted by nobody: the time and what came before it are all that is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fleetctl.controller.incidents.counter_growth import Points, growths

BEFORE_S = 60.0
LEAST_S = 30.0  # of less than that a rate is chance
SILENT_S = 10.0  # of one of several; a look that came late is no outage of it
LATE_S = 60.0  # after it went on: what waited at a gateway that hung has ended, but for long answers


class Outage(NamedTuple):
    """From a look that no gateway answered to the next that one did, or to the last; `seen_at`: the last before it."""

    since: float
    until: float
    seen_at: float


def outages(ups: Sequence[Points], since: float) -> list[Outage]:
    """Those from `since` on, out of `up` of each gateway; one that was there by then begins with it."""
    looks = sorted((at, which, value) for which, points in enumerate(ups) for at, value in points if value == value)
    values: dict[int, float] = {}
    found: list[Outage] = []
    seen_at, down_since = since, None
    for at, which, value in looks:
        values[which] = value
        is_down = len(values) == len(ups) and not any(values.values())
        if is_down and down_since is None:
            down_since = max(at, since)
        elif not is_down:
            if down_since is not None:
                found.append(Outage(down_since, at, seen_at))
            seen_at, down_since = max(at, since), None
    if looks and down_since is not None:
        found.append(Outage(down_since, looks[-1][0], seen_at))
    return [one for one in found if one.until > one.since]


def silent_ones(ups: Sequence[Points], since: float) -> tuple[int, float]:
    """How many of several gateways did not answer for longer than all of them together, and the longest time of one."""
    together = sum(one.until - one.since for one in outages(ups, since))
    alone = [sum(one.until - one.since for one in outages([points], since)) for points in ups]
    longer = [silent_s for silent_s in alone if silent_s - together >= SILENT_S]
    return (len(longer), max(longer)) if longer else (0, 0.0)


def came_before(ended: Sequence[Points], ups: Sequence[Points], found: Sequence[Outage]) -> float | None:
    """What came a second before them, each counted for as long as it was. One that follows too closely upon another has
    that one's rate. None: nobody knows."""
    came = length = 0.0
    rate, after = None, -math.inf
    for gap in found:
        if gap.seen_at - after >= LEAST_S:
            rate = arrivals_per_s(ended, ups, gap.since, after)
        if rate is None:
            return None
        came, length, after = came + rate * (gap.until - gap.seen_at), length + gap.until - gap.seen_at, gap.until
    return came / length if length else None


def waited_for_one(ended: Sequence[Points], found: Sequence[Outage], per_s: float | None) -> int:
    """About how many waited until a gateway that had hung went on, and ended there then: what ended after each more
    than came a second before. Of one that was started anew nobody can say: who ends there may have come again."""
    if per_s is None:
        return 0
    grown = [(at, one) for points in ended for at, one in growths(points)]
    late, last = 0.0, max((at for at, _ in grown), default=0.0)
    for number, gap in enumerate(found):
        ends = [gap.until + LATE_S, last, *(one.seen_at for one in found[number + 1 : number + 2])]
        until = max(gap.until, min(ends))
        more = sum(one for at, one in grown if gap.until < at <= until) - per_s * (until - gap.until)
        late += min(max(0.0, more), per_s * (gap.until - gap.seen_at))
    return round(late)


def found_none(ended: Sequence[Points], found: Sequence[Outage], per_s: float | None) -> int | None:
    """About how many came meanwhile and found none: `per_s`, what came before, less those that ended at a gateway all
    the same, which was only too busy to be looked at. None: nobody knows what came before."""
    if not found:
        return 0
    if per_s is None:
        return None
    grown = ((at, one) for points in ended for at, one in growths(points))
    served = sum((one for at, one in grown if any(gap.seen_at < at <= gap.until for gap in found)), 0.0)
    return max(0, round(per_s * sum(gap.until - gap.seen_at for gap in found) - served))


def arrivals_per_s(ended: Sequence[Points], ups: Sequence[Points], at: float, after: float) -> float | None:
    """What came a second in the minute before `at`, and not before `after`, by what ended then, however it did: as much
    as came, but for what was held longer. `ended`: counters of requests. None: nobody looked for long enough."""
    known = [time for points in ups for time, value in points if value == 1.0 and after <= time < at]
    if not known:
        return None
    first, last = max(min(known), at - BEFORE_S), max(known)
    if last - first < LEAST_S:
        return None
    # What the first look brings is of before it: all that a counter has had since its gateway started.
    grown = (one for points in ended for time, one in growths(points) if first < time <= last)
    return sum(grown, 0.0) / (last - first)
