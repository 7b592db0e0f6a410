"""Thirty drains under users while nodes, gateways and the controller are killed: none is lost, receipts add up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleetctl.providers.process import ProcessTable

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]

NUM_DRAINS = 30
ARGUMENTS = ("--runner", "fake", "--nodes", "3", "--gateways", "2", "--at-once", "8", "--seed", "7")


def test_receipts_of_thirty_drains_add_up_and_nothing_is_lost_whatever_is_killed(
    tmp_path: Path, model_dir: Path
) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLEETCTL_")}
    env |= {"FLEETCTL_FLEET__MODEL_DIR": str(model_dir), "FLEETCTL_STATE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "fleetctl.gateway_soak", "--drains", str(NUM_DRAINS), *ARGUMENTS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=580)
    told = json.loads(done.stdout)
    assert (told["right"], done.returncode) == (True, 0), done.stdout
    assert sum(told["drains"].values()) >= NUM_DRAINS, done.stdout
    assert told["receipts"]["moved"] > 0, done.stdout
    assert sum(told["disturbances"].values()) > 0, done.stdout
    assert ProcessTable(tmp_path / "gateway-soak" / "run").running() == []
