"""Commands that are typed in the cockpit run as a shell runs them, and end with whoever asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleetctl.cli.cockpit_shell import CockpitShell
from fleetctl.cli.context import Context
from fleetctl.wire.base import Problem
from tests.fixtures.cockpit import make_node
from tests.fixtures.controller import until
from tests.fixtures.recorded_controller import recorded_controller

pytestmark = pytest.mark.anyio

NODES = {"/v1/nodes": [make_node("node-1"), make_node("node-2", zone="b")]}


def given(url: str, folder: Path) -> Context:
    return Context(state_dir=folder, controller_url=url)


async def test_it_prints_what_the_same_words_print_in_a_shell(tmp_path: Path) -> None:
    with recorded_controller(NODES) as controller:
        shell = CockpitShell(given(controller.url, tmp_path))
        printed = await shell.run(["get", "nodes", "-l", "zone=b", "-o", "name"], 100)
        assert (printed.exit_code, printed.text) == (0, "node-2")


async def test_an_error_is_printed_with_what_to_try_and_its_exit_code(tmp_path: Path) -> None:
    with recorded_controller({"/v1/nodes": Problem(error="this needs operator", exit_code=3)}) as controller:
        controller.statuses["/v1/nodes"] = 403
        printed = await CockpitShell(given(controller.url, tmp_path)).run(["get", "nodes"], 100)
        assert printed.exit_code == 3
        assert printed.text.startswith("error: this needs operator\n  try: fleetctl")


async def test_what_asks_on_a_terminal_gets_no_answer_and_does_nothing(tmp_path: Path) -> None:
    with recorded_controller(NODES) as controller:
        printed = await CockpitShell(given(controller.url, tmp_path)).run(["drain", "node-1"], 100)
        assert printed.exit_code == 2
        assert "needs confirmation" in printed.text
        assert controller.asked == []


async def test_a_command_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with recorded_controller(NODES) as controller:
        shell = CockpitShell(given(controller.url, tmp_path), limit_s=3.0)
        printed = await shell.run(["get", "nodes", "-w"], 100)
        assert printed.exit_code == 4
        assert "did not end within 3 s" in printed.text


async def test_who_leaves_leaves_no_process_behind(tmp_path: Path) -> None:
    with recorded_controller(NODES) as controller:
        shell = CockpitShell(given(controller.url, tmp_path))
        running = asyncio.create_task(shell.run(["get", "nodes", "-w"], 100))

        async def is_asked() -> bool:
            return "GET /v1/nodes" in controller.asked

        await until(is_asked, "the command asks the controller")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not any(str(tmp_path).encode() in line for line in command_lines())


def command_lines() -> list[bytes]:
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(one.read_bytes())
        except OSError:
            continue
    return found
