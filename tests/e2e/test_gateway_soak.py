"""A short soak of two gateways: users of a fleet of real processes that are disturbed notice nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl.gateway_soak.soak_request import KINDS
from fleetctl.providers.process import ProcessTable

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]

NUM_DISTURBANCES = 5
ARGUMENTS = (
    "--runner",
    "fake",
    "--nodes",
    "3",
    "--gateways",
    "2",
    "--at-once",
    "12",
    "--minutes",
    "0.5",
    "--seed",
    "7",
)


@pytest.fixture
def soak(tmp_path: Path, model_dir: Path) -> Iterator[subprocess.Popen[str]]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLEETCTL_")}
    env |= {"FLEETCTL_FLEET__MODEL_DIR": str(model_dir), "FLEETCTL_STATE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "fleetctl.gateway_soak", "--min-disturbances", str(NUM_DISTURBANCES)]
    process = subprocess.Popen(
        [*command, *ARGUMENTS], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    yield process
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert ProcessTable(tmp_path / "gateway-soak" / "run").running() == []


def test_nothing_is_lost_changed_or_sent_twice_while_nodes_and_gateways_are_disturbed(
    soak: subprocess.Popen[str],
) -> None:
    stdout, _ = soak.communicate(timeout=500)
    told = json.loads(stdout)
    assert told["right"], stdout
    assert soak.returncode == 0
    assert len(told["disturbances"]) >= NUM_DISTURBANCES, stdout
    assert set(told["finished_by_kind"]) == set(KINDS), stdout
    assert told["streams"] > 0
    assert told["plain"] > 0
