"""A short part of the first night: a slow node, a stopped API process, a hung core; on real processes in a hurry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl.providers.process import ProcessTable

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.timeout(600)]

FAULTS = ("slow-step", "sigstop-api", "hung-core")


@pytest.fixture(scope="module")
def drills(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Every fault on a fleet of its own, all at once: most of a drill is waiting."""
    state_dir = tmp_path_factory.mktemp("first-night")
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLEETCTL_")}
    env |= {"FLEETCTL_FLEET__MODEL_DIR": str(model_dir), "FLEETCTL_STATE_DIR": str(state_dir)}
    command = [sys.executable, "-m", "fleetctl.first_night", "--quick", "--runner", "fake", "-o", "json"]
    started = {
        fault: subprocess.Popen(
            [*command, "--fault", fault], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for fault in FAULTS
    }
    yield started
    for drill in started.values():
        drill.terminate()
        drill.communicate(timeout=60)
    for fault in FAULTS:
        assert ProcessTable(state_dir / "first-night" / fault / "run").running() == []


@pytest.mark.parametrize("fault", FAULTS)
def test_right_page_cause_and_remedy_and_no_request_lost(drills: dict[str, subprocess.Popen[str]], fault: str) -> None:
    stdout, _ = drills[fault].communicate(timeout=500)
    (row,) = json.loads(stdout)
    assert (row["problems"], row["wrong"]) == ([], []), json.dumps(row, indent=1)
    assert row["requests"]["lost"] == 0
    assert drills[fault].returncode == 0
