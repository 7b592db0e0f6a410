"""A terminal that is closed under the cockpit ends it: nothing waits for a screen that nobody sees."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.fixtures.alertmanager import wait_for
from tests.fixtures.tmux import terminal


@pytest.mark.e2e
def test_the_cockpit_ends_with_its_terminal_though_nobody_hangs_up(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    top = shlex.join([sys.executable, "-m", "fleetctl.cli", "--controller", "http://127.0.0.1:9", "top"])
    with terminal(
        ["sh", "-c", f"trap '' HUP; echo $$ > {pid_file}; exec {top}"], os.environ, tmp_path, (80, 24)
    ) as screen:
        screen.wait_for("controller unreachable", within_s=60)
        pid = int(pid_file.read_text())
        assert is_running(pid)
    wait_for(lambda: not is_running(pid), "the cockpit ends with its terminal")


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
