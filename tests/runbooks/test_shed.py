"""`shed`: what is refused, what is ordered, how it is undone. Every run goes through the executor."""

from __future__ import annotations

import re

import pytest

from fleetctl.priority_class import PriorityClass
from runbooks.errors import BadCommandError, BadInputError
from runbooks.run import RunStatus
from runbooks.verbs.shed import CLASSES
from tests.fixtures.runbooks import Controller, World
from tests.runbooks.test_scale import act, carried, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def controller(world: World) -> Controller:
    world.fleet = pool_of("node-1", "node-2")
    return world.start()


def test_the_classes_are_those_of_the_gateways() -> None:
    assert tuple(PriorityClass) == CLASSES


async def test_shedding_orders_a_rule_and_a_second_command_removes_it(world: World, controller: Controller) -> None:
    run = await carried(controller, "shed --below standard --for 15m --share 0.5")
    assert run.status is RunStatus.SUCCEEDED, run.error
    assert world.fleet.rules == {"shed": {"kind": "shed", "below": "standard", "share": 0.5}}
    assert (await carried(controller, "shed remove")).status is RunStatus.SUCCEEDED
    assert world.fleet.rules == {}


async def test_without_tenants_nobody_is_below_standard_and_that_is_said_before_anybody_approves(
    world: World, controller: Controller
) -> None:
    world.fleet.classes = frozenset({"standard"})
    with pytest.raises(BadInputError, match="would turn nobody away: no tenants file is set"):
        await act(controller, "shed --below standard")
    with pytest.raises(BadInputError) as refused:
        await controller.executor.propose("shed-load", {"pool": "decode"}, reason="overload", requested_by="controller")
    remedy = re.search(r"`fleetctl (shed .*?)`", str(refused.value))
    assert remedy is not None, "the page is refused with what to do instead"
    assert world.fleet.rules == {}
    assert (await carried(controller, remedy[1])).status is RunStatus.SUCCEEDED
    assert world.fleet.rules == {"shed": {"kind": "shed", "below": "critical", "share": 0.5}}
    assert (await carried(controller, "shed --below critical")).status is RunStatus.SUCCEEDED
    world.fleet.classes = None  # not known: an order that nobody meets does no harm
    assert (await carried(controller, "shed --below standard")).status is RunStatus.SUCCEEDED


async def test_tenants_have_a_rule_of_their_own(world: World, controller: Controller) -> None:
    await carried(controller, "shed --below standard")
    run = await carried(controller, "shed --below critical --tenants crawl,eval")
    assert run.status is RunStatus.SUCCEEDED, run.error
    assert world.fleet.rules == {
        "shed": {"kind": "shed", "below": "standard"},
        "shed:crawl+eval": {"kind": "shed", "below": "critical", "tenants": ["crawl", "eval"]},
    }
    await carried(controller, "shed remove shed:crawl+eval")
    assert list(world.fleet.rules) == ["shed"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("shed", "--below is missing"),
        ("shed --below batch", "no class below it"),
        ("shed --below gold", "no class below it"),
        ("shed --below standard --share 2", "not a share"),
    ],
)
async def test_what_turns_nobody_away_is_refused(controller: Controller, command: str, said: str) -> None:
    with pytest.raises((BadInputError, BadCommandError), match=said):
        await act(controller, command)
