"""How many nodes a pool should have: judged from values, at times that are passed in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic import ValidationError

from fleetctl.controller.autoscaler.judgement import (
    Bounds,
    Direction,
    Judgement,
    Memory,
    PoolLoad,
    judge,
    scheduled_floor,
)
from fleetctl.settings.autoscaler import AutoscalerSettings, CapacitySchedule

LIMITS = AutoscalerSettings()
BOUNDS = Bounds(1, 10)
BUSY = PoolLoad(wanted=4, serving=4, kv_ratio=0.75, seat_ratio=0.5, waiting=0, start_s=60.0)
IDLE = replace(BUSY, kv_ratio=0.1, seat_ratio=0.1)


def judge_for(
    load: PoolLoad | Callable[[float], PoolLoad],
    seconds: float,
    *,
    memory: Memory | None = None,
    bounds: Bounds = BOUNDS,
    limits: AutoscalerSettings = LIMITS,
    begin: float = 1000.0,
) -> Judgement:
    """The first judgement within that time that is no hold, or the last one. One each 5 s."""
    now, memory = begin, memory or Memory()
    while True:
        judgement = judge(load(now - begin) if callable(load) else load, bounds, limits, memory, now)
        memory = judgement.memory
        if judgement.direction is not Direction.HOLD or now - begin >= seconds:
            return judgement
        now += 5.0


def test_kv_beyond_70_percent_for_two_minutes_makes_a_pool_larger() -> None:
    assert judge_for(BUSY, 115).direction is Direction.HOLD
    judgement = judge_for(BUSY, 120)
    assert (judgement.direction, judgement.size) == (Direction.OUT, 5)
    assert "KV 75% for 120 s" in judgement.why


def test_seats_count_as_kv_does() -> None:
    judgement = judge_for(replace(BUSY, kv_ratio=0.2, seat_ratio=0.9), 120)
    assert (judgement.direction, judgement.size) == (Direction.OUT, 6)
    assert "seats 90%" in judgement.why


def test_a_queue_is_reason_enough() -> None:
    judgement = judge_for(replace(IDLE, waiting=5), 30)
    assert judgement.direction is Direction.OUT
    assert "5 requests wait" in judgement.why


def test_a_gap_in_what_is_known_begins_the_two_minutes_anew() -> None:
    gap = replace(BUSY, kv_ratio=None)
    assert judge_for(lambda s: gap if s == 60 else BUSY, 120).direction is Direction.HOLD


def test_load_that_grows_is_met_before_it_is_there() -> None:
    def growing(seconds: float) -> PoolLoad:
        return replace(BUSY, kv_ratio=0.6 + seconds * 0.003)

    judgement = judge_for(growing, 100)
    assert judgement.direction is Direction.OUT
    assert "by the time that a new node is ready" in judgement.why
    assert judge_for(lambda s: replace(growing(s), start_s=1.0), 100).direction is Direction.HOLD


@pytest.mark.parametrize(
    "unknown",
    [
        {"kv_ratio": None},
        {"kv_ratio": math.nan},
        {"seat_ratio": None},
        {"waiting": math.nan},
        {"serving": None},
    ],
)
def test_what_is_not_known_never_makes_a_pool_smaller(unknown: dict[str, float | None]) -> None:
    judgement = judge_for(replace(IDLE, **unknown), 3600)  # type: ignore[arg-type]
    assert judgement.direction is Direction.HOLD
    assert "not known" in judgement.why


def test_idle_pool_shrinks_by_one_after_the_check() -> None:
    judgement = judge_for(IDLE, 3600)
    assert (judgement.direction, judgement.size, judgement.needs_check) == (Direction.IN, 3, True)


def test_no_traffic_shrinks_a_pool_to_its_minimum_and_no_further() -> None:
    silent = replace(IDLE, kv_ratio=0.0, seat_ratio=0.0)
    assert judge_for(silent, 3600).direction is Direction.IN
    assert judge_for(silent, 3600, bounds=Bounds(4, 10)).direction is Direction.HOLD
    assert judge_for(replace(silent, wanted=1, serving=1), 3600).direction is Direction.HOLD


def test_pool_keeps_its_size_while_the_rest_would_be_more_than_half_full() -> None:
    assert judge_for(replace(IDLE, kv_ratio=0.4), 3600).direction is Direction.HOLD


def test_cooldowns_are_120_s_out_and_600_s_in() -> None:
    grown = Memory().with_move(Direction.OUT, 1000.0)
    assert judge_for(replace(BUSY, waiting=50), 115, memory=grown).direction is Direction.HOLD
    assert judge_for(replace(BUSY, waiting=50), 120, memory=grown).direction is Direction.OUT
    assert judge_for(IDLE, 595, memory=grown).direction is Direction.HOLD
    assert judge_for(IDLE, 600, memory=grown).direction is Direction.IN


def test_nodes_on_their_way_are_waited_for() -> None:
    judgement = judge_for(replace(BUSY, serving=3), 600)
    assert judgement.direction is Direction.HOLD
    assert "1 of 4 nodes are not ready" in judgement.why


def test_full_pool_grows_to_what_arrives_and_not_by_what_it_shows() -> None:
    full = replace(BUSY, seat_ratio=1.0, waiting=48, ending_per_s=4.0)
    assert judge_for(replace(full, arriving_per_s=4.0), 30).size == 7  # (4 + 48 / 120) / 4 * 4 nodes, 30 % free
    assert judge_for(replace(full, arriving_per_s=6.4), 30, bounds=Bounds(1, 20)).size == 10
    assert judge_for(replace(full, arriving_per_s=40.0), 30, bounds=Bounds(1, 20)).size == 12  # by 8 at most
    no_queue = replace(full, seat_ratio=0.75, waiting=0)
    assert judge_for(replace(no_queue, arriving_per_s=40.0), 120).size == 5  # a rate of seconds is no queue


def test_nodes_on_their_way_are_too_few_for_what_came_meanwhile() -> None:
    grown = Memory().with_move(Direction.OUT, 1000.0)
    load = replace(BUSY, wanted=5, serving=4, seat_ratio=1.0, waiting=48, arriving_per_s=8.0, ending_per_s=4.0)
    assert judge_for(load, 115, memory=grown).direction is Direction.HOLD
    judgement = judge_for(load, 120, memory=grown)
    assert (judgement.direction, judgement.size) == (Direction.OUT, 10)
    assert "with them it is too small" in judgement.why
    enough = replace(load, wanted=8, arriving_per_s=4.0)
    assert judge_for(enough, 600, memory=grown).direction is Direction.HOLD


def test_bounds_hold_by_nodes_and_a_pool_below_its_minimum_grows() -> None:
    held = judge_for(BUSY, 600, bounds=Bounds(1, 4, "what 8 an hour pays for"))
    assert held.direction is Direction.HOLD
    assert "what 8 an hour pays for" in held.why
    assert judge_for(replace(IDLE, wanted=1, serving=1), 0, bounds=Bounds(3, 5)).size == 3


def test_pool_of_none_grows_to_its_minimum() -> None:
    nothing = PoolLoad(wanted=0, serving=0, kv_ratio=None, seat_ratio=None, waiting=None)
    assert (judge_for(nothing, 0).direction, judge_for(nothing, 0).size) == (Direction.OUT, 1)


def test_burst_at_most_doubles_a_pool() -> None:
    assert judge_for(replace(BUSY, wanted=2, serving=2, kv_ratio=1.0, waiting=500), 30).size == 3
    warm = AutoscalerSettings(warm_nodes=5)
    assert judge_for(replace(BUSY, wanted=2, serving=2, kv_ratio=1.0, waiting=500), 30, limits=warm).size == 4


def test_turning_round_is_counted_for_an_hour() -> None:
    memory = Memory()
    for at, direction in ((0.0, Direction.OUT), (600.0, Direction.IN), (700.0, Direction.OUT), (800.0, Direction.OUT)):
        memory = memory.with_move(direction, at)
    assert memory.reversals(900.0) == 2
    assert memory.reversals(3650.0) == 1


def test_schedule_asks_for_nodes_before_the_peak_and_over_midnight() -> None:
    monday = 1_795_392_000.0 - 1_795_392_000.0 % 86_400  # any midnight; its day follows
    day = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    peak = CapacitySchedule(pool="chat", nodes=6, begin="08:00", end="10:00", days=day)
    night = CapacitySchedule(pool="chat", nodes=3, begin="22:00", end="02:00", days=day)
    assert scheduled_floor([peak], "chat", monday + 8 * 3600 - 90, lead_s=120.0) == 6
    assert scheduled_floor([peak], "chat", monday + 8 * 3600 - 300, lead_s=120.0) == 0
    assert scheduled_floor([peak], "other", monday + 9 * 3600, lead_s=0.0) == 0
    assert scheduled_floor([night], "chat", monday + 3600, lead_s=0.0) == 3
    assert judge(IDLE, BOUNDS, LIMITS, Memory(), 0.0, floor=6).size == 6


def test_settings_that_would_flap_are_refused() -> None:
    with pytest.raises(ValidationError, match="raise headroom_max_ratio"):
        AutoscalerSettings(out_ratio=0.5, headroom_max_ratio=0.5)
