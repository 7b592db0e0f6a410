"""`canary` and `shadow`: what is refused, what is ordered, how it is undone. Every run goes through the executor."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.traffic_rule import TrafficRuleRequest
from runbooks.command import parse_command
from runbooks.errors import BadCommandError, BadInputError
from runbooks.run import RunStatus
from runbooks.value import parse_ratio
from tests.fixtures.runbooks import Controller, FakeFleet, World
from tests.runbooks.test_scale import act, carried, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def controller(world: World) -> Controller:
    world.fleet = pool_of("node-1", "node-2")
    return world.start()


@pytest.mark.parametrize(("text", "ratio"), [("0.05", 0.05), (".5", 0.5), ("5%", 0.05), ("0.1%", 0.001), ("99%", 0.99)])
def test_a_share_is_a_ratio_or_a_percentage(text: str, ratio: float) -> None:
    assert parse_ratio(text) == pytest.approx(ratio)


@pytest.mark.parametrize("text", ["0", "0%", "0.0"])
def test_a_canarys_share_may_be_nothing(text: str) -> None:
    action = parse_command(f"canary --revision r2 --share {text}")
    assert action.args["share"] == 0
    assert parse_command(action.command).args == action.args
    with pytest.raises(BadCommandError, match="not a share"):
        parse_command(f"shadow --revision r2 --share {text}")


@pytest.mark.parametrize("text", ["", "0", "0%", "1", "1.0", "100%", "-5%", "5 %", "0.0", "five", "1e-3", "%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="not a share"):
        parse_ratio(text)


@pytest.mark.parametrize(
    ("command", "name", "spec"),
    [
        ("canary --to long --share 5% --for 1h", "canary", {"kind": "canary", "pools": {"long": 0.05}}),
        (
            "canary r2-of-demo --to long --share 0.2 --model demo",
            "r2-of-demo",
            {"kind": "canary", "pools": {"long": 0.2}, "model": "demo"},
        ),
        ("canary --revision r9 --share 0", "canary", {"kind": "canary", "revisions": {"r9": 0.0}}),
        ("shadow --to long --share 10%", "shadow", {"kind": "shadow", "pool": "long", "share": 0.1}),
        (
            "shadow --to long --model demo --cap 4",
            "shadow",
            {"kind": "shadow", "pool": "long", "share": 0.05, "model": "demo", "cap": 4},
        ),
    ],
)
async def test_the_verb_orders_a_rule_and_remove_ends_it(
    world: World, controller: Controller, command: str, name: str, spec: dict[str, Any]
) -> None:
    run = await carried(controller, command)
    assert run.status is RunStatus.SUCCEEDED, run.error
    assert world.fleet.rules == {name: spec}
    TrafficRuleRequest.model_validate({"spec": spec})  # what the controller takes
    run = await carried(controller, f"{command.split()[0]} remove {name}")
    assert run.status is RunStatus.SUCCEEDED
    assert world.fleet.rules == {}


@pytest.mark.parametrize("verb", ["canary", "shadow"])
@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("--share 5%", "where to"),
        ("--to long --revision r2 --share 5%", "where to"),
        ("--to nowhere --share 5%", "no pool nowhere"),
        ("--revision r9 --share 5%", "no revision r9"),
        ("--to long --share 150%", "not a share"),
    ],
)
async def test_what_makes_no_sense_is_refused(controller: Controller, verb: str, rest: str, said: str) -> None:
    with pytest.raises((BadInputError, BadCommandError), match=said):
        await act(controller, f"{verb} {rest}")


@pytest.mark.parametrize("verb", ["canary", "shadow"])
async def test_the_only_pool_can_be_compared_with_nothing(world: World, verb: str) -> None:
    world.fleet = FakeFleet.of("node-1", "node-2")
    with pytest.raises(BadInputError, match="the only one"):
        await act(world.start(), f"{verb} --to default")


def test_a_share_is_written_so_that_it_is_read_again() -> None:
    action = parse_command("canary --revision r2 --share 7.5%")
    assert parse_command(action.command).args == action.args
