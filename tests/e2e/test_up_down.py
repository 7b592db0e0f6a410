"""`fleetctl up` and `down` at their edges: each has a clear answer and leaves no process behind."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.fleet import Fleet, fleet, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]


@pytest.fixture
def two_nodes(tmp_path: Path, model_dir: Path) -> Iterator[Fleet]:
    with fleet(tmp_path / "state", model_dir, fleet__nodes="2") as made:
        yield made


def test_up_twice_then_down_twice(two_nodes: Fleet) -> None:
    first = two_nodes.fleetctl("up")
    assert first.returncode == 0, first.stderr
    assert sorted(two_nodes.processes.running()) == ["controller", "gateway", "node-1", "node-2"]
    pids = {name: two_nodes.processes.observe(name).pid for name in two_nodes.processes.running()}
    second = two_nodes.fleetctl("up")
    assert second.returncode == 0, second.stderr
    assert "already up" in second.stdout
    assert pids == {name: two_nodes.processes.observe(name).pid for name in two_nodes.processes.running()}
    nodes = two_nodes.json("get", "nodes")
    assert {node["phase"] for node in nodes} == {"ready"}
    down = two_nodes.fleetctl("down")
    assert down.returncode == 0
    assert two_nodes.processes.running() == []
    again = two_nodes.fleetctl("down")
    assert again.returncode == 0
    assert "nothing runs" in again.stdout
    unreachable = two_nodes.fleetctl("get", "nodes")
    assert unreachable.returncode == 4
    assert "fleetctl up" in unreachable.stderr


def test_port_in_use_is_said_before_anything_starts(two_nodes: Fleet) -> None:
    port = int(two_nodes.env["FLEETCTL_GATEWAY__PORT"])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # it is reserved for the fleet's gateway
        taken.bind(("127.0.0.1", port))
        taken.listen()
        done = two_nodes.fleetctl("up")
    assert done.returncode == 2
    assert f"127.0.0.1:{port} is in use" in done.stderr
    assert "--gateway-port" in done.stderr
    assert two_nodes.processes.running() == []


def test_missing_model_directory_is_bad_input(two_nodes: Fleet, tmp_path: Path) -> None:
    done = two_nodes.fleetctl("up", "--model-dir", str(tmp_path / "nope"))
    assert done.returncode == 2
    assert f"{tmp_path / 'nope'}: no such model directory" in done.stderr
    (tmp_path / "empty").mkdir()
    done = two_nodes.fleetctl("up", "--model-dir", str(tmp_path / "empty"))
    assert done.returncode == 2
    assert "config.json" in done.stderr
    assert two_nodes.processes.running() == []


def test_half_written_state_is_refused_with_the_path_or_mended(two_nodes: Fleet) -> None:
    run = two_nodes.state_dir / "run" / "node-1"
    run.mkdir(parents=True)
    (run / "spec.json").write_text('{"argv": [')
    (two_nodes.state_dir / "controller.token").write_text("")
    (two_nodes.state_dir / "controller.sqlite").write_bytes(b"this is no database, and never was one" * 100)
    done = two_nodes.fleetctl("up")
    assert done.returncode in (1, 2)
    assert "controller.sqlite" in done.stderr
    assert two_nodes.processes.running() == []
    (two_nodes.state_dir / "controller.sqlite").unlink()
    assert two_nodes.fleetctl("up").returncode == 0


@pytest.mark.parametrize("moment", ["first_process", "nodes_starting"])
def test_interrupt_while_starting_leaves_nothing_behind(two_nodes: Fleet, moment: str) -> None:
    process = subprocess.Popen(
        two_nodes.command("up"), env=two_nodes.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wanted = 1 if moment == "first_process" else 3
    wait_until(lambda: len(two_nodes.processes.running()) >= wanted or process.poll() is not None, timeout_s=60.0)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert two_nodes.processes.running() == []
