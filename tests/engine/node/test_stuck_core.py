"""A core that hangs for good is killed and started again by its node."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from engine.node.core_link import CoreLink, end_of
from engine.node.core_starts import CoreStarts
from engine.node.health import CorePhase, Reason
from engine.node.metrics import NodeMetrics
from engine.protocol.core_config import CoreConfig
from engine.protocol.messages import CoreAwake, CoreIdle, CoreReady, StepReport
from tests.fixtures.engine import CoreGate, EngineNode, Streamed, read_stream, start_node, wait_for

LONG = {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}


def test_a_stopped_core_is_killed_and_its_requests_end_with_an_error(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--stuck-core-kill-after", "1")) as node:
        node.http.post("/admin/faults", json={"slow_steps": 20})
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


def test_a_drain_moves_what_a_stopped_core_holds(tmp_path: Path) -> None:
    """The node has every token that it told, and the rest is drawn again elsewhere."""
    with start_node(tmp_path) as node, node.slowed(20):
        core = node.core_pid()

        def stop(count: int) -> None:
            if count == 3:
                os.kill(core, signal.SIGSTOP)
                node.drain(0)

        answer = read_stream(node, "/v1/completions", LONG, headers={"X-Fleet-Handoff": "accept"}, on_chunk=stop)
        assert answer.handoff is not None
        (choice,) = answer.handoff["state"]["choices"]
        assert len(choice["output_token_ids"]) >= 3
        receipt = node.wait_drained()["receipt"]
        assert (receipt["moved"], receipt["aborted"]) == (1, 0)
        os.kill(core, signal.SIGCONT)
        node.http.post("/admin/resume")
        node.wait_ready()
        assert read_stream(node, "/internal/continue", answer.handoff | {"state": shortened(answer)}).is_done


def shortened(answer: Streamed) -> dict[str, Any]:
    """The state that was handed off, with less left to do."""
    assert answer.handoff is not None
    state: dict[str, Any] = answer.handoff["state"]
    (choice,) = state["choices"]
    state["ask"]["sampling"]["max_tokens"] = len(choice["output_token_ids"]) + 5
    return state


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


def ready_starts(first_start_s: float = 20.0) -> CoreStarts:
    """Of a node whose first core was ready at 100."""
    starts = CoreStarts()
    starts.begin(100.0 - first_start_s)
    starts.note_ready(100.0)
    return starts


@pytest.mark.parametrize(("first_start_s", "limit_s"), [(20.0, 100.0), (2.0, 60.0)])
def test_a_start_after_the_first_may_take_a_multiple_of_the_slowest(first_start_s: float, limit_s: float) -> None:
    starts = ready_starts(first_start_s)
    assert starts.note_lost(110.0) == 1.0
    assert starts.report(110.5) == {
        "state": "backing_off",
        "next_start_in_s": 0.5,
        "deaths_in_a_row": 1,
        "start_limit_s": limit_s,
    }
    starts.begin(111.0)
    assert starts.report(121.0)["for_s"] == 10.0
    assert not starts.is_late(111.0 + limit_s, awake_since=0.0)
    assert starts.is_late(111.5 + limit_s, awake_since=0.0)
    assert not starts.is_late(1e6, awake_since=1e6 - 1.0), "its judge was stopped as well"


def test_the_first_start_has_no_limit() -> None:
    starts = CoreStarts()
    starts.begin(0.0)
    assert not starts.is_late(1e6, awake_since=0.0)


def test_the_back_off_grows_until_a_core_was_ready_for_a_while() -> None:
    starts, now = ready_starts(), 110.0
    waits = []
    for _ in range(7):
        waits.append(starts.note_lost(now))
        starts.begin(now := now + 500.0)  # a start that hangs for long is no steady core
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert starts.report(now)["deaths_in_a_row"] == 7
    starts.note_ready(now)
    assert starts.note_lost(now + 61.0) == 1.0


def test_a_core_that_hangs_while_it_is_started_again_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    link = CoreLink(CoreConfig(model_dir="."), NodeMetrics(model_name="m", max_model_len=10), Listener())
    killed: list[bool] = []
    monkeypatch.setattr(link, "kill", lambda: killed.append(True))
    now = time.monotonic()
    link.starts.begin(now - 500.0)
    link.kill_if_start_hangs(now)
    assert not killed
    link._hear(CoreReady(100, 16, 1024, "cpu", "float32", 0.0, 0.0))
    link.starts.begin(now)
    link.kill_if_start_hangs(now + 10_000.0)
    assert killed


@pytest.mark.parametrize(
    ("code", "words"),
    [(-9, r"signal 9 \(SIGKILL\): often the kernel's OOM killer"), (-11, r"signal 11 \(SIGSEGV\)$"), (3, "code 3")],
)
def test_a_core_that_ended_without_a_word_is_told_by_its_end(code: int, words: str) -> None:
    assert re.search(words, end_of(code))


def test_a_killed_core_is_told_with_its_signal_and_a_hung_start_after_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = CoreGate(tmp_path / "gate", monkeypatch)
    with start_node(tmp_path) as node:
        gate.close()
        first = node.core_pid()
        os.kill(first, signal.SIGKILL)
        health = wait_for(lambda: _dead(node), "the node to say core_dead")
        assert "killed by signal 9 (SIGKILL): often the kernel's OOM killer" in health["detail"]
        assert health["restart"]["state"] in ("backing_off", "starting")
        wait_for(lambda: node.core_pid() != first, "another core")
        health = wait_for(lambda: _dead(node), "the core that hangs to be told")
        assert (health["restart"]["state"], health["restart"]["deaths_in_a_row"]) == ("starting", 1)
        assert health["restart"]["start_limit_s"] >= 60.0
        gate.open()
        node.wait_ready()


def _dead(node: EngineNode) -> dict[str, Any] | None:
    health = node.http.get("/health/ready").json()
    return health if health["reason"] == "core_dead" else None
