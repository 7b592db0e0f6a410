"""The stream of nodes: all of them, then what changes, to whoever was away, is slow, or knew another controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from pathlib import Path

import pytest

from fleetctl.client import ControllerClient
from fleetctl.controller.nodes import node_feed
from fleetctl.controller.nodes.node_feed import PART_ROWS, News, NodeFeed
from fleetctl.kit.errors import BadInputError
from fleetctl.told_node import KnownNodes
from fleetctl.wire.node import Node, NodeChanges, NodePhase
from fleetctl.wire.run import ActionRequest
from tests.fixtures.controller import TOKEN, make_config, serving, stop_all, until
from tests.fixtures.runbooks import FakeClock

pytestmark = pytest.mark.anyio


class Seen:
    """Nodes as the controller sees them, and how often somebody looked."""

    def __init__(self, count: int) -> None:
        self.nodes = [Node(name=f"node-{number}", url="http://n", phase=NodePhase.READY) for number in range(count)]
        self.looks = 0

    def __call__(self) -> list[Node]:
        self.looks += 1
        return list(self.nodes)

    def change(self, at: int, **fields: object) -> None:
        self.nodes[at] = self.nodes[at].model_copy(update=fields)


async def waited_for(waiting: Awaitable[News]) -> News | None:
    return await waiting


async def next_of(told: AsyncIterator[str]) -> tuple[str, NodeChanges | None]:
    """Id and data of the next event; a comment has neither."""
    lines = (await anext(told)).split("\n")
    event_id = next((line.removeprefix("id: ") for line in lines if line.startswith("id: ")), "")
    data = next((line.removeprefix("data: ") for line in lines if line.startswith("data: ")), "")
    return event_id, NodeChanges.model_validate_json(data) if data else None


async def begun(feed: NodeFeed, last_id: str = "") -> AsyncIterator[str]:
    told = feed.events(feed.version_of(last_id), waited_for)
    assert (await anext(told)).startswith("retry: ")
    return told


async def test_a_large_fleet_comes_in_parts_and_only_the_last_says_that_it_is_whole() -> None:
    told = await begun(NodeFeed(Seen(PART_ROWS * 2 + 1), FakeClock()))
    parts = [await next_of(told) for _ in range(3)]
    assert [bool(event_id) for event_id, _ in parts] == [False, False, True]
    assert [one.whole for _, one in parts if one] == [True, False, False]
    assert [len(one.new) for _, one in parts if one] == [PART_ROWS, PART_ROWS, 1]


async def test_an_empty_fleet_is_told_too() -> None:
    event_id, changes = await next_of(await begun(NodeFeed(Seen(0), FakeClock())))
    assert event_id
    assert changes is not None
    assert (changes.whole, changes.new) == (True, {})


async def test_who_reads_slowly_gets_the_newest_of_each_node_once() -> None:
    seen, clock = Seen(3), FakeClock()
    feed = NodeFeed(seen, clock)
    slow, quick = await begun(feed), await begun(feed)
    await next_of(slow)
    await next_of(quick)
    for reason in ("a", "b", "c"):
        seen.change(1, reason=reason)
        _, changes = await next_of(quick)
        assert changes is not None
        assert changes.changed == {"node-1": {"reason": reason}}
    del seen.nodes[2]
    await next_of(quick)

    _, changes = await next_of(slow)

    assert changes is not None
    assert (changes.changed, changes.gone, changes.new) == ({"node-1": {"reason": "c"}}, ["node-2"], {})


async def test_who_comes_back_with_an_id_is_told_what_changed_since() -> None:
    seen = Seen(3)
    feed = NodeFeed(seen, FakeClock())
    mark, _ = await next_of(await begun(feed))
    seen.change(0, phase=NodePhase.CORDONED)
    _, changes = await next_of(await begun(feed, mark))
    assert changes is not None
    assert (changes.whole, changes.changed) == (False, {"node-0": {"phase": "cordoned"}})


async def test_an_id_of_another_life_means_nothing_and_all_comes_anew() -> None:
    mark, _ = await next_of(await begun(NodeFeed(Seen(3), FakeClock())))
    later = NodeFeed(Seen(2), FakeClock())
    assert mark.endswith("-1")
    _, changes = await next_of(await begun(later, mark))
    assert changes is not None
    assert (changes.whole, len(changes.new)) == (True, 2)


@pytest.mark.parametrize("last_id", ["7", "x-1", "0123456789abcdef-", "0123456789abcdef--1", "0123456789abcdef-1\n"])
async def test_what_is_no_id_is_refused(last_id: str) -> None:
    with pytest.raises(BadInputError, match="id of an event"):
        NodeFeed(Seen(1), FakeClock()).version_of(last_id)


async def test_it_says_that_it_is_alive_while_nothing_changes_and_looks_only_while_somebody_follows() -> None:
    seen, clock = Seen(2), FakeClock()
    told = await begun(NodeFeed(seen, clock))
    await next_of(told)
    assert await next_of(told) == ("", None)
    looks = seen.looks
    await clock.sleep(3600)
    assert seen.looks == looks


async def test_what_happens_to_a_node_is_told_soon_however_long_looks_take(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, clock = Seen(2), FakeClock()
    feed = NodeFeed(seen, clock)
    monkeypatch.setattr(node_feed, "LOOKS_SHARE", 1e-12)  # the next look is in ages
    told = await begun(feed)
    await next_of(told)
    seen.change(0, phase=NodePhase.UNREACHABLE)
    assert await next_of(told) == ("", None)
    feed.hurry()
    _, changes = await next_of(told)
    assert changes is not None
    assert changes.changed == {"node-0": {"phase": "unreachable"}}


async def test_many_followers_cost_one_look() -> None:
    seen = Seen(2)
    feed = NodeFeed(seen, FakeClock())
    for _ in range(5):
        await next_of(await begun(feed))
    assert seen.looks == 1


# -- a whole controller, by its client --------------------------------------------------------------------------------


async def followed_until(client: ControllerClient, known: KnownNodes, *, cordoned: set[str]) -> None:
    async with asyncio.timeout(120), aclosing(client.follow_nodes(known)) as told:
        async for _ in told:
            phases = {name: node.phase for name, node in known.nodes.items()}
            if len(phases) == 3 and {n for n, phase in phases.items() if phase is not NodePhase.READY} == cordoned:
                return


async def cordon(client: ControllerClient, verb: str, name: str) -> None:
    run = await client.act(ActionRequest(command=f"{verb} {name}"))

    async def is_over() -> bool:
        return (await client.get_run(run.id)).status.is_terminal

    await until(is_over, f"{verb} is over")


async def test_a_client_follows_nodes_through_a_cut_and_a_restart_of_the_controller(tmp_path: Path) -> None:
    known = KnownNodes()
    try:
        async with serving(make_config(tmp_path, nodes=3)) as url, ControllerClient(url, TOKEN) as client:
            await followed_until(client, known, cordoned=set())
            assert known.nodes.keys() == {node.name for node in await client.nodes()}
            first = known.mark

            await cordon(client, "cordon", "node-1")  # nobody follows meanwhile
            await followed_until(client, known, cordoned={"node-1"})
            assert known.mark.split("-")[0] == first.split("-")[0]

        async with serving(make_config(tmp_path, nodes=3)) as url, ControllerClient(url, TOKEN) as client:
            await followed_until(client, known, cordoned={"node-1"})
            await cordon(client, "uncordon", "node-1")
            await followed_until(client, known, cordoned=set())
            await cordon(client, "cordon", "node-2")
            await followed_until(client, known, cordoned={"node-2"})
            assert known.mark.split("-")[0] != first.split("-")[0]
            listed = {node.name: (node.phase, node.instance, node.url, node.since) for node in await client.nodes()}
            assert {n: (node.phase, node.instance, node.url, node.since) for n, node in known.nodes.items()} == listed
    finally:
        stop_all(tmp_path)


async def test_a_line_that_is_cut_within_what_belongs_together_is_told_again_as_a_whole() -> None:
    feed = NodeFeed(Seen(PART_ROWS + 1), FakeClock())
    known = KnownNodes()
    mark, part = await next_of(await begun(feed))
    assert part is not None
    known.take(part, mark)
    assert (len(known.nodes), known.mark) == (PART_ROWS, "")

    told = await begun(feed, known.mark)
    for _ in range(2):
        mark, part = await next_of(told)
        assert part is not None
        known.take(part, mark)
    assert len(known.nodes) == PART_ROWS + 1
    assert known.mark == mark != ""
