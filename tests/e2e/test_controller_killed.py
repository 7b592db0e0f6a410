"""SIGKILL of the controller in the middle of a runbook: the next one ends it in the same state, nothing done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleetctl.kit.tls import NO_TLS
from tests.fixtures.fleet import Fleet, fleet, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits]


def runs(made: Fleet) -> list[dict[str, Any]]:
    url = made.processes.spec("controller")["url"]
    try:
        answer: list[dict[str, Any]] = httpx.get(f"{url}/v1/runs", verify=NO_TLS, timeout=30).json()
    except httpx.HTTPError:
        return []
    return answer


def kill_controller(made: Fleet) -> None:
    pid = made.processes.observe("controller").pid
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
    wait_until(lambda: not made.processes.observe("controller").running)


@pytest.mark.timeout(600)
def test_a_run_goes_on_after_a_sigkill_in_each_of_its_steps_and_ends_the_same(tmp_path: Path, model_dir: Path) -> None:
    with fleet(tmp_path / "state", model_dir, fleet__nodes="3") as made:
        assert made.fleetctl("up").returncode == 0
        asked = subprocess.Popen(
            made.command("replace", "node-2", "--deadline", "1s", "--yes"),
            env=made.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def has_begun(step: int) -> bool:
            return any(s["index"] == step and s["status"] != "pending" for run in runs(made) for s in run["steps"])

        for step in range(3):  # the replacement starts, the node is drained, the node is stopped
            wait_until(lambda step=step: has_begun(step))  # type: ignore[misc]
            kill_controller(made)
            asked.wait(timeout=60)
            assert made.fleetctl("up").returncode == 0

        def ended() -> list[dict[str, Any]]:
            return [run for run in runs(made) if run["status"] in ("succeeded", "undone", "failed")]

        wait_until(lambda: bool(ended()))
        (run,) = runs(made)
        assert run["status"] == "succeeded", json.dumps(run, indent=1)
        assert [s["status"] for s in run["steps"] if s["phase"] == "do"] == ["done"] * 3
        nodes = {node["name"]: node["phase"] for node in made.json("get", "nodes")}
        nodes.pop("node-2", None)
        assert len(nodes) == 3, "one replacement, not two"
        assert set(nodes.values()) == {"ready"}
        assert not made.processes.observe("node-2").running
        gateway = httpx.get(made.processes.spec("gateway")["url"] + "/gateway/status", verify=NO_TLS, timeout=30).json()
        assert {name for name, view in gateway["nodes"].items() if view["state"] == "active"} == set(nodes)
