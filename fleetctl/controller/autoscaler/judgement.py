"""How many nodes a pool should have, and why. Pure: what is known comes in as values, `now` too.

Load is the larger of KV in use and seats taken, averaged over the pool; queue is what waits. CPU tells neither. Full
nodes look the same whatever is asked of them: how many too few they are tells what arrives beside what ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise

from fleetctl.settings.autoscaler import AutoscalerSettings, CapacitySchedule

REVERSAL_WINDOW_S = 3600.0
MIN_CLEARED_S = 60.0  # a queue need not be gone sooner
RECENT_S = 30.0  # over which the load of now is averaged: rates of a few seconds are noisy


class Direction(StrEnum):
    """What is to be done."""

    OUT = "out"
    IN = "in"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """A pool as it is. None: not known now. `kv_ratio`, `seat_ratio`: means over the nodes that serve."""

    wanted: int
    serving: int | None
    kv_ratio: float | None
    seat_ratio: float | None
    waiting: float | None
    start_s: float | None = None  # how long a node took from wanted to ready; None: not measured yet
    tells_seats: bool = True  # False: its engine does not say how many sequences run at once; KV is all there is
    arriving_per_s: float | None = None  # requests; None: not known, and full nodes are taken for just enough
    ending_per_s: float | None = None

    @property
    def unknown(self) -> str:
        """What is not known, for people; empty when all is. NaN and infinity are not known either."""
        named = {"nodes that serve": self.serving, "KV": self.kv_ratio, "queue": self.waiting}
        if self.tells_seats:
            named["seats"] = self.seat_ratio
        missing = [name for name, value in named.items() if value is None or not math.isfinite(value)]
        return f"{' and '.join(missing)} not known" if missing else ""

    @property
    def ratio(self) -> float:
        """The larger of KV in use and seats taken. Call it only when nothing is unknown."""
        assert self.kv_ratio is not None
        return max(self.kv_ratio, self.seat_ratio or 0.0)

    def demand(self, limits: AutoscalerSettings) -> float:
        """Nodes' worth of load. With a queue: of what arrives, and what waits is gone within a cooldown."""
        assert self.serving is not None
        assert self.waiting is not None
        carried = self.ratio * max(1, self.serving)
        if not self.tells_overload(limits):
            return carried
        assert self.arriving_per_s is not None
        assert self.ending_per_s is not None
        asked = self.arriving_per_s + self.waiting / max(MIN_CLEARED_S, limits.cooldown_out_s)
        return carried * max(1.0, asked / self.ending_per_s)

    def tells_overload(self, limits: AutoscalerSettings) -> bool:
        """Whether it is known by how much the pool is too small, not only that its nodes are full."""
        rates = (self.arriving_per_s, self.ending_per_s)
        return self.is_queued(limits) and all(one is not None and math.isfinite(one) and one > 0 for one in rates)

    def is_queued(self, limits: AutoscalerSettings) -> bool:
        """Whether more waits than a pool of this size should have waiting."""
        assert self.serving is not None
        assert self.waiting is not None
        return self.waiting > limits.queue_per_node * max(1, self.serving)

    @property
    def words(self) -> str:
        """KV, seats and queue for people."""
        seats = "" if self.seat_ratio is None else f"seats {self.seat_ratio:.0%}, "
        return f"KV {self.kv_ratio:.0%}, {seats}queue {self.waiting:.0f}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How small and how large the pool may be, by nodes and by money."""

    least: int
    most: int
    why_most: str = "its maximum"


@dataclass(frozen=True, slots=True)
class Memory:
    """What the judgement carries from turn to turn. Times in Unix seconds; `loads`: the last of load, with its time."""

    high_since: float | None = None
    queue_since: float | None = None
    low_since: float | None = None
    last_out_at: float | None = None
    last_in_at: float | None = None
    loads: tuple[tuple[float, float], ...] = ()
    moves: tuple[tuple[float, str], ...] = ()

    def with_move(self, direction: Direction, now: float) -> Memory:
        """The pool was scaled, or would have been."""
        recent = tuple(move for move in self.moves if now - move[0] < REVERSAL_WINDOW_S)
        moved = replace(
            self, moves=(*recent, (now, direction.value)), high_since=None, queue_since=None, low_since=None
        )
        return replace(moved, last_out_at=now) if direction is Direction.OUT else replace(moved, last_in_at=now)

    def reversals(self, now: float) -> int:
        """How often the direction changed within the last hour."""
        kept = [direction for at, direction in self.moves if now - at < REVERSAL_WINDOW_S]
        return sum(before != after for before, after in pairwise(kept))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What should be. `needs_check`: a scale-in, which a simulation with one more loss must allow first."""

    direction: Direction
    size: int
    why: str
    memory: Memory
    needs_check: bool = False


def judge(
    load: PoolLoad, bounds: Bounds, limits: AutoscalerSettings, memory: Memory, now: float, *, floor: int = 0
) -> Judgement:
    """`floor`: nodes that a schedule asks for now."""
    least = min(max(bounds.least, floor), bounds.most)
    if load.wanted < least:
        why = f"a schedule asks for {floor}" if floor > bounds.least else f"its minimum is {least}"
        return _grow(least, why, load, memory, limits, now)
    if load.unknown:
        # Not even the time of what was seen before goes on: a gap is no evidence.
        forgotten = replace(memory, high_since=None, queue_since=None, low_since=None)
        return Judgement(Direction.HOLD, load.wanted, load.unknown, forgotten)
    assert load.serving is not None
    assert load.waiting is not None
    memory = _remember(load, limits, memory, now)
    out = _why_out(load, limits, memory, now)
    if load.serving < load.wanted:
        why = f"{load.wanted - load.serving} of {load.wanted} nodes are not ready"
        if out and _needed(load, limits, memory) > load.wanted:
            return _out(load, bounds, limits, memory, now, f"{out}; {why}, and with them it is too small")
        return Judgement(Direction.HOLD, load.wanted, why, memory)
    if out:
        return _out(load, bounds, limits, memory, now, out)
    return _in(load, least, limits, memory, now)


def scheduled_floor(schedules: Sequence[CapacitySchedule], pool: str, now: float, lead_s: float) -> int:
    """The most nodes that a schedule asks for at any time between now and `lead_s` from now: nodes must start first."""
    floor = 0
    for schedule in schedules:
        if schedule.pool == pool and any(_is_within(schedule, at) for at in (now, now + lead_s)):
            floor = max(floor, schedule.nodes)
    return floor


def _is_within(schedule: CapacitySchedule, at: float) -> bool:
    day = datetime.fromtimestamp(at, UTC)
    minute = day.hour * 60 + day.minute
    begin, end = schedule.minutes
    if begin <= end:
        return begin <= minute < end and _weekday(day.weekday()) in schedule.days
    if minute >= begin:
        return _weekday(day.weekday()) in schedule.days
    return minute < end and _weekday((day.weekday() - 1) % 7) in schedule.days  # began the day before


def _weekday(number: int) -> str:
    return ("mon", "tue", "wed", "thu", "fri", "sat", "sun")[number]


def _remember(load: PoolLoad, limits: AutoscalerSettings, memory: Memory, now: float) -> Memory:
    low = load.wanted > 1 and not load.waiting and _ratio_without_one(load) <= 1.0 - limits.headroom_max_ratio
    trend_s = limits.trend_s
    kept = tuple(one for one in memory.loads if now - trend_s <= one[0] < now)
    return replace(
        memory,
        high_since=(memory.high_since or now) if load.ratio >= limits.out_ratio else None,
        queue_since=(memory.queue_since or now) if load.is_queued(limits) else None,
        low_since=(memory.low_since or now) if low else None,
        loads=(*kept, (now, load.demand(limits))),
    )


def _ratio_without_one(load: PoolLoad) -> float:
    return load.ratio * load.wanted / (load.wanted - 1) if load.wanted > 1 else math.inf


def trend_per_s(memory: Memory) -> float:
    """How fast the load grows, in nodes' worth a second: from the mean of the older half to that of the newer."""
    loads = memory.loads
    if len(loads) < 6:
        return 0.0
    middle = len(loads) // 2
    older, newer = loads[:middle], loads[middle:]
    span = sum(at for at, _ in newer) / len(newer) - sum(at for at, _ in older) / len(older)
    growth = sum(value for _, value in newer) / len(newer) - sum(value for _, value in older) / len(older)
    return max(0.0, growth / span) if span > 0 else 0.0


def projected_demand(load: PoolLoad, limits: AutoscalerSettings, memory: Memory) -> float:
    """Nodes' worth of load by the time that a node asked for now is ready, if it goes on growing as it does."""
    start_s = limits.start_s if load.start_s is None else load.start_s
    newest = memory.loads[-1][0] if memory.loads else 0.0
    recent = [value for at, value in memory.loads if newest - at <= RECENT_S] or [load.demand(limits)]
    return sum(recent) / len(recent) + trend_per_s(memory) * start_s


def _needed(load: PoolLoad, limits: AutoscalerSettings, memory: Memory) -> int:
    """Nodes for the load to come, with its headroom free."""
    return math.ceil(projected_demand(load, limits, memory) / (1.0 - limits.headroom_min_ratio) - 1e-9)


def _why_out(load: PoolLoad, limits: AutoscalerSettings, memory: Memory, now: float) -> str:
    assert load.kv_ratio is not None
    if memory.queue_since is not None and now - memory.queue_since >= limits.queue_for_s:
        for_s = now - memory.queue_since
        return f"{load.waiting:.0f} requests wait, more than {limits.queue_per_node:g} a node for {for_s:.0f} s"
    if memory.high_since is None:
        return ""
    what = "KV" if load.kv_ratio >= load.ratio else "seats"
    for_s = now - memory.high_since
    if for_s >= limits.out_for_s:
        return (
            f"{what} {load.ratio:.0%} for {for_s:.0f} s, the limit is {limits.out_ratio:.0%} for {limits.out_for_s:g} s"
        )
    projected = projected_demand(load, limits, memory) / max(1, load.wanted)
    if projected >= 1.0 and for_s >= limits.queue_for_s:
        return f"{what} {load.ratio:.0%}, and {projected:.0%} by the time that a new node is ready"
    return ""


def _out(load: PoolLoad, bounds: Bounds, limits: AutoscalerSettings, memory: Memory, now: float, why: str) -> Judgement:
    if load.wanted >= bounds.most:
        return Judgement(Direction.HOLD, load.wanted, f"{why}; but {bounds.most} is {bounds.why_most}", memory)
    size = max(load.wanted + 1, _needed(load, limits, memory) + limits.warm_nodes)
    if not load.tells_overload(limits):
        size = min(size, 2 * load.wanted)
    size = min(size, load.wanted + limits.max_step)
    return _grow(min(size, bounds.most), why, load, memory, limits, now)


def _grow(size: int, why: str, load: PoolLoad, memory: Memory, limits: AutoscalerSettings, now: float) -> Judgement:
    left_s = _left(memory.last_out_at, limits.cooldown_out_s, now)
    if left_s > 0:
        why = f"{why}; it was scaled out, and cools down for {left_s:.0f} s"
        return Judgement(Direction.HOLD, load.wanted, why, memory)
    return Judgement(Direction.OUT, size, why, memory)


def _in(load: PoolLoad, least: int, limits: AutoscalerSettings, memory: Memory, now: float) -> Judgement:
    hold = Judgement(Direction.HOLD, load.wanted, load.words, memory)
    if memory.low_since is None or load.wanted <= least + limits.warm_nodes:
        return hold
    last = max(memory.last_out_at or -math.inf, memory.last_in_at or -math.inf)
    left_s = max(_left(last, limits.cooldown_in_s, now), _left(memory.low_since, limits.in_for_s, now))
    if left_s > 0:
        return replace(hold, why=f"{load.words}; one less would do, if that is so for {left_s:.0f} s more")
    why = (
        f"{load.words}: {load.wanted - 1} keep {limits.headroom_max_ratio:.0%} free, for {now - memory.low_since:.0f} s"
    )
    return Judgement(Direction.IN, load.wanted - 1, why, memory, needs_check=True)


def _left(since: float | None, span_s: float, now: float) -> float:
    if since is None or math.isinf(since):
        return 0.0
    return span_s - (now - since)
