"""The main job: `fleetctl demo` finds the broken node, names the cause, repairs it, and loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleetctl.providers.process import ProcessTable

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.timeout(600)]


def test_demo_names_the_cause_and_loses_no_request(tmp_path: Path, model_dir: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLEETCTL_")}
    env["FLEETCTL_FLEET__MODEL_DIR"] = str(model_dir)
    command = [sys.executable, "-m", "fleetctl.cli", "--state-dir", str(tmp_path / "state"), "demo", "-o", "json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=540)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["diagnosed"] == report["expected"] == "slow_node"
    assert report["requests"]["lost"] == 0
    assert report["requests"]["duplicated"] == 0
    assert report["requests"]["sent"] == report["requests"]["finished"] + report["requests"]["refused"]
    assert report["detected_s"] <= report["mitigated_s"]
    assert "slow_node" in Path(report["postmortem"]).read_text()
    assert Path(report["blackbox"]).stat().st_size > 0
    assert ProcessTable(tmp_path / "state" / "demo" / "run").running() == []
