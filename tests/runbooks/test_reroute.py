"""`reroute`: what is refused, what is ordered, how it is undone. Every run goes through the executor."""

from __future__ import annotations

import pytest

from runbooks.command import parse_command
from runbooks.errors import BadCommandError, BadInputError
from runbooks.run import RunStatus
from runbooks.value import ThresholdUnit, parse_threshold
from tests.fixtures.runbooks import Controller, FakeFleet, World
from tests.runbooks.test_scale import act, carried, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def controller(world: World) -> Controller:
    world.fleet = pool_of("node-1", "node-2")
    return world.start()


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("500", ThresholdUnit.TOKENS, 500),
        ("32k", ThresholdUnit.TOKENS, 32_768),
        ("1M", ThresholdUnit.TOKENS, 1_048_576),
        ("5s", ThresholdUnit.SECONDS, 5),
        ("2m", ThresholdUnit.SECONDS, 120),
        ("25%", ThresholdUnit.RATIO, 0.25),
    ],
)
def test_a_threshold_is_tokens_seconds_or_a_share(text: str, unit: ThresholdUnit, amount: float) -> None:
    assert parse_threshold(text) == (unit, amount)


@pytest.mark.parametrize("text", ["", "0", "0k", "-5", "5 s", "32K", "2GiB", "101%", "long", "1e3"])
def test_what_is_no_threshold_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="not a threshold"):
        parse_threshold(text)


async def test_a_reroute_orders_a_rule_and_a_second_one_removes_it(world: World, controller: Controller) -> None:
    run = await carried(controller, "reroute long-context --over 32k --to long --for 1h --cap 2")
    assert run.status is RunStatus.SUCCEEDED, run.error
    assert world.fleet.rules == {
        "long-context": {"kind": "reroute", "over_tokens": 32_768, "pool": "long", "cap": 2},
    }
    assert str(run.targets[0]) == "route/long-context"
    run = await carried(controller, "reroute remove")
    assert run.status is RunStatus.SUCCEEDED
    assert world.fleet.rules == {}


async def test_a_rule_can_have_a_name_of_its_own(world: World, controller: Controller) -> None:
    await carried(controller, "reroute long-context very-long --over 10s --share 0.5")
    assert world.fleet.rules == {"very-long": {"kind": "reroute", "over_prefill_s": 10.0, "share": 0.5}}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("reroute long-context --over 32k", "where to"),
        ("reroute long-context --over 32k --to long --share 0.5", "where to"),
        ("reroute long-context --over 32k --to nowhere", "no pool nowhere"),
        ("reroute long-context --to long", "--over is missing"),
        ("reroute long-context --over 32k --share 1.5", "not a share"),
    ],
)
async def test_a_reroute_that_makes_no_sense_is_refused(controller: Controller, command: str, said: str) -> None:
    with pytest.raises((BadInputError, BadCommandError), match=said):
        await act(controller, command)


async def test_a_reroute_to_the_only_pool_is_refused(world: World) -> None:
    world.fleet = FakeFleet.of("node-1", "node-2")
    with pytest.raises(BadInputError, match="the only one"):
        await act(world.start(), "reroute long-context --over 32k --to default")


def test_how_long_a_rule_lasts_is_no_time_that_a_step_may_take() -> None:
    assert parse_command("reroute long-context --over 32k --share 0.5 --for 8h").own_time_s == 0
