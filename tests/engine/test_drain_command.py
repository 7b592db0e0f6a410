"""`fleetctl-node drain`: what a hook before a stop gets from a real node."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from engine.__main__ import main
from engine.drain_command import DrainFailedError, drain
from tests.fixtures.engine import EngineNode, read_stream, start_node, wait_for

ENDLESS = {"prompt": "hello", "max_tokens": 3000, "ignore_eos": True, "seed": 1, "stream": True}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("drain"), extra_args=("--max-output-tokens", "3000")) as node:
        yield node


@pytest.fixture
def node(running: EngineNode) -> Iterator[EngineNode]:
    yield running
    running.http.post("/admin/faults", json={"slow_steps": None})
    running.http.post("/admin/abort", json={"request_ids": None})
    wait_for(lambda: running.http.get("/admin/requests").json()["requests"] == [], "the node to be empty")
    running.http.post("/admin/resume")


@pytest.fixture
def words(node: EngineNode, tmp_path: Path) -> list[str]:
    (tmp_path / "token").write_text(node.token)
    return ["drain", "--port", str(port_of(node)), "--admin-token-file", str(tmp_path / "token")]


def port_of(node: EngineNode) -> int:
    port = urlsplit(node.url).port
    assert port is not None
    return port


def hold_a_request(node: EngineNode) -> None:
    """One that takes minutes, and whose client can't follow it to another node."""
    node.http.post("/admin/faults", json={"slow_steps": 100})
    client = threading.Thread(target=read_stream, args=(node, "/v1/completions", ENDLESS), daemon=True)
    client.start()
    wait_for(lambda: node.http.get("/admin/requests").json()["requests"], "the request to be held")


def test_an_idle_node_is_drained_at_once_and_takes_no_more_work(
    node: EngineNode, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out == "drained: in_flight: 0, finished: 0, moved: 0, refused: 0, aborted: 0\n"
    ready = node.http.get("/health/ready")
    assert (ready.status_code, ready.json()["reason"]) == (503, "draining")


def test_it_waits_until_what_the_node_holds_has_ended(
    node: EngineNode, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    hold_a_request(node)
    codes: list[int] = []
    command = threading.Thread(target=lambda: codes.append(main([*words, "--deadline", "60"])))
    command.start()
    wait_for(lambda: node.http.get("/admin/drain").json()["state"] == "draining", "the drain to begin")
    assert command.is_alive()
    node.http.post("/admin/abort", json={"request_ids": None})
    command.join()
    assert codes == [0]
    assert "in_flight: 1, finished: 0, moved: 0, refused: 0, aborted: 1" in capsys.readouterr().out


def test_what_does_not_end_is_told_and_not_waited_for_for_ever(node: EngineNode) -> None:
    hold_a_request(node)
    ticks = itertools.count(step=5.0)
    with pytest.raises(DrainFailedError, match="1 requests are left 20 s after the deadline"):
        drain("127.0.0.1", port_of(node), node.token, 1.0, clock=lambda: next(ticks), sleep=lambda _: None)


def test_a_node_that_somebody_resumed_is_no_drained_node(node: EngineNode) -> None:
    hold_a_request(node)
    with pytest.raises(DrainFailedError, match="somebody resumed it"):
        drain("127.0.0.1", port_of(node), node.token, 60.0, sleep=lambda _: node.http.post("/admin/resume") and None)


def test_a_node_that_is_gone_is_told_at_once(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words[words.index("--port") + 1] = "9"
    assert main(words) == 1
    assert "127.0.0.1:9 does not answer" in capsys.readouterr().err


def test_a_wrong_token_is_told_with_the_nodes_own_words(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("not-the-token")
    assert main(words) == 1
    assert "answers 401" in capsys.readouterr().err


def test_a_missing_token_file_is_bad_input(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words[-1] += ".gone"
    assert main(words) == 2
    assert "--admin-token-file" in capsys.readouterr().err
