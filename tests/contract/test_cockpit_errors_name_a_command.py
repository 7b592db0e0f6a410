"""Every error that the cockpit tells ends with what to type next, and that can be typed: after `:`, or in a shell."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from fleetctl.cli.examples import EXAMPLES
from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError, UnreachableError
from fleetctl.tui.app import Cockpit
from fleetctl.tui.next_step import FILLED_IN, TYPED, with_next_step
from fleetctl.tui.noun import NOUNS
from fleetctl.tui.order import Wrong, parse_order
from fleetctl.tui.place import JUMPS, Place
from fleetctl.tui.shell import Printed
from runbooks.verbs import VERBS
from tests.contract.test_named_commands import SPEAKS_OF_ITSELF, why_not
from tests.fixtures import ROOT
from tests.fixtures.cockpit import FakeController
from tests.fixtures.cockpit_screen import cockpit, wait_for, wait_for_text

COMMANDS = tuple(EXAMPLES)


class NoShell:
    """Knows all commands, and runs none."""

    commands = COMMANDS
    kinds = ("nodes",)

    async def run(self, words: Sequence[str], columns: int) -> Printed:
        raise AssertionError(f"{words} was run")


def check_last_line(told: str, commands: Sequence[str] = COMMANDS) -> None:
    last = told.splitlines()[-1]
    named = [match[1].strip().rstrip(".") for match in TYPED.finditer(last)]
    named = [line for line in named if line.split()[0] not in SPEAKS_OF_ITSELF]
    assert named, told
    for line in named:
        order = parse_order(FILLED_IN.sub("node-1", line), commands)
        if isinstance(order, Wrong):
            assert order.remedy.startswith("in a shell: "), told
        if f"fleetctl {line}" in last:
            assert why_not(line) is None, told


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What notices said, as they come."""
    heard: list[str] = []
    monkeypatch.setattr(Cockpit, "notify", lambda _, message, **__: heard.append(message))
    return heard


async def type_command(pilot: Pilot[None], text: str) -> None:
    """As a paste: key by key it takes a second."""
    await pilot.press("colon")
    pilot.app.post_message(events.Paste(text))
    await pilot.press("enter")


MISTAKES = (
    "fleetctl",
    "drian node-2",
    "nodse",
    "node node-1 node-2",
    "qqqqq",
    "drain",
    "drain node-2 --dead 3s",
    "drain node-2 --override",
    "drain 'node-2",
    "scale default --to many",
    "rollout start",
    "incident ack",
    "incident assign",
    "runbook approve",
    "runbook deny",
    "runbook approve run-77",
    "runbook run",
    "replace",
    "replace a b c",
    "get nodes -w",
    "events -f",
    "demo",
    "gateway run",
)


@pytest.mark.anyio
async def test_what_is_typed_wrong_is_told_with_a_line_that_can_be_typed(told: list[str]) -> None:
    async with cockpit(FakeController(), shell=NoShell()) as (_, pilot):
        await wait_for_text(pilot, "controller ok")
        for number, typed in enumerate(MISTAKES, 1):
            await type_command(pilot, typed)
            await wait_for(pilot, lambda number=number: len(told) == number)  # type: ignore[misc]
    for text in told:
        check_last_line(text)


ERRORS = [
    kind(f"it was not done ({kind.__name__})", remedy=remedy)
    for kind in (FleetctlError, BadInputError, RefusedError, UnreachableError)
    for remedy in (None, "wait 3 s", "use the same version of fleetctl as the controller")
]


@pytest.mark.anyio
async def test_what_a_controller_refuses_is_told_with_a_line_that_can_be_typed(told: list[str]) -> None:
    controller = FakeController()
    async with cockpit(controller, shell=NoShell()) as (_, pilot):
        await wait_for_text(pilot, "controller ok")
        for number, error in enumerate((*ERRORS, BadInputError("there is no node named node-9")), 1):
            controller.refuses = error
            await type_command(pilot, "drain node-2 --dry-run")
            await wait_for(pilot, lambda number=number: len(told) == number)  # type: ignore[misc]
    for text in told:
        check_last_line(text)
    assert told[-1] == "there is no node named node-9\n:nodes"


@pytest.mark.parametrize("commands", [COMMANDS, ()], ids=["with a shell", "without"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda one: f"{type(one).__name__}, {one.remedy}")
def test_whatever_goes_wrong_ends_with_a_line_that_can_be_typed(error: FleetctlError, commands: Sequence[str]) -> None:
    for name in (*EXAMPLES, *VERBS, *NOUNS, "replace", "frobnicate", ""):
        step = with_next_step(error.message, error.remedy or "", error.exit_code, f"{name} x", commands)
        check_last_line(f"{error.message}\n{step}", commands)


def test_a_remedy_that_can_be_typed_stands_as_it_is() -> None:
    for remedy in ("fleetctl get pools", ":drain node-2", "in a shell: fleetctl top", "`fleetctl get runs` has them"):
        assert with_next_step("it is wrong", remedy, 2, "drain", COMMANDS) == remedy


def test_no_error_is_told_past_the_one_place_that_puts_a_command_behind_it() -> None:
    warns = []
    for path in sorted((ROOT / "fleetctl/tui").glob("*.py")):
        for part in ast.walk(ast.parse(path.read_text())):
            if isinstance(part, ast.Call) and getattr(part.func, "attr", "") == "notify":
                options: dict[str | None, Any] = {one.arg: one.value for one in part.keywords}
                if "severity" in options:
                    warns.append((path.name, ast.literal_eval(options["title"])))
    assert warns == [("app.py", "Incident"), ("deeds.py", "Not done")]
    assert JUMPS["i"] is Place.INCIDENT, "what a new incident's notice names"
