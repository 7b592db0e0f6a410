"""What a person on call types from the first verdict to the post-mortem, against a fleet of which a node was killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.fleet import Fleet, fleet, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]
FAKE = {"fleet__node_options": '{"runner": "fake"}'}


@pytest.fixture
def running(tmp_path: Path, model_dir: Path) -> Iterator[Fleet]:
    with fleet(tmp_path / "state", model_dir, fleet__nodes="3", **FAKE) as made:
        up = made.fleetctl("up")
        assert up.returncode == 0, up.stderr
        yield made


@pytest.fixture
def elsewhere(tmp_path: Path, model_dir: Path) -> Iterator[Fleet]:
    with fleet(tmp_path / "elsewhere", model_dir, fleet__nodes="1", **FAKE) as made:
        up = made.fleetctl("up")
        assert up.returncode == 0, up.stderr
        yield made


def test_a_killed_node_is_named_handled_written_up_and_kept_as_a_regression_case(
    running: Fleet, elsewhere: Fleet, tmp_path: Path
) -> None:
    wait_until(lambda: running.fleetctl("diagnose").returncode == 1)
    assert "Nothing is wrong" in running.fleetctl("diagnose").stdout
    pid = running.processes.observe("node-3").pid
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)

    def named() -> list[dict[str, Any]]:
        open_ones: list[dict[str, Any]] = running.json("get", "incidents")
        return [one for one in open_ones if (one.get("diagnosis") or {}).get("cause")]

    wait_until(lambda: bool(named()))
    asked = running.fleetctl("diagnose", "node-3", "-o", "json")
    assert (asked.returncode, json.loads(asked.stdout)["cause"]) == (0, "node_down")
    (incident,) = named()
    assert incident["scope"]["node"] == "node-3"
    name = incident["id"]

    def said(*words: str) -> str:
        done = running.fleetctl("incident", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said("ack", name, "-c", "on it")
    said("assign", name, "bob")
    said("comment", name, "the rack's breaker fell")
    said("severity", name, "SEV-1")
    said("silence", name, "--for", "2h", "-c", "vendor is at the rack")
    box = tmp_path / "night.blackbox.jsonl.gz"
    said("export", name, str(box))
    assert running.fleetctl("replay", str(box), "--step", "1s", "--expect", "node_down").returncode == 0
    assert running.fleetctl("tree", "test", str(box), "--step", "1s").returncode == 0

    assert "regression case" in said("wrong", name, "gpu_fault", "-c", "its fan")
    corrected = tmp_path / "corrected.blackbox.jsonl.gz"
    said("export", name, str(corrected))
    replayed = running.fleetctl("replay", str(corrected), "--step", "1s", "--expect", "recorded")
    assert (replayed.returncode, "expected gpu_fault" in replayed.stderr) == (1, True)
    tested = running.fleetctl("tree", "test", str(tmp_path), "--step", "1s")
    assert tested.returncode == 1
    assert [line.split()[-1] for line in tested.stdout.splitlines()[1:]] == ["WRONG", "ok"]

    shown = said("show", name)
    page = said("postmortem", name)
    for text in (shown, page):
        for told in ("bob", "the rack's breaker fell", "SEV-1", "vendor is at the rack", "gpu_fault"):
            assert told in text
    html = tmp_path / "night.html"
    said("show", name, "--html", str(html))
    assert "<svg" in html.read_text()

    own = running.fleetctl("incident", "import", str(box))
    assert (own.returncode, name in own.stderr) == (3, True)
    taken = elsewhere.fleetctl("incident", "import", str(corrected))
    assert taken.returncode == 0, taken.stderr
    (record,) = elsewhere.json("get", "incidents")
    assert (record["status"], record["scope"]["node"]) == ("resolved", "node-3")
    assert "the rack's breaker fell" in elsewhere.fleetctl("incident", "postmortem", record["id"]).stdout
