"""A core that hangs for good is killed and started again by its node."""

import os
import signal
import time
from pathlib import Path

import pytest

from engine.node.core_link import CoreLink
from engine.node.health import CorePhase, Reason
from engine.node.metrics import NodeMetrics
from engine.protocol.core_config import CoreConfig
from engine.protocol.messages import CoreAwake, CoreIdle, CoreReady, StepReport
from tests.fixtures.engine import read_stream, start_node, wait_for

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
