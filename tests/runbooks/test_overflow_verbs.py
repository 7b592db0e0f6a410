"""`overflow on`, `off` and `remove`: what is refused, what is ordered, how it is undone, through the executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest

from fleetctl.settings.overflow import OverflowReason
from fleetctl.traffic_rule import TrafficRuleRequest
from runbooks.errors import BadInputError
from runbooks.ports import WayOut
from runbooks.run import RunStatus
from runbooks.verbs.overflow import REASONS
from tests.fixtures.runbooks import Controller, World
from tests.runbooks.test_scale import act, carried, pool_of

pytestmark = pytest.mark.anyio

FAR = WayOut("far", frozenset({"demo"}), 0.5)
SPENT = WayOut("spent", frozenset({"demo"}), 0.0)
UNKNOWN = WayOut("torn", frozenset({"demo"}), None)


@pytest.fixture
def controller(world: World) -> Controller:
    world.fleet = pool_of("node-1", "node-2")
    world.fleet.ways = (FAR,)
    return world.start()


def test_the_reasons_are_those_of_the_settings() -> None:
    assert get_args(OverflowReason) == REASONS


@pytest.mark.parametrize(
    ("command", "name", "spec"),
    [
        (
            "overflow on --for 1h",
            "overflow",
            {"kind": "overflow", "state": "on", "when": ["no_node", "overloaded"]},
        ),
        (
            "overflow on --model demo --when queue_wait",
            "overflow-demo",
            {"kind": "overflow", "state": "on", "when": ["queue_wait"], "model": "demo"},
        ),
        ("overflow off --for 8h", "overflow", {"kind": "overflow", "state": "off"}),
        ("overflow off --model demo", "overflow-demo", {"kind": "overflow", "state": "off", "model": "demo"}),
    ],
)
async def test_the_verb_orders_a_rule_and_remove_ends_it(
    world: World, controller: Controller, command: str, name: str, spec: dict[str, Any]
) -> None:
    run = await carried(controller, command)
    assert run.status is RunStatus.SUCCEEDED, run.error
    assert world.fleet.rules == {name: spec}
    assert TrafficRuleRequest.model_validate({"spec": spec}).spec.default_id == name
    run = await carried(controller, f"overflow remove {name}")
    assert run.status is RunStatus.SUCCEEDED
    assert world.fleet.rules == {}


@pytest.mark.parametrize(
    ("ways", "rest", "said"),
    [
        (None, "", "no gateway says"),
        ((), "", "no gateway has an endpoint outside"),
        ((FAR,), " --model other", "an endpoint for model other outside"),
        ((SPENT,), "", "the budget of spent is spent"),
        ((UNKNOWN,), "", "the budget of torn is not known"),
        ((UNKNOWN, SPENT), "", "the budget of spent, torn is spent"),
        ((FAR,), " --when tuesday", "--when: tuesday"),
    ],
    ids=["blind", "none", "other model", "spent", "unknown", "unknown and spent", "no reason"],
)
async def test_a_way_out_that_nothing_could_take_is_not_opened_and_may_always_be_closed(
    world: World, controller: Controller, ways: Sequence[WayOut] | None, rest: str, said: str
) -> None:
    world.fleet.ways = ways
    with pytest.raises(BadInputError, match=said):
        await act(controller, f"overflow on{rest}")
    assert world.fleet.rules == {}
    assert (await carried(controller, "overflow off")).status is RunStatus.SUCCEEDED


async def test_one_endpoint_with_budget_left_is_enough_and_the_undo_removes_the_order(
    world: World, controller: Controller
) -> None:
    world.fleet.ways = (UNKNOWN, FAR)
    run = await carried(controller, "overflow on --for 1h")
    assert run.status is RunStatus.SUCCEEDED
    assert [item.command for item in run.undo] == ["overflow remove route/overflow"]
