"""`scale`: which nodes are meant, what guards say, how it is undone. Every run goes through the executor."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from runbooks.command import parse_command
from runbooks.errors import BadInputError
from runbooks.fleet_view import FleetView
from runbooks.plan import plan_command
from runbooks.ports import NodeFacts, PermanentError, RevisionFacts, RolloutFacts
from runbooks.run import Run, RunStatus
from runbooks.verb import Action
from runbooks.verbs import VERBS
from tests.fixtures.runbooks import Controller, FakeFleet, World, propose, temporary

pytestmark = pytest.mark.anyio

FIVE = ("node-1", "node-2", "node-3", "node-4", "node-5")

LONG = ("long-1", "long-2", "long-3", "long-4", "long-5", "long-6")


def pool_of(*names: str) -> FakeFleet:
    """The nodes in pool decode, beside a larger pool; the load grows with the number."""
    fleet = FakeFleet.of(*names, *LONG)
    fleet.pools = {**dict.fromkeys(names, "decode"), **dict.fromkeys(LONG, "long")}
    fleet.held = {name: i for i, name in enumerate([*names, *LONG])}
    return fleet


@pytest.fixture
def controller(world: World) -> Controller:
    world.fleet = pool_of(*FIVE)
    return world.start()


async def act(controller: Controller, command: str, **kwargs: Any) -> Run:
    return await controller.executor.act(command, reason="", requested_by="ann", **kwargs)


async def carried(controller: Controller, command: str) -> Run:
    return await controller.executor.drive((await act(controller, command)).id)


async def test_scales_out_by_copies_of_the_newest_and_checks_that_they_answer(
    world: World, controller: Controller
) -> None:
    asked: list[str] = []
    world.fleet.value = lambda expression: float(asked.append(expression) is None)
    run = await carried(controller, "scale decode --to +2")
    assert run.status is RunStatus.SUCCEEDED
    assert run.title == "scale pool/decode --to +2"
    assert run.steps[0].command == "scale pool/decode --to 7 --from 5 --nodes node-6,node-7 --like node-5"
    assert run.steps[0].receipt == {
        "pool": "decode",
        "started": ["node-6", "node-7"],
        "stopped": {},
        "from": 5,
        "to": 7,
    }
    assert [str(target) for target in run.targets] == ["pool/decode"]
    assert world.fleet.state["node-6"] == world.fleet.state["node-7"] == "serving"
    # Not "7 nodes answer": one that died, which is why more are wanted, would have them taken out again.
    assert set(asked) == {'count(llm:up{pool="decode",node=~"node-6|node-7"} == 1) >= bool 2'}
    assert run.verification == "held for 5 s: node-6, node-7 of pool decode answer"


async def test_scales_in_one_node_after_the_other_beginning_with_the_least_loaded(
    world: World, controller: Controller
) -> None:
    run = await carried(controller, "scale pool/decode --to 3")
    assert run.status is RunStatus.SUCCEEDED
    assert run.verification == "held for 5 s: 3 nodes of pool decode answer"
    assert world.fleet.calls == ["drain node-1", "stop node-1", "drain node-2", "stop node-2"]
    assert {name for name, state in world.fleet.state.items() if state == "serving"} == {*FIVE[2:], *LONG}


async def test_a_dry_run_names_the_nodes_and_changes_nothing(world: World, controller: Controller) -> None:
    out = await act(controller, "scale decode --to +1", dry_run=True)
    assert out.steps[0].receipt["predicted"] == (
        "starts node-6 like node-5 and waits until they are ready and routed: pool decode from 5 to 6 nodes"
    )
    assert out.verification == "would wait until node-6 of pool decode answers"
    into = await act(controller, "scale decode --to -2", dry_run=True)
    assert into.steps[0].receipt["predicted"] == (
        "drains and stops node-1, node-2, one after the other: pool decode from 5 to 3 nodes"
    )
    assert into.steps[0].receipt["guard"] == "yes: 3 nodes of pool decode serve without node-1, node-2, the floor is 3"
    same = await act(controller, "scale decode --to 5", dry_run=True)
    assert same.steps[0].receipt == {"predicted": "nothing: pool decode has 5 nodes", "guard": "yes: changes nothing"}
    assert world.fleet.calls == []


async def test_the_floor_is_the_pools_and_of_what_was_wanted_when_the_run_began(controller: Controller) -> None:
    run = await act(controller, "scale decode --to 2")
    assert run.status is RunStatus.REFUSED
    assert run.error == ("without node-1, node-2, node-3 only 2 of 5 nodes of pool decode would serve, the floor is 3")


async def test_unknown_refuses_and_takes_nothing_out(world: World, controller: Controller) -> None:
    world.fleet.blind = True
    run = await act(controller, "scale decode --to 4")
    assert run.status is RunStatus.REFUSED
    assert "could not look which nodes serve" in run.error

    async def no_answer() -> list[NodeFacts]:
        raise OSError("database is away")

    world.fleet.nodes = no_answer  # type: ignore[method-assign]
    run = await act(controller, "scale decode --to +1")
    assert run.status is RunStatus.REFUSED
    assert run.error == "could not look which nodes exist"
    assert world.fleet.calls == []


async def test_the_guard_is_asked_again_before_each_node_that_leaves(world: World, controller: Controller) -> None:
    """Two of the others fail while the first one drains: the second one stays, and the first one comes back."""
    stop = world.fleet.stop_node

    async def stop_and_lose_others(name: str, **kwargs: Any) -> Any:
        world.fleet.state.update({"node-4": "cordoned", "node-5": "cordoned"})
        return await stop(name, **kwargs)

    world.fleet.stop_node = stop_and_lose_others  # type: ignore[method-assign]
    run = await carried(controller, "scale decode --to 3")
    assert "drain node-2" not in world.fleet.calls
    (why,) = [text for kind, text in world.events if kind == "step.retried"]
    assert "without node-2 only 1 of 2 nodes of pool decode would serve, the floor is 3" in why
    assert run.status is RunStatus.UNDONE
    assert world.fleet.state["node-1"] == "serving"


async def test_what_does_not_help_is_undone_to_the_size_before(world: World, controller: Controller) -> None:
    world.fleet.value = lambda _: 0.0
    before = dict(world.fleet.state)
    run = await carried(controller, "scale decode --to +2")
    assert run.status is RunStatus.UNDONE
    assert run.undo_steps[0].command == "scale pool/decode --to 5 --from 7 --nodes node-7,node-6"
    assert {**world.fleet.state} == {**before, "node-6": "stopped", "node-7": "stopped"}
    run = await carried(controller, "scale decode --to -1")
    assert run.status is RunStatus.UNDONE
    assert world.fleet.state["node-1"] == "serving"


async def test_a_start_that_fails_takes_out_what_was_started(world: World, controller: Controller) -> None:
    start = world.fleet.start_node

    async def fail_second(name: str, **kwargs: Any) -> Any:
        if name == "node-7":
            raise PermanentError("no room")
        return await start(name, **kwargs)

    world.fleet.start_node = fail_second  # type: ignore[method-assign]
    run = await carried(controller, "scale decode --to +2")
    assert run.status is RunStatus.UNDONE
    assert run.error.startswith("step 1 (scale pool/decode --to 7")
    assert world.fleet.state["node-6"] == "stopped"
    assert "node-7" not in world.fleet.state


async def test_before_is_the_size_before_the_last_scaling_that_stood(world: World, controller: Controller) -> None:
    await carried(controller, "scale decode --to +2")
    run = await carried(controller, "scale decode --to before")
    assert run.steps[0].command == "scale pool/decode --to 5 --from 7 --nodes node-7,node-6"
    assert run.status is RunStatus.SUCCEEDED
    assert world.fleet.state["node-6"] == world.fleet.state["node-7"] == "stopped"
    again = await carried(controller, "scale decode --to before")
    assert again.steps[0].command == "scale pool/decode --to 7 --from 5 --nodes node-6,node-7"


async def test_names_of_stopped_nodes_are_not_used_again(world: World, controller: Controller) -> None:
    await carried(controller, "scale decode --to +1")
    await carried(controller, "scale decode --to before")
    run = await act(controller, "scale decode --to +1", dry_run=True)
    assert "--nodes node-7 " in run.steps[0].command


async def test_a_pool_that_was_scaled_since_the_proposal_refuses_the_start(
    world: World, controller: Controller
) -> None:
    run = await propose(controller, "scale-pool", inputs={"pool": "decode", "size": "+1"})
    world.fleet.state["node-6b"], world.fleet.pools["node-6b"] = "serving", "decode"
    await controller.executor.decide(run.id, "approve", "ann")
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.REFUSED
    assert run.error == "before the start: no: pool decode had 5 nodes when this was planned and has 6 now"
    assert world.fleet.calls == []


async def test_the_page_does_the_same_and_says_how_to_go_back_by_hand(world: World, controller: Controller) -> None:
    run = await propose(controller, "scale-pool", inputs={"pool": "decode", "size": "4"}, approve=True)
    assert run.title == "Scale pool decode to 4"
    assert run.verify is not None
    world.fleet.hold["drain"] = asyncio.Event()
    loop = asyncio.create_task(controller.executor.run_forever())
    async with asyncio.timeout(60):
        while not world.fleet.calls:  # noqa: ASYNC110 - what is waited for is in another thread
            await asyncio.sleep(0.001)
        await controller.executor.cancel(run.id, "ann")
        world.fleet.hold["drain"].set()
        while not controller.journal.get(run.id).status.is_terminal:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    controller.executor.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await loop
    run = controller.journal.get(run.id)
    assert run.status is RunStatus.CANCELLED
    assert run.error.endswith("to undo it: fleetctl scale pool/decode --to 5 --from 4 --nodes node-1")


async def test_a_pools_claim_holds_its_nodes_and_no_others(world: World, controller: Controller) -> None:
    holder = await act(controller, "scale decode --to +1")
    assert holder.status is RunStatus.APPROVED
    on_member = await act(controller, "cordon node-2")
    assert on_member.status is RunStatus.REFUSED
    assert on_member.error == (
        f"node-2 is not free: pool/decode is held by run {holder.id} (scale pool/decode --to +1, approved)"
    )
    assert (await act(controller, "uncordon long-1")).status is RunStatus.APPROVED
    assert (await act(controller, "scale long --to +1")).status is RunStatus.REFUSED, "long-1 is held"
    stranger = await act(controller, "node start other-9")
    assert stranger.error.endswith("and whether other-9 belongs to it is not known")
    copy = await act(controller, "node start long-9 --like long-2")
    assert copy.status is RunStatus.APPROVED, "a copy of a node of another pool is no node of this one"


async def test_a_nodes_claim_holds_its_pool(controller: Controller) -> None:
    holder = await act(controller, "cordon node-2")
    run = await act(controller, "scale decode --to +1")
    assert run.error.startswith(f"pool/decode is not free: node-2 is held by run {holder.id}")


async def test_an_approval_finds_a_claim_that_came_meanwhile(controller: Controller) -> None:
    run = await propose(controller, "scale-pool", inputs={"pool": "decode", "size": "+1"})
    await act(controller, "cordon node-2")
    assert (await controller.executor.decide(run.id, "approve", "bob")).status is RunStatus.REFUSED


async def test_a_temporary_error_is_tried_again_with_the_same_nodes(world: World, controller: Controller) -> None:
    world.fleet.errors["start"] = [temporary()]
    run = await carried(controller, "scale decode --to +1")
    assert run.status is RunStatus.SUCCEEDED
    assert world.fleet.changes == {"start node-6": 1}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("scale prefill --to 2", "there is no pool prefill; pools: decode, long"),
        ("scale decode --to 0", "pool decode has 5 nodes; leave it at least one"),
        ("scale decode --to -5", "pool decode has 5 nodes; leave it at least one"),
        ("scale decode --to +17", "17 at once are too many; at most 16 in one run"),
        ("scale decode --to before", "pool decode was not scaled; give a size"),
        ("scale decode --to 6 --from 4", "pool decode has 5 nodes; look again, or leave --from out"),
        ("scale decode --to +2 --nodes x-1", "--nodes names 1, and 2 change; leave it out, or name all"),
        ("scale decode --to -1 --nodes long-1", "long-1 is not in pool decode; name nodes of the pool"),
        ("scale decode --to +1 --nodes node-2", "the new node's name node-2 is taken: give a free one"),
        ("scale decode --to +1 --like node-77", "there is no node node-77"),
    ],
)
async def test_what_can_not_be_done_is_bad_input_and_leaves_no_run(
    controller: Controller, command: str, message: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        await act(controller, command)
    assert message in str(caught.value)
    assert controller.journal.list() == ()


def resolved(command: str, *nodes: NodeFacts, serving: tuple[str, ...] = ()) -> Action:
    resolve = VERBS["scale"].resolve
    assert resolve is not None
    return resolve(parse_command(command), FleetView.of(nodes, serving), None)


def test_leaves_those_without_traffic_first_then_the_least_loaded_then_the_youngest() -> None:
    nodes = [
        NodeFacts("busy", "p", held=9, created_at=1),
        NodeFacts("unknown", "p", held=None, created_at=2),
        NodeFacts("idle-old", "p", held=0, created_at=3),
        NodeFacts("idle-young", "p", held=0, created_at=4),
        NodeFacts("cordoned", "p", held=9, created_at=0),
    ]
    serving = ("busy", "unknown", "idle-old", "idle-young")
    action = resolved("scale p --to 1", *nodes, serving=serving)
    assert action.args["nodes"] == ("cordoned", "idle-young", "idle-old", "busy")


def test_copies_the_newest_node_that_serves() -> None:
    nodes = [
        NodeFacts("a-1", "p", created_at=1),
        NodeFacts("a-2", "p", created_at=2),
        NodeFacts("a-3", "p", created_at=3),
    ]
    assert resolved("scale p --to +1", *nodes, serving=("a-1", "a-2")).args["like"] == "a-2"
    assert resolved("scale p --to +1", *nodes).args["like"] == "a-3"
    assert resolved("scale p --to +1 --like a-1", *nodes).args["like"] == "a-1"


def test_a_scale_out_during_a_canary_copies_what_the_pool_was_proven_with() -> None:
    """It copied the canary, the newest: a second node turned one in twenty users away with 400."""
    nodes = [NodeFacts("a-1", "p", revision="r1", created_at=1), NodeFacts("a-2", "p", revision="r2", created_at=2)]
    canary = RolloutFacts("r1", state="canary", to="r2", size=1, surge=1)

    def like(facts: RolloutFacts, *there: NodeFacts) -> str:
        revisions = RevisionFacts(frozenset({"r1", "r2"}), {"p": facts})
        fleet = FleetView.of(there, [node.name for node in there], revisions=revisions)
        resolve = VERBS["scale"].resolve
        assert resolve is not None
        return str(resolve(parse_command("scale p --to +1"), fleet, None).args["like"])

    assert like(canary, *nodes) == "a-1"
    assert like(canary, nodes[1]) == "a-2", "where there is no other"
    assert like(RolloutFacts("r2"), *nodes) == "a-2", "once it is over the newest again"


@pytest.mark.parametrize(
    ("names", "new"),
    [
        (("node-1", "node-2b", "node-9", "x-50"), "node-10"),
        (("decode",), "decode-2"),
        (("decode-2", "decode"), "decode-3"),
        (("gpu7",), "gpu8"),
    ],
)
def test_names_new_nodes_on_from_the_series(names: tuple[str, ...], new: str) -> None:
    like, *others = names
    nodes = [NodeFacts(like, "p", created_at=9), *(NodeFacts(name, "q", wanted=False) for name in others)]
    assert resolved("scale p --to +1", *nodes).args["nodes"] == (new,)


def test_pool_all_of_whose_nodes_were_stopped_grows_again_like_the_last_that_it_had() -> None:
    stopped = [NodeFacts(f"node-{number}", "decode", wanted=False, created_at=number) for number in (1, 2)]
    fleet = FleetView.of(stopped, [])
    scaling = parse_command("scale decode --to 2")
    assert plan_command("scale decode --to 2").existing == ()
    resolve = scaling.verb.resolve
    assert resolve is not None
    resolved = resolve(scaling, fleet, None)
    assert (resolved.args["from"], resolved.args["nodes"], resolved.args["like"]) == (0, ("node-3", "node-4"), "node-2")
