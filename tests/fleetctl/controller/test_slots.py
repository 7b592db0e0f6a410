"""A round keeps its interval: however busy the loop is, and whoever hangs."""

from __future__ import annotations

import asyncio

import pytest

from fleetctl.controller.config import MIN_ROUND_S
from fleetctl.controller.slots import AT_ONCE, Slots

pytestmark = pytest.mark.anyio
INTERVAL_S = 5.0
NUM_PEERS = 20 * AT_ONCE
BUSY_S = 0.003  # that asking one peer keeps the loop from everything else


class BusyClock:
    """Time passes in sleeps, and while a peer is asked."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        self.time_s += seconds
        await asyncio.sleep(0)


async def test_round_of_a_busy_loop_ends_within_its_interval() -> None:
    clock = BusyClock()
    asked: list[str] = []

    async def ask(peer: str) -> None:
        asked.append(peer)
        clock.time_s += BUSY_S

    peers = [f"node-{number}" for number in range(NUM_PEERS)]
    await Slots(clock, interval_s=INTERVAL_S, name="probe").run_round(peers, ask)
    assert sorted(asked) == sorted(peers)
    assert clock.time_s < INTERVAL_S  # 20 batches, each of them 0.15 s late: on a grid they do not add up


@pytest.mark.parametrize("interval_s", [1.0, 5.0])
def test_round_that_waits_for_a_hung_peer_is_over_before_the_next_slot(interval_s: float) -> None:
    slots = Slots(BusyClock(), interval_s=interval_s, name="probe", min_round_s=MIN_ROUND_S)
    assert slots.round_s < interval_s
