"""A short part of the first night: a slow node, a stopped API process, a killed core; on real processes in a hurry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleetctl.providers.process import ProcessTable

pytestmark = [pytest.mark.e2e, pytest.mark.serial]

FAULTS = ("slow-step", "sigstop-api", "sigkill-core")


@pytest.mark.parametrize("fault", FAULTS)
def test_person_on_call_gets_page_cause_and_remedy_and_no_user_loses_a_request(
    tmp_path: Path, model_dir: Path, fault: str
) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLEETCTL_")}
    command = [sys.executable, "-m", "fleetctl.first_night", "--quick", "--runner", "fake", "--fault", fault]
    done = subprocess.run(
        [*command, "--state-dir", str(tmp_path), "-o", "json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=170,
        env={**env, "FLEETCTL_FLEET__MODEL_DIR": str(model_dir)},
    )
    (row,) = json.loads(done.stdout)
    assert (row["problems"], row["wrong"]) == ([], []), json.dumps(row, indent=1)
    assert row["requests"]["lost"] == 0
    assert done.returncode == 0
    assert ProcessTable(tmp_path / "first-night" / fault / "run").running() == []
