"""`fleetctl demo` on a real terminal: a person is led to the key that mends the fleet, and may leave at any moment."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetctl.providers.process import ProcessTable
from tests.fixtures.alertmanager import wait_for
from tests.fixtures.tmux import Terminal, terminal

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.timeout(600)]

STARTED_S, NORMAL_S, PAGED_S, MENDED_S, STOPPED_S = 90.0, 120.0, 120.0, 180.0, 60.0
NARROW, WIDE = (80, 24), (200, 50)


@contextmanager
def demo(folder: Path, model_dir: Path, size: tuple[int, int] = NARROW) -> Iterator[Terminal]:
    """The command as a person types it; the terminal stays open behind it, with its exit code."""
    config = folder / "config.yaml"
    config.write_text("fleet: {node_options: {runner: fake}}")
    words = ["-m", "fleetctl.cli", "--config", config, "--state-dir", folder / "state", "demo"]
    command = shlex.join(map(str, [sys.executable, *words]))
    environment = {**os.environ, "FLEETCTL_FLEET__MODEL_DIR": str(model_dir)}
    with terminal(
        ["sh", "-c", f"trap : INT; {command}; echo exit code $?; exec sleep 600"], environment, folder, size
    ) as screen:
        yield screen


def leftovers(folder: Path) -> list[str]:
    return ProcessTable(folder / "state" / "demo" / "run").running()


def test_the_tour_waits_for_the_key_that_mends_the_fleet_and_shows_what_came_of_it(
    tmp_path: Path, model_dir: Path
) -> None:
    """Begun on a small terminal, which is made large on the way: a tour takes two minutes, so one shows both."""
    with demo(tmp_path, model_dir) as screen:
        screen.wait_for("1 of 6", "Nothing hurts", "Press g, then f", within_s=STARTED_S)
        screen.press("g", "f")
        screen.wait_for("1 of 6", "Press g, then n", "node-3", within_s=30)
        screen.wait_for("2 of 6: node-2 is slow", within_s=NORMAL_S)
        screen.wait_for("3 of 6", "(slow_node", "Press g, then i", within_s=PAGED_S)
        screen.resize(WIDE)
        screen.press("g", "i")
        screen.wait_for("4 of 6: your turn", "Press a, then y", "runbook approve run-", within_s=60)
        screen.press("a")
        screen.wait_for("Run replace-node?", within_s=60)
        screen.press("y")
        screen.wait_for("5 of 6", within_s=60)
        screen.wait_for("6 of 6: mended", "none was lost", "Press q", within_s=MENDED_S)
        screen.press("q")
        screen.wait_for("Next", "fleetctl top --replay", "exit code 0", within_s=STOPPED_S)
        assert leftovers(tmp_path) == []


@pytest.mark.parametrize("moment", ["starting", "looking", "asked"])
def test_control_c_leaves_nothing_running(tmp_path: Path, model_dir: Path, moment: str) -> None:
    with demo(tmp_path, model_dir) as screen:
        screen.wait_for("Starting a fleet", "node-1", within_s=STARTED_S)
        if moment != "starting":
            screen.wait_for("1 of 6", "Nothing hurts", within_s=STARTED_S)
        if moment == "asked":
            screen.press("g", "f", "D")
            screen.wait_for("drain node-1", within_s=30)
        screen.press("C-c")
        screen.wait_for("exit code 130", within_s=STOPPED_S)
        assert leftovers(tmp_path) == []


def test_a_closed_terminal_leaves_nothing_running(tmp_path: Path, model_dir: Path) -> None:
    with demo(tmp_path, model_dir) as screen:
        screen.wait_for("1 of 6", "Nothing hurts", within_s=STARTED_S)
        assert leftovers(tmp_path) != []
    wait_for(lambda: leftovers(tmp_path) == [], "what ran on a terminal that was closed is stopped")
