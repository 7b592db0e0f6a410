"""Sleep and wake on real nodes: memory comes back, nobody is cut off, and health never lies."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.engine import EngineNode, Streamed, read_stream, start_node, wait_for

LONG = {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
STATES = ("awake", "weights_offloaded", "discard_all")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("sleep"), extra_args=("--golden-interval", "0.5")) as running:
        yield running


@pytest.fixture
def node(shared: EngineNode) -> Iterator[EngineNode]:
    yield shared
    shared.wait_ready()


def sleep(node: EngineNode, query: str = "", status: int = 200) -> dict[str, Any]:
    answer = node.http.post(f"/admin/sleep{query}")
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def wake(node: EngineNode, status: int = 200) -> dict[str, Any]:
    answer = node.http.post("/admin/wake_up")
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def reason(node: EngineNode) -> str:
    answer = node.http.get("/health/ready")
    assert (answer.status_code == 200) == answer.json()["ready"]
    return str(answer.json()["reason"])


def sleep_metric(node: EngineNode) -> list[float | None]:
    return [node.metric("vllm:engine_sleep_state", sleep_state=state) for state in STATES]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_sleeping_node_takes_no_work_and_says_so(node: EngineNode) -> None:
    core = node.core_pid()
    assert sleep_metric(node) == [1, 0, 0]
    assert sleep(node)["level"] == 1
    assert reason(node) == "asleep"
    assert sleep_metric(node) == [0, 1, 0]
    refused = node.http.post("/v1/completions", json={"prompt": "x"})
    assert (refused.status_code, refused.headers["X-Fleet-Refused"]) == (503, "not_ready")
    assert "asleep" in refused.text
    assert node.http.get("/health/deep").status_code == 503
    assert sleep(node)["state"] == "asleep", "asking twice is no mistake"
    woken = wake(node)
    assert (woken["state"], woken["ready"], reason(node)) == ("awake", True, "ready")
    assert sleep_metric(node) == [1, 0, 0]
    assert node.core_pid() == core
    assert node.http.post("/v1/completions", json={"prompt": "x"}).status_code == 200
    assert wake(node)["state"] == "awake", "waking twice is no mistake"


def test_level_two_ends_the_core_and_loads_again(node: EngineNode) -> None:
    core = node.core_pid()
    crashes = (node.metric("engine_core_restarts_total"), len(node.events("core.lost")))
    assert sleep(node, "?level=2")["weights"] == "discarded"
    assert not is_alive(core)
    assert (reason(node), sleep_metric(node), node.metric("engine_core_up")) == ("asleep", [0, 0, 1], 0)
    assert node.http.post("/v1/completions", json={"prompt": "x"}).status_code == 503
    sleep(node, "?level=1", status=409)
    assert wake(node)["ready"]
    assert reason(node) == "ready"
    assert node.core_pid() != core
    assert (node.metric("engine_core_restarts_total"), len(node.events("core.lost"))) == crashes
    assert node.http.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def test_the_first_level_can_become_the_second(node: EngineNode) -> None:
    core = node.core_pid()
    sleep(node)
    assert sleep(node, "?level=2")["level"] == 2
    assert not is_alive(core)
    assert wake(node)["ready"]


def test_a_busy_node_refuses_to_sleep_and_says_what_to_do(node: EngineNode) -> None:
    answers: list[Streamed] = []
    started = threading.Event()

    def ask() -> None:
        answers.append(read_stream(node, "/v1/completions", LONG, on_chunk=lambda count: started.set()))

    thread = threading.Thread(target=ask)
    with node.slowed(20):
        thread.start()
        assert started.wait(60)
        error = sleep(node, status=409)["error"]
        assert (error["code"], "/admin/drain" in error["message"]) == ("not_idle", True)
        assert reason(node) == "ready"
        error = sleep(node, "?drain=true&deadline=0", status=409)["error"]
        assert (error["code"], "/admin/abort" in error["message"]) == ("not_idle", True)
        assert reason(node) == "ready", "it serves again"
        node.http.post("/admin/abort", json={"request_ids": None})
        thread.join(60)
    assert answers[0].error is not None


def test_draining_first_moves_what_can_move_and_serves_after_waking(node: EngineNode) -> None:
    moved: list[Streamed] = []
    started = threading.Event()

    def ask() -> None:
        headers = {"X-Fleet-Handoff": "accept"}
        moved.append(read_stream(node, "/v1/completions", LONG, headers=headers, on_chunk=lambda count: started.set()))

    thread = threading.Thread(target=ask)
    with node.slowed(20):
        thread.start()
        assert started.wait(60)
        assert sleep(node, "?drain=true&deadline=0.2")["state"] == "asleep"
        thread.join(60)
    assert moved[0].handoff is not None
    assert node.http.get("/admin/drain").json()["receipt"]["moved"] == 1
    assert reason(node) == "asleep"
    assert wake(node)["reason"] == "ready"
    assert node.http.get("/admin/drain").json()["state"] == "serving"


def test_who_drained_before_has_to_resume_after(node: EngineNode) -> None:
    node.drain(0)
    assert (sleep(node)["state"], reason(node)) == ("asleep", "asleep")
    woken = wake(node)
    assert (woken["ready"], woken["reason"]) == (False, "draining")
    node.http.post("/admin/resume")
    assert reason(node) == "ready"


def test_a_core_that_dies_asleep_stays_down_until_it_is_woken(node: EngineNode) -> None:
    core = node.core_pid()
    sleep(node)
    judged = len(node.events("node.health_changed"))
    os.kill(core, signal.SIGKILL)
    wait_for(lambda: node.http.get("/admin/sleep").json()["level"] == 2, "the death to be noticed")
    assert node.events("core.lost_asleep")
    assert node.events("node.health_changed")[judged:] == [], "it was asleep all the time"
    assert (reason(node), sleep_metric(node)) == ("asleep", [0, 0, 1])
    assert wake(node)["ready"]
    assert node.core_pid() != core
    assert node.http.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def test_a_core_that_dies_on_waking_is_started_again_like_any_other(node: EngineNode) -> None:
    sleep(node)
    core = node.core_pid()
    os.kill(core, signal.SIGSTOP)  # so that the death comes between the question and its answer
    errors: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: errors.append(wake(node, status=503)))
    thread.start()
    wait_for(lambda: reason(node) == "warming_up", "the waking")
    os.kill(core, signal.SIGKILL)
    thread.join(60)
    assert errors[0]["error"]["code"] == "core_dead"
    node.wait_ready()
    assert node.http.get("/admin/sleep").json()["state"] == "awake"
    assert node.http.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def test_wrong_answers_after_waking_keep_the_node_out_of_service(node: EngineNode) -> None:
    sleep(node)
    node.http.post("/admin/faults", json={"wrong_numbers": True})
    assert wake(node, status=503)["error"]["code"] == "wrong_output"
    assert reason(node) == "wrong_output"
    node.http.post("/admin/faults", json={"wrong_numbers": None})
    node.wait_ready()


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleeping_node_stops_when_it_is_told(tmp_path: Path, level: int) -> None:
    with start_node(tmp_path) as node:
        sleep(node, f"?level={level}")
        node.proc.send_signal(signal.SIGTERM)
        assert node.proc.wait(timeout=60) == 0


@pytest.mark.parametrize("query", ["?level=3", "?level=x", "?depth=1", "?drain=true&deadline=-1"])
def test_a_question_that_makes_no_sense_is_refused(node: EngineNode, query: str) -> None:
    sleep(node, query, status=400)
    assert reason(node) == "ready"


def test_only_who_has_the_token_may(node: EngineNode) -> None:
    for path in ("/admin/sleep", "/admin/wake_up"):
        assert node.http.post(path, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_the_memory_of_the_cache_comes_back_and_so_do_the_answers(tmp_path: Path) -> None:
    limits = ("--num-kv-blocks", "4000", "--max-num-seqs", "8")
    with start_node(tmp_path, runner="torch", extra_args=limits) as node:

        def answer() -> str:
            body = {"prompt": "once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
            return str(node.http.post("/v1/completions", json=body).json()["choices"][0]["text"])

        first, core = answer(), node.core_pid()
        tokens = 0
        for number in range(5):
            prompt = [(number * 37 + i * 11) % 500 for i in range(2000)]
            usage = node.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).json()["usage"]
            tokens += usage["total_tokens"]
        cache = int(node.http.get("/info").json()["kv_capacity_tokens"])
        per_token = 2 * 4 * 2 * 32 * 4  # keys and values, layers, heads, head size, bytes
        before = rss_bytes(core)
        status = sleep(node)
        assert (status["weights"], status["freed_kv_cache_bytes"]) == ("kept", cache * per_token)
        freed = before - rss_bytes(core)
        assert freed > 0.8 * tokens * per_token, f"{freed} bytes came back of {tokens * per_token}"
        assert wake(node)["ready"]
        assert (answer(), node.core_pid()) == (first, core)
        sleep(node, "?level=2")
        assert not is_alive(core)
        assert wake(node)["ready"]
        assert answer() == first
