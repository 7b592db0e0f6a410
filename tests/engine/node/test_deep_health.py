"""Health of real nodes: a core that hangs, one that is killed, one that computes wrong numbers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from engine.node.health import STUCK_FLOOR_S
from tests.fixtures.engine import EngineNode, read_stream, start_node, tiny_model_dir, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.serial]

FOUND_WITHIN_S = 5.0  # the promise
LONG = {"prompt": "hello", "max_tokens": 4000, "ignore_eos": True, "stream": True, "seed": 1}


def deep(node: EngineNode) -> dict[str, Any]:
    answer = node.http.get("/health/deep")
    body = dict(answer.json())
    assert answer.status_code == (200 if body["ready"] else 503)
    return body


def reason(node: EngineNode) -> str:
    return str(node.http.get("/health/ready").json()["reason"])


class Standstill:
    """What a busy machine kept this process waiting for the processor, in seconds: no fault of a node beside it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(0.02):
            now = time.monotonic()
            self.seconds += now - before - 0.02
            before = now


def begin_long_request(node: EngineNode) -> threading.Thread:
    def read() -> None:
        with contextlib.suppress(httpx.TransportError):
            read_stream(node, "/v1/completions", LONG, headers={"X-Request-Id": "long"})

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    wait_for(lambda: node.metric("vllm:num_requests_running") == 1, "the request to run")
    return thread


def test_deep_health_shows_progress_and_the_golden_prompt(tmp_path: Path) -> None:
    with start_node(tmp_path) as node:
        body = deep(node)
        assert (body["ready"], body["reason"]) == (True, "ready")
        assert body["golden"]["result"] == "passed"
        assert body["golden"]["age_s"] >= 0
        assert body["progress"]["state"] == "idle"
        assert body["progress"]["for_s"] < body["progress"]["allowed_s"] == STUCK_FLOOR_S
        assert body["work"] == {"running": 0, "waiting": 0, "oldest_waiting_s": None, "oldest_running_s": None}
        assert node.metric("engine_golden_ok") == 1
        assert node.metric("vllm:iteration_tokens_total_count") == 0, "the node's own prompt is in no count"
        node.http.post("/admin/faults", json={"slow_steps": 100})
        begin_long_request(node)
        body = wait_for(lambda: (b := deep(node))["progress"]["state"] == "step" and b, "a step")
        assert body["work"]["oldest_running_s"] > 0
        assert body["progress"]["predicted_s"] > 0


@pytest.mark.parametrize("has_work", [True, False], ids=["in-flight", "idle"])
def test_a_stopped_core_is_found_within_five_seconds(tmp_path: Path, has_work: bool) -> None:
    with start_node(tmp_path) as node, Standstill() as standstill:
        if has_work:
            node.http.post("/admin/faults", json={"slow_steps": 5})
            begin_long_request(node)
        before_s = standstill.seconds
        os.kill(node.core_pid(), signal.SIGSTOP)
        stopped_at = time.time()
        # Nobody probes: it is the node that notices.
        noticed = wait_for(
            lambda: [e for e in node.events("node.health_changed") if e["reason"] == "core_stuck"], "the log"
        )
        within_s = FOUND_WITHIN_S + standstill.seconds - before_s
        assert datetime.fromisoformat(noticed[0]["timestamp"]).timestamp() - stopped_at < within_s
        answer = node.http.get("/health/ready")
        assert (answer.status_code, answer.json()["reason"]) == (503, "core_stuck")
        assert answer.json()["since"] - stopped_at < within_s
        assert node.http.get("/health/live").status_code == 200
        body = deep(node)
        assert body["progress"]["for_s"] > body["progress"]["allowed_s"]
        refused = node.http.post("/v1/completions", json={"prompt": "x"})
        assert (refused.status_code, refused.headers["X-Fleet-Refused"]) == (503, "not_ready")
        os.kill(node.core_pid(), signal.SIGCONT)
        node.wait_ready()


def test_a_killed_core_is_noticed_within_a_second_and_its_requests_end_aloud(tmp_path: Path) -> None:
    with start_node(tmp_path) as node, Standstill() as standstill:
        node.http.post("/admin/faults", json={"slow_steps": 20})
        killed_at = before_s = 0.0

        def kill_core(count: int) -> None:
            nonlocal killed_at, before_s
            if count == 3:
                before_s = standstill.seconds
                os.kill(node.core_pid(), signal.SIGKILL)
                killed_at = time.time()

        answer = read_stream(node, "/v1/completions", LONG, on_chunk=kill_core)
        assert answer.error is not None
        assert answer.error["code"] == "core_dead"
        lost = node.events("core.lost")[0]
        assert datetime.fromisoformat(lost["timestamp"]).timestamp() - killed_at < 1.0 + standstill.seconds - before_s
        node.wait_ready()
        assert deep(node)["golden"]["result"] == "passed"


def test_a_hung_core_is_a_fault_that_can_be_cleared(tmp_path: Path) -> None:
    with start_node(tmp_path) as node:
        node.http.post("/admin/faults", json={"hung_core": True})
        wait_for(lambda: reason(node) == "core_stuck", "the hang to be noticed")
        node.http.post("/admin/faults", json={"hung_core": None})
        node.wait_ready()
        assert node.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200


def test_wrong_numbers_take_the_node_out_until_they_are_right(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--golden-interval", "0")) as node:
        deep(node)
        wait_for(lambda: node.metric("engine_golden_runs_total", result="passed") >= 2, "a second right answer")
        assert reason(node) == "ready"
        for name in ("iteration_tokens_total_count", "generation_tokens_total", "prefix_cache_queries_total"):
            assert node.metric(f"vllm:{name}") == 0, "the node's own prompts are in no count"
        node.http.post("/admin/faults", json={"wrong_numbers": True})
        assert reason(node) == "ready", "nobody has looked yet"
        wait_for(lambda: deep(node)["reason"] == "wrong_output", "the wrong answer")
        answer = node.http.get("/health/ready")
        assert answer.status_code == 503
        assert "expected" in answer.json()["detail"]
        assert node.metric("engine_golden_ok") == 0
        assert node.http.post("/v1/completions", json={"prompt": "x"}).headers["X-Fleet-Refused"] == "not_ready"
        node.http.post("/admin/faults", json={"wrong_numbers": None})
        node.wait_ready()  # without anybody asking for deep health
        assert node.metric("engine_golden_ok") == 1


def test_users_come_before_the_golden_prompt(tmp_path: Path) -> None:
    args = ("--golden-interval", "0", "--max-num-seqs", "1", "--max-num-batched-tokens", "64")
    with start_node(tmp_path, extra_args=args) as node:
        node.http.post("/admin/faults", json={"slow_steps": 1000})  # the golden prompt takes a quarter of a minute
        begin_long_request(node)
        runs = node.metric("engine_golden_runs_total", result="passed")
        assert deep(node)["golden"]["running"] is True
        with ThreadPoolExecutor(1) as pool:
            body = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}
            asked = pool.submit(node.http.post, "/v1/completions", json=body)
            wait_for(lambda: node.metric("vllm:num_requests_waiting") == 1, "the user's request to wait")
            node.http.post("/admin/abort", json={"request_ids": ["long"]})
            assert asked.result().status_code == 200, "it came later and was served first"
        assert node.metric("engine_golden_runs_total", result="passed") == runs
        node.full_speed()
        wait_for(lambda: node.metric("engine_golden_runs_total", result="passed") > runs, "its turn")


def test_the_real_model_answers_its_golden_prompt_again(tmp_path: Path) -> None:
    golden = tmp_path / "golden.json"
    args = ("--golden-interval", "0", "--golden-file", str(golden), "--num-kv-blocks", "64")
    for _ in range(2):
        with start_node(tmp_path, runner="torch", extra_args=args) as node:
            deep(node)
            wait_for(lambda node=node: node.metric("engine_golden_runs_total", result="passed") >= 2, "another answer")
            assert reason(node) == "ready"
    assert golden.is_file()


def test_a_bad_golden_file_is_one_line(tmp_path: Path) -> None:
    golden = tmp_path / "golden.json"
    golden.write_text("nonsense")
    command = [sys.executable, "-m", "engine", "serve", "--model", str(tiny_model_dir()), "--golden-file", str(golden)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --golden-file {golden}: ")
    assert done.stderr.count("\n") == 1
