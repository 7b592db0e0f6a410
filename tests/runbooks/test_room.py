"""Whether the nodes that stay have room for what is moved: seats, KV, and what is not known."""

from __future__ import annotations

import pytest

from runbooks.fleet_view import FleetView
from runbooks.ports import NodeFacts, NodeRoom
from runbooks.room import room_words
from tests.fixtures.runbooks import World

pytestmark = pytest.mark.anyio

NAMES = ["node-1", "node-2", "node-3"]
FLEET = FleetView.of([NodeFacts(name, model="demo") for name in NAMES], NAMES)
LEAVES = frozenset({"node-1"})


def rooms(*, held: int | None = 5, kv: int | None = 900, seats: int | None = 8) -> dict[str, NodeRoom]:
    stays = NodeRoom(held=4, seats=seats, kv_used=1000, kv_size=2000)
    return {"node-1": NodeRoom(held, 8, kv, 2000), "node-2": stays, "node-3": stays}


@pytest.mark.parametrize(
    ("told", "judgement"),
    [
        (rooms(), "enough"),
        (rooms(held=10), "2 wait for a seat"),
        (rooms(kv=2100), "100 KV tokens do not fit now"),
        (rooms(held=0), "nothing is moved"),
        (rooms(kv=None), "not known whether it is enough"),
        (rooms(seats=None), "not known whether it is enough"),
        ({}, "not known whether it is enough"),
    ],
)
def test_room_is_judged_by_seats_and_kv_and_unknown_is_said(told: dict[str, NodeRoom], judgement: str) -> None:
    assert room_words(LEAVES, FLEET, told).endswith(f": {judgement}")


def test_nobody_who_stays_has_no_room() -> None:
    alone = FleetView.of([NodeFacts("node-1", model="demo")], ["node-1"])
    assert room_words(LEAVES, alone, rooms()).endswith("nobody is there to take them")
    assert room_words(LEAVES, FLEET, rooms()).startswith(
        "moves up to 5 requests (900 KV tokens); 2 nodes stay with 8 free"
    )


async def test_dry_run_of_a_drain_says_whether_the_rest_has_room(world: World) -> None:
    run = await world.start().executor.act("drain node-2", reason="r", requested_by="ann", dry_run=True)
    assert run.steps[0].receipt["room"].endswith("not known whether it is enough")
    cordon = await world.start().executor.act("cordon node-2", reason="r", requested_by="ann", dry_run=True)
    assert "room" not in cordon.steps[0].receipt
