"""A core that hangs for good is killed and started again by its node."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from engine.node.core_link import CoreLink, end_of
from engine.node.health import CorePhase, Reason
from engine.node.metrics import NodeMetrics
from engine.protocol.core_config import CoreConfig
from engine.protocol.messages import CoreAwake, CoreIdle, CoreReady, StepReport
from tests.fixtures.engine import EngineNode, read_stream, start_node, wait_for

LONG = {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}


def test_a_stopped_core_is_killed_and_its_requests_end_with_an_error(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--stuck-core-kill-after", "1")) as node:
        core = node.core_pid()

        def stop(count: int) -> None:
            if count == 3:
                os.kill(core, signal.SIGSTOP)

        answer = read_stream(node, "/v1/completions", LONG, on_chunk=stop)
        assert answer.error is not None, "not a silent cut"
        assert answer.error["code"] == "core_dead"
        assert "no progress for more than 1 s" in answer.error["message"]
        assert not answer.is_done
        node.wait_ready()
        assert node.core_pid() != core
        assert node.metric("engine_core_restarts_total") == 1
        changes = [event["reason"] for event in node.events("node.health_changed")]
        assert changes[-3:] == ["core_stuck", "core_dead", "ready"]
        again = node.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3, "ignore_eos": True})
        assert again.json()["usage"]["completion_tokens"] == 3
        wait_for(lambda: len(node.events("core.stuck_killed")) == 1, "the log to say why")


class Listener:
    """Nobody is told of anything."""

    def on_ready(self, message: CoreReady) -> None: ...

    def on_awake(self, message: CoreAwake) -> None: ...

    def on_step(self, report: StepReport) -> None: ...

    def on_idle(self, message: CoreIdle) -> None: ...

    def on_core_lost(self, reason: str) -> None: ...


@pytest.mark.parametrize(
    ("after_s", "stuck_for_s", "is_killed"), [(60.0, 59.0, False), (60.0, 61.0, True), (0.0, 1e6, False)]
)
def test_only_a_core_that_was_stuck_long_enough_is_killed(
    monkeypatch: pytest.MonkeyPatch, after_s: float, stuck_for_s: float, is_killed: bool
) -> None:
    link = CoreLink(CoreConfig(model_dir="."), NodeMetrics(model_name="m", max_model_len=10), Listener())
    link.phase = CorePhase.UP
    killed: list[bool] = []
    monkeypatch.setattr(link, "kill", lambda: killed.append(True))
    monkeypatch.setattr("engine.node.core_link.is_stuck", lambda heartbeat, **_: True)
    now = time.monotonic()
    assert link.judge(takes_work=True, output_is_wrong=False, now=now) is Reason.CORE_STUCK
    link.judge(takes_work=True, output_is_wrong=False, now=now + stuck_for_s)
    link.kill_if_stuck(after_s, now + stuck_for_s)
    assert bool(killed) == is_killed


def test_a_core_that_recovered_starts_a_new_count(monkeypatch: pytest.MonkeyPatch) -> None:
    link = CoreLink(CoreConfig(model_dir="."), NodeMetrics(model_name="m", max_model_len=10), Listener())
    link.phase = CorePhase.UP
    killed: list[bool] = []
    monkeypatch.setattr(link, "kill", lambda: killed.append(True))
    for at, stuck in ((0.0, True), (50.0, False), (51.0, True), (100.0, True)):
        monkeypatch.setattr("engine.node.core_link.is_stuck", lambda heartbeat, stuck=stuck, **_: stuck)
        link.judge(takes_work=True, output_is_wrong=False, now=1000.0 + at)
        link.kill_if_stuck(60.0, 1000.0 + at)
    assert killed == []


def ready_link() -> CoreLink:
    """One whose first core came up after a second."""
    link = CoreLink(CoreConfig(model_dir="."), NodeMetrics(model_name="m", max_model_len=10), Listener())
    link._starting_since = time.monotonic() - 20.0
    link._hear(CoreReady(100, 16, 1024, "cpu", "float32", 0.0, 0.0))
    return link


@pytest.mark.parametrize(("started_s_ago", "is_killed"), [(90.0, False), (110.0, True)])
def test_a_core_that_hangs_while_it_is_started_again_is_killed(
    monkeypatch: pytest.MonkeyPatch, started_s_ago: float, is_killed: bool
) -> None:
    link, killed, now = ready_link(), [], time.monotonic()
    monkeypatch.setattr(link, "kill", lambda: killed.append(True))
    link._lose("gone")
    link._awake.since = link._starting_since = now - started_s_ago
    report = link.restart_report(now)
    assert (report["state"], report["failed_starts"]) == ("starting", 1)
    assert report["for_s"] == pytest.approx(started_s_ago)
    assert 100.0 <= float(str(report["start_limit_s"])) < 101.0, "five times the slowest start"
    link.kill_if_start_hangs(now)
    assert bool(killed) == is_killed


def test_the_first_start_and_a_judge_that_was_stopped_kill_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    first = CoreLink(CoreConfig(model_dir="."), NodeMetrics(model_name="m", max_model_len=10), Listener())
    again, now = ready_link(), time.monotonic()
    for link in (first, again):
        monkeypatch.setattr(link, "kill", lambda: pytest.fail("killed"))
        link._starting_since = now - 10_000.0
        link._awake.since = now - 1.0
        link.kill_if_start_hangs(now)


@pytest.mark.parametrize(
    ("code", "words"),
    [(-9, r"signal 9 \(SIGKILL\): often the kernel's OOM killer"), (-11, r"signal 11 \(SIGSEGV\)$"), (3, "code 3")],
)
def test_a_core_that_ended_without_a_word_is_told_by_its_end(code: int, words: str) -> None:
    assert re.search(words, end_of(code))


def test_a_killed_core_is_told_with_its_signal_and_a_hung_start_after_it_is_seen(tmp_path: Path) -> None:
    with start_node(tmp_path) as node:
        first = node.core_pid()
        os.kill(first, signal.SIGKILL)
        health = wait_for(lambda: _dead(node), "the node to say core_dead")
        assert "killed by signal 9 (SIGKILL): often the kernel's OOM killer" in health["detail"]
        assert health["restart"]["state"] in ("backing_off", "starting")
        wait_for(lambda: node.core_pid() != first, "another core")
        os.kill(node.core_pid(), signal.SIGSTOP)
        health = wait_for(lambda: _dead(node), "the core that hangs to be told")
        assert (health["restart"]["state"], health["restart"]["failed_starts"]) == ("starting", 1)
        assert health["restart"]["start_limit_s"] >= 60.0
        os.kill(node.core_pid(), signal.SIGCONT)
        node.wait_ready()


def _dead(node: EngineNode) -> dict[str, Any] | None:
    health = node.http.get("/health/ready").json()
    return health if health["reason"] == "core_dead" else None
