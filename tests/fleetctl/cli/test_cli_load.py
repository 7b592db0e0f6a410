"""`load` and `drill` over real sockets: scripted nodes behind a gateway, and a node that takes faults."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from engine.api.schema import FaultsBody
from fleetctl.cli.app import run
from fleetctl.cli.drill import FAULTS
from tests.fixtures.cockpit import make_node
from tests.fixtures.gateway import small_fleet
from tests.fixtures.recorded_controller import recorded_controller

pytestmark = pytest.mark.anyio
TRAFFIC = ["--rate", "60", "--for", "1s", "--model", "demo", "--output-tokens", "4"]


async def load(url: str, *words: str) -> tuple[int, str, str]:
    """The command as a process of its own: it takes Ctrl-C."""
    command = [sys.executable, "-m", "fleetctl.cli", "load", url, *TRAFFIC, *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_traffic_is_sent_and_every_request_accounted_for(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, _nodes, _):
        code, out, err = await load(served.url, "-o", "json")
        assert code == 0, err
        report = json.loads(out)
        assert (report["finished"], report["lost"]) == (report["sent"], 0)
        assert report["sent"] > 10
        assert report["ttft_s"]["p95"] > 0


async def test_what_gets_no_right_answer_is_exit_code_one(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].script.stop_at = 1
        code, _, err = await load(served.url)
        assert code == 1
        assert "got no right answer" in err


async def test_traffic_that_sends_nothing_is_no_success(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, _nodes, _):
        code, _, err = await load(served.url, "--rate", "0.01")
        assert code == 1
        assert "no request of this traffic came" in err
        assert "--for" in err


def test_a_server_that_is_not_there_is_exit_code_four() -> None:
    assert run(["load", "http://127.0.0.1:9", "--for", "1s"]) == 4


def test_what_is_no_url_or_no_key_is_bad_input(tmp_path: Path) -> None:
    assert run(["load", "host:8000"]) == 2
    (tmp_path / "key").write_bytes(b"\x91")
    assert run(["load", "http://127.0.0.1:9", "--api-key-file", str(tmp_path / "key")]) == 2


def test_a_trace_that_can_not_be_read_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    assert run(["load", "http://127.0.0.1:9", "--trace", str(tmp_path / "none.csv")]) == 2


def test_every_fault_of_a_node_can_be_injected_and_its_usual_value_is_taken() -> None:
    assert {fault.key for fault in FAULTS.values()} == set(FaultsBody.model_fields)
    for fault in FAULTS.values():
        FaultsBody.model_validate({fault.key: fault.value_of(None)})


def test_a_drill_asks_the_node_and_says_how_to_mend_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node.token").write_text("secret")
    with recorded_controller({"/admin/faults": {"slow_steps": 6.0, "hung_core": None}}) as node:
        with recorded_controller({"/v1/nodes/node-1": make_node("node-1", url=node.url)}) as controller:
            given = ["--state-dir", str(tmp_path), "--controller", controller.url, "drill"]
            assert run([*given, "inject", "slow-steps", "node-1", "--yes"]) == 0
            assert "fleetctl drill clear all node-1" in capsys.readouterr().out
            assert run([*given, "clear", "all", "node-1", "-y"]) == 0
            assert node.asked == ["POST /admin/faults"] * 2
            assert run([*given, "inject", "slow-stepz", "node-1", "--yes"]) == 2
            del node.answers["/admin/faults"]
            capsys.readouterr()
            assert run([*given, "inject", "slow-steps", "node-1", "--yes"]) == 3
            assert "--enable-faults" in capsys.readouterr().err
