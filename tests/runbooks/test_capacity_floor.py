"""Floors hold over time: whatever is stopped, drained, replaced or scaled within an hour, in any order."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.command import parse_command
from runbooks.fleet_view import FleetView
from runbooks.guard import judge_capacity
from runbooks.ports import NodeFacts, WantedChange
from runbooks.run import RunStatus
from runbooks.verb import Action
from runbooks.wanted_past import SUSTAINED_S, WINDOW_S, WantedPast
from tests.fixtures.runbooks import FakeFleet, World

HOUR_S = 3600.0


class SteppedFleet:
    """Nodes of several pools and models; an action that the guard allows is carried out at once."""

    def __init__(self, nodes: list[NodeFacts]) -> None:
        self.now = 0.0
        self.nodes = {node.name: node for node in nodes}
        self.serving = set(self.nodes)
        self.changes = [(node, True, -2 * HOUR_S) for node in nodes]

    def view(self) -> FleetView:
        past = [WantedChange(n.name, n.pool, n.model, is_wanted, self.now - at) for n, is_wanted, at in self.changes]
        return FleetView.of(self.nodes.values(), self.serving, past)

    def act(self, command: str, fresh: tuple[str, ...] = ()) -> bool:
        """Whether the guard allowed it."""
        action = parse_command(command)
        if not judge_capacity(action, self.view(), fresh=fresh).allows:
            return False
        self._do(action)
        return True

    def _do(self, action: Action) -> None:
        change = action.change
        assert change is not None
        self.serving -= change.removes
        if action.verb.name in ("node stop", "scale"):
            for name in change.removes:
                self._want(replace(self.nodes[name], wanted=False))
        for name, like in change.creates.items():
            self._want(replace(self.nodes[like or name], name=name, wanted=True))
            self.serving.add(name)

    def _want(self, node: NodeFacts) -> None:
        if self.nodes.get(node.name) != node:
            self.nodes[node.name] = node
            self.changes.append((node, node.wanted, self.now))

    def num_serving(self, kind: str, name: str) -> int:
        return sum(getattr(self.nodes[one], kind) == name for one in self.serving)


@st.composite
def fleets(draw: st.DrawFn) -> list[NodeFacts]:
    return [
        NodeFacts(f"n{i}", draw(st.sampled_from("pq")), draw(st.sampled_from("xyz")))
        for i in range(draw(st.integers(1, 12)))
    ]


STEPS = st.tuples(
    st.sampled_from(["drain", "cordon", "restart", "node stop", "replace", "scale in", "scale out"]),
    st.integers(0, 30),
    st.floats(0.0, 900.0),
)


@given(fleets(), st.lists(STEPS, max_size=40))
def test_no_actions_within_an_hour_take_a_pool_or_model_under_its_floor(
    nodes: list[NodeFacts], steps: list[tuple[str, int, float]]
) -> None:
    fleet = SteppedFleet(nodes)
    floors = {
        (kind, getattr(node, kind)): max(
            1, math.ceil(0.6 * sum(getattr(one, kind) == getattr(node, kind) for one in nodes) - 1e-9)
        )
        for node in nodes
        for kind in ("pool", "model")
    }
    for number, (what, which, pause_s) in enumerate(steps):
        fleet.now = min(fleet.now + pause_s, HOUR_S - 1.0)
        name = sorted(fleet.nodes)[which % len(fleet.nodes)]
        pool, new = fleet.nodes[name].pool, f"f{number}"
        match what:
            case "replace":
                if fleet.nodes[name].wanted and fleet.act(f"node start {new} --like {name}"):
                    fleet.act(f"drain {name}", fresh=(new,)) and fleet.act(f"node stop {name}", fresh=(new,))
            case "scale in":
                leaving = sorted(one.name for one in fleet.nodes.values() if one.wanted and one.pool == pool)[
                    : 1 + which % 3
                ]
                fleet.act(
                    f"scale {pool} --to 1 --from {1 + len(leaving)} --nodes {','.join(leaving)}"
                ) if leaving else None
            case "scale out":
                fleet.act(f"scale {pool} --to 2 --from 1 --nodes {new} --like {name}")
            case "restart":
                fleet.act(f"restart {name}")
            case _:
                fleet.act(f"{what} {name}")
        for (kind, place), floor in floors.items():
            assert fleet.num_serving(kind, place) >= floor, f"after step {number}: {what} {name}"


@pytest.mark.anyio
async def test_of_a_hundred_nodes_forty_can_be_stopped_in_a_row_and_the_refusal_has_the_figures(world: World) -> None:
    names = [f"node-{i}" for i in range(100)]
    world.fleet = FakeFleet.of(*names)
    world.fleet.held = {}
    world.fleet.past = [WantedChange(name, "default", "demo", True, HOUR_S) for name in names]
    executor = world.start().executor
    refused = ""
    stopped = []
    for name in names:
        run = await executor.act(f"node stop {name}", reason="", requested_by="ann")
        if run.status is RunStatus.REFUSED:
            refused = run.error
            break
        assert (await executor.drive(run.id)).status is RunStatus.SUCCEEDED
        world.fleet.past.append(WantedChange(name, "default", "demo", False, 0.0))
        stopped.append(name)
    assert len(stopped) == 40
    assert refused == (
        "without node-40 only 59 of 60 nodes would serve, the floor is 60 (100 were wanted within the last hour)"
    )


def test_the_only_serving_node_of_a_model_stays_however_many_others_serve() -> None:
    nodes = [NodeFacts(f"n{i}", "p", "small") for i in range(9)] + [NodeFacts("big", "p", "large")]
    ruling = judge_capacity(parse_command("drain big"), FleetView.of(nodes, [node.name for node in nodes]))
    assert not ruling.allows
    assert ruling.reason == "without big only 0 of 1 nodes of model large would serve, the floor is 1"


def changes(*rows: tuple[str, bool, float]) -> WantedPast:
    return WantedPast(tuple(WantedChange(name, "p", "m", wanted, age_s) for name, wanted, age_s in rows))


def peak(past: WantedPast, **limits: list[str]) -> int:
    return past.peak(lambda _: True, **limits)


def test_a_size_counts_once_it_held_for_a_while_and_until_it_is_an_hour_ago() -> None:
    three = (("a", True, 9000.0), ("b", True, 9000.0), ("c", True, 9000.0))
    assert peak(changes(*three)) == 3
    assert peak(changes()) == 0
    replaced = changes(*three, ("c2", True, 900.0), ("c", False, 600.0))
    assert peak(replaced) == 3, "four were wanted for five minutes only"
    assert peak(changes(*three, ("d", True, SUSTAINED_S))) == 4
    assert peak(changes(*three, ("d", True, SUSTAINED_S)), without=["d"]) == 3
    assert peak(changes(*three, ("b", False, WINDOW_S - 1), ("c", False, WINDOW_S - 1))) == 3
    assert peak(changes(*three, ("b", False, WINDOW_S), ("c", False, WINDOW_S))) == 1


def test_what_was_first_known_of_a_young_fleet_counts_at_once() -> None:
    young = changes(("a", True, 60.0), ("b", True, 60.0), ("c", True, 60.0), ("b", False, 30.0), ("c", False, 20.0))
    assert peak(young) == 3
