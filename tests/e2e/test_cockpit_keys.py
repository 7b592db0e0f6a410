"""A night on a terminal: two faults on a real fleet under traffic, and nothing but keys in a real tmux to mend both."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from fleetctl.drill_fleet import NODE_OPTIONS, settings_for_drill_fleet
from fleetctl.first_night.compressed_rules import write_compressed_rules
from fleetctl.first_night.target_fleet import TargetFleet, open_target_fleet
from fleetctl.settings.load import load_settings, with_flags
from fleetctl.settings.tree import Settings
from fleetctl.stack import Stack
from tests.fixtures.controller import until
from tests.fixtures.tmux import Terminal, terminal

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.anyio, pytest.mark.timeout(600)]

SLOW, DEAD = "node-2", "node-3"
SERIES, PAST = ("llm:step_seconds:mean", "llm:ttft_seconds:mean"), "80s"
QUIET_S, BASELINE_S, PROPOSED_S, MENDED_S = 90.0, 240.0, 120.0, 180.0


def settings_of(tmp_path: Path, model_dir: Path) -> Settings:
    """A fleet of three with short windows, which asks before it acts."""
    base = with_flags(load_settings(), fleet={"model_dir": model_dir})
    folder = tmp_path / "fleet"
    settings = settings_for_drill_fleet(
        base, folder, policy="ask", nodes=3, node_options={**NODE_OPTIONS, "runner": "fake"}
    )
    write_compressed_rules(folder / "content")
    return with_flags(settings, content=(*base.content, folder / "content"))


async def test_keys_alone_mend_two_faults_at_once(tmp_path: Path, model_dir: Path) -> None:
    settings = settings_of(tmp_path, model_dir)
    command = [sys.executable, "-m", "fleetctl.cli", "--state-dir", str(settings.state_dir), "top"]
    async with open_target_fleet(Stack(settings), runner="fake", rate_per_s=2.0) as fleet:
        sending = asyncio.create_task(fleet.traffic.send_until_stopped())
        try:
            with terminal(command, os.environ, tmp_path, (120, 40)) as screen:
                await _two_incidents(fleet, screen)
                await asyncio.to_thread(_mend_both, screen)
        finally:
            fleet.traffic.stop_sending()
            await sending
        assert await fleet.ready_nodes() == 3
        assert SLOW not in (running := [name for name in fleet.nodes() if fleet.is_running(name)])
        assert DEAD not in running
    assert fleet.traffic.lost_between(0.0, float("inf")) == 0


async def _two_incidents(fleet: TargetFleet, screen: Terminal) -> None:
    await asyncio.to_thread(screen.wait_for, "Nothing hurts", "3/3 ready", within_s=QUIET_S)

    async def has_past() -> bool:
        """All three nodes had normal traffic for long enough to be compared with it."""
        told = [await fleet.client.query(f"{series} offset {PAST}") for series in SERIES]
        return all(len(answer["samples"]) == 3 for answer in told)

    await until(has_past, f"three nodes have a past of {PAST}", timeout_s=BASELINE_S)
    await fleet.set_faults(SLOW, slow_steps=10.0 * fleet.pace)
    await asyncio.to_thread(screen.wait_for, f"Replace {SLOW} with", "waits for you", within_s=PROPOSED_S)
    fleet.send_signal(DEAD, signal.SIGKILL)
    await asyncio.to_thread(screen.wait_for, f"Replace {DEAD} with", "2 incidents", within_s=PROPOSED_S)


def _mend_both(screen: Terminal) -> None:
    """What a person does: look at what is gravest, take it, read, approve; the same for the next; wait for quiet."""
    for _ in range(2):
        screen.press("g", "i")
        found = screen.wait_for("PROPOSED: Replace node-", within_s=MENDED_S)
        node = re.findall(r"PROPOSED: Replace (node-\d)", found)[0]
        screen.press("a")
        screen.wait_for("Run replace-node?", f"Replace {node} with", within_s=20)
        screen.press("y")
        screen.wait_for(f"Run: Replace {node} with", within_s=60)
        screen.press("g", "n")
        screen.wait_for(f"Replace {node} with", "done and verified", within_s=MENDED_S)
    screen.wait_for("Nothing hurts", "3/3 ready", within_s=MENDED_S)
    screen.press("g", "e", "/", *"verified", "Enter")
    screen.wait_for(f"Replace {SLOW} with", f"Replace {DEAD} with", within_s=20)
    screen.press("q")
