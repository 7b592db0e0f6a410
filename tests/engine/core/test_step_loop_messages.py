"""What the core does with each message, what it says of each step, and what it says of itself meanwhile."""

from __future__ import annotations

import queue
from dataclasses import replace
from typing import Any

import pytest

from engine.core.fake_runner import FakeCost, FakeRunner, generate
from engine.core.runner import Slept
from engine.core.scheduler import Scheduler
from engine.core.step_loop import MAX_FAILED_STEPS, GoldenError, StepLoop
from engine.protocol.clock import ManualClock
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.frames import ConnectionClosed
from engine.protocol.golden_prompt import golden_sequence
from engine.protocol.heartbeat import CoreState, Heartbeat
from engine.protocol.messages import (
    AbortSequence,
    BlocksHeld,
    BlockUse,
    CoreAsleep,
    CoreAwake,
    CoreFailed,
    CoreIdle,
    CountBlocks,
    FromCore,
    ListBlocks,
    ResetPrefixCache,
    SetFaults,
    SetLimits,
    Shutdown,
    Sleep,
    StepKind,
    StepReport,
    WakeUp,
)
from tests.fixtures.core import VOCAB_SIZE, make_config, make_request
from tests.fixtures.step_loop import STEP_S, Desk

Events = list[dict[str, Any]]


def named(events: Events, name: str) -> Events:
    return [event for event in events if event["event"] == name]


class WatchedInbox:
    """An inbox that never waits, and keeps how long it was asked to wait and whether there was work then."""

    def __init__(self, *messages: object) -> None:
        self.messages = list(messages)
        self.while_blocked: list[object] = []  # come one by one to who waits without a limit
        self.waits: list[float] = []

    def put(self, message: object) -> None:
        self.messages.append(message)

    def get(self, timeout: float | None = None) -> object:
        if timeout is None:
            return self.while_blocked.pop(0)
        self.waits.append(timeout)
        return self.get_nowait()

    def get_nowait(self) -> object:
        if not self.messages:
            raise queue.Empty
        return self.messages.pop(0)


def make_loop(inbox: WatchedInbox, published: list[FromCore], **options: bool) -> StepLoop:
    """With every default; it ends after its second idle report."""
    clock = ManualClock()
    runner = FakeRunner(vocab_size=VOCAB_SIZE, clock=clock, cost=FakeCost(STEP_S, 0.0, 0.0, 0.0))

    def publish(message: FromCore) -> None:
        published.append(message)
        if sum(isinstance(m, CoreIdle) for m in published) == 2:
            inbox.put(Shutdown())

    return StepLoop(Scheduler(make_config()), runner, inbox, publish, clock, **options)  # type: ignore[arg-type]


# --- reports ---


def test_a_report_tells_the_step_and_the_queues_after_it() -> None:
    desk = Desk(max_num_seqs=1)
    desk.run(make_request("a", 9, max_tokens=2), make_request("b", 5, max_tokens=1))
    first, second, third = desk.reports
    assert first == StepReport(
        step_id=1,
        kind=StepKind.PREFILL,
        finished_at=STEP_S,
        seconds=STEP_S,
        num_tokens=9,
        num_seqs=1,
        updates=first.updates,
        running=1,
        waiting=1,
        kv_blocks_used=3,
        kv_blocks_total=64,
        prefix_queries_tokens=9,
    )
    assert (second.step_id, second.kind, second.running, second.waiting) == (2, StepKind.DECODE, 0, 1)
    assert (third.step_id, third.kind, third.num_tokens, third.finished_at) == (3, StepKind.PREFILL, 5, 3 * STEP_S)
    assert [update.seq_id for update in first.updates] == ["a"]


def test_a_report_tells_prefix_hits_and_leaves_probes_out() -> None:
    desk = Desk()
    desk.replies = {1: make_request("b", [*range(8), 50], max_tokens=1)}
    desk.run(make_request("a", range(9), max_tokens=1), golden_sequence(VOCAB_SIZE, 30, 0.0))
    assert (desk.reports[0].num_tokens, desk.reports[0].num_seqs) == (9, 2)
    hits = [(r.prefix_queries_tokens, r.prefix_hits_tokens) for r in desk.reports if r.prefix_queries_tokens]
    assert hits == [(9, 0), (9, 8)]


def test_preemptions_are_reported_and_logged(log_events: Events) -> None:
    desk = Desk(num_blocks=12, max_model_len=40, prefix_caching=False)
    desk.run(*(make_request(name, 10, max_tokens=20) for name in "abc"))
    (event, *_) = named(log_events, "sequence.preempted")
    report = next(r for r in desk.reports if r.preemptions)
    assert (report.preemptions, report.preempted_tokens) == (1, event["lost_tokens"])
    assert (event["how"], event["num_blocks"], event["lost_tokens"] > 0) == ("recompute", 4, True)


def test_slowness_is_told_once_steps_of_such_a_size_are_known() -> None:
    desk = Desk()
    desk.run(make_request("a", 4, max_tokens=90))
    ratios = [r.slowness_ratio for r in desk.reports]
    assert ratios[:60] == [None] * 60
    assert ratios[-1] == pytest.approx(1.0, rel=0.2)


def test_slowness_is_not_told_of_failed_steps_nor_of_none() -> None:
    desk = Desk(*[None] * 80, RuntimeError("boom"))
    desk.run(make_request("a", 4, max_tokens=90))
    assert desk.reports[-2].slowness_ratio is not None
    assert (desk.reports[-1].failed_steps, desk.reports[-1].slowness_ratio) == (1, None)
    desk = Desk()
    desk.replies = {80: AbortSequence("a", "moved")}
    desk.run(make_request("a", 4, max_tokens=90))
    assert (desk.reports[-1].kind, desk.reports[-1].slowness_ratio) == (StepKind.NONE, None)


def test_the_end_of_an_aborted_sequence_comes_before_the_steps_news() -> None:
    desk = Desk()
    desk.replies = {1: AbortSequence("a", "moved")}
    desk.run(make_request("a", max_tokens=9), make_request("b", max_tokens=2))
    assert [(u.seq_id, u.finish_reason) for u in desk.reports[1].updates] == [("a", "abort"), ("b", "length")]


def test_an_end_is_logged_once_with_its_step(log_events: Events) -> None:
    desk = Desk(RuntimeError("boom"))
    desk.run(make_request("a"))
    (event,) = named(log_events, "sequence.finished")
    assert (event["finish_reason"], event["step_id"]) == ("error", 1)
    assert event["error"] == "the step failed: RuntimeError: boom"


# --- heartbeats ---


def test_heartbeats_say_what_is_being_done() -> None:
    desk = Desk()
    desk.run(make_request("a", 6, max_tokens=2), make_request("b", 4, max_tokens=1))
    written = [heartbeat for heartbeat in desk.heartbeats.written if heartbeat.state is not CoreState.IDLE]
    assert written == [
        Heartbeat(0.0, CoreState.STEP, 1, None, num_seqs=2, num_tokens=10, context_tokens=10),
        Heartbeat(STEP_S, CoreState.BETWEEN_STEPS, 1),
        Heartbeat(STEP_S, CoreState.STEP, 2, None, num_seqs=1, num_tokens=1, context_tokens=7),
    ]
    assert desk.heartbeats.written[0] == Heartbeat(0.0, CoreState.IDLE, 0)
    assert desk.heartbeats.written[-1] == Heartbeat(2 * STEP_S, CoreState.IDLE, 2)


def test_heartbeats_predict_a_step_from_those_before() -> None:
    desk = Desk()
    desk.run(make_request("a", 4, max_tokens=30))
    predicted = [heartbeat.predicted_s for heartbeat in desk.heartbeats.written if heartbeat.state is CoreState.STEP]
    assert predicted[-1] == pytest.approx(STEP_S, rel=0.2)


# --- idle ---


def test_books_are_checked_at_each_idle_report_after_a_change_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.max_idle = 5
    checks: list[int] = []
    check = desk.scheduler.check_integrity
    monkeypatch.setattr(desk.scheduler, "check_integrity", lambda: (checks.append(desk.num_idle), check())[1])
    desk.replies = {2: make_request("a", 6, max_tokens=1)}
    desk.run()
    assert checks == [0, 2]


def test_an_integrity_error_is_told_until_the_core_ends(log_events: Events) -> None:
    desk = Desk()
    desk.max_idle = 3
    assert desk.scheduler.pool.allocate(1)
    desk.run()
    errors = [message.integrity_error for message in desk.published if isinstance(message, CoreIdle)]
    assert errors[0] is not None
    assert errors == [errors[0]] * 3
    assert len(named(log_events, "core.integrity_failed")) == 1
    assert desk.published[-1] == CoreIdle(0.0, 0, 64, errors[0])


# --- messages ---


def test_new_limits_hold_from_the_next_step_on(log_events: Events) -> None:
    desk = Desk()
    desk.replies = {1: SetLimits(max_num_seqs=2, max_num_batched_tokens=20, prefill_chunk_tokens=8)}
    desk.run(make_request("a", 40, max_tokens=1))
    assert [r.num_tokens for r in desk.reports] == [16, 8, 8, 8]
    assert desk.scheduler.config.max_num_seqs == 2
    (event,) = named(log_events, "limits.set")
    assert (event["max_num_batched_tokens"], event["prefill_chunk_tokens"]) == (20, 8)


def test_contradicting_limits_change_nothing(log_events: Events) -> None:
    desk = Desk()
    before = desk.scheduler.config
    desk.run(SetLimits(max_num_seqs=9, max_num_batched_tokens=8, prefill_chunk_tokens=8))
    assert desk.scheduler.config == before
    assert "max_num_batched_tokens" in named(log_events, "limits.refused")[0]["reason"]
    assert not named(log_events, "limits.set")


def test_a_reset_empties_the_prefix_cache(log_events: Events) -> None:
    desk = Desk()
    desk.replies = {1: ResetPrefixCache()}
    desk.run(make_request("a", 12, max_tokens=1))
    assert desk.scheduler.pool.num_cached == 0
    assert named(log_events, "prefix_cache.reset")


def test_blocks_are_listed_by_sequence() -> None:
    desk = Desk()
    desk.replies = {1: ListBlocks(7)}
    desk.run(make_request("a", 9, max_tokens=2), make_request("b", 4, max_tokens=2))
    assert BlocksHeld(7, {"a": 3, "b": 1}) in desk.published


def test_what_the_blocks_are_used_for_is_told() -> None:
    desk = Desk()
    desk.replies = {1: CountBlocks(8)}
    desk.run(make_request("a", 9, max_tokens=2), make_request("b", 4, max_tokens=2))
    (told,) = [one for one in desk.published if isinstance(one, BlockUse)]
    pool = desk.scheduler.pool
    assert (told.number, told.num_blocks, told.block_size) == (8, pool.num_blocks, pool.block_size)
    assert (told.num_held, told.num_shared, told.num_kept) == (4, 0, 0)


def test_an_abort_is_logged_with_its_reason_and_that_of_nobody_is_not(log_events: Events) -> None:
    desk = Desk()
    desk.replies = {1: AbortSequence("a", "deadline")}
    desk.run(make_request("a", max_tokens=50), AbortSequence("unknown", "client_gone"))
    events = [event for event in log_events if event["event"].endswith(".aborted")]
    assert [(event["seq_id"], event["reason"]) for event in events] == [("a", "deadline")]


def test_a_refusal_is_logged_with_its_kind(log_events: Events) -> None:
    desk = Desk()
    desk.run(make_request("a", 500))
    (event,) = named(log_events, "sequence.refused")
    assert (event["kind"], "can never fit" in event["reason"]) == ("refused", True)


def test_a_sequence_that_was_complete_elsewhere_is_told_at_once() -> None:
    desk = Desk()
    desk.run(make_request("a", output=[5, 6], max_tokens=2))
    (report,) = desk.reports
    assert (report.kind, report.step_id, report.seconds) == (StepKind.NONE, 0, 0.0)
    assert desk.ends["a"].finish_reason == "length"


def test_messages_after_a_shutdown_are_left_alone() -> None:
    desk = Desk()
    assert desk.run(Shutdown(), make_request("a")) == 0
    assert desk.published == []
    assert not desk.scheduler.has_work


def test_a_lost_connection_says_why(log_events: Events) -> None:
    assert Desk().run(ConnectionClosed("reset by peer")) == 0
    assert named(log_events, "core.orphaned")[0]["reason"] == "reset by peer"


# --- sleep ---


def test_a_core_that_serves_does_not_fall_asleep() -> None:
    desk = Desk()
    desk.replies = {1: Sleep()}
    desk.run(make_request("a", max_tokens=3))
    (answer,) = [m for m in desk.published if isinstance(m, CoreAsleep)]
    assert answer.problem == "requests are being served"
    assert desk.ends["a"].finish_reason == "length"


def test_a_core_asleep_has_no_cache_and_refuses_sequences() -> None:
    desk = Desk()
    desk.runner.sleep = lambda: Slept(freed_kv_bytes=77, weights="offloaded")  # type: ignore[method-assign]
    desk.replies = {1: Sleep(), 2: make_request("b")}
    desk.run(make_request("a", 12, max_tokens=1))
    assert CoreAsleep("offloaded", 77) in desk.published
    assert desk.scheduler.pool.num_cached == 0
    assert desk.ends["b"].failure == SequenceFailure(FailureKind.ASLEEP, "the core is asleep")


def test_a_core_wakes_with_the_golden_answer_and_serves_again(log_events: Events) -> None:
    desk = Desk(vocab_size=VOCAB_SIZE)
    woken: list[str] = []
    desk.runner.wake = lambda: woken.append("yes")  # type: ignore[method-assign]
    desk.replies = {1: WakeUp(), 2: make_request("a", max_tokens=1)}
    desk.run(Sleep())
    golden = golden_sequence(VOCAB_SIZE, 200, 0.0)
    awake = desk.published[1]
    assert isinstance(awake, CoreAwake)
    expected = generate(golden.prompt_token_ids, golden.sampling, VOCAB_SIZE)
    assert list(awake.golden.token_ids) == expected
    assert len(awake.golden.logprobs) == len(expected)
    assert woken == ["yes"]
    assert desk.ends["a"].finish_reason == "length"
    assert named(log_events, "core.woke_up")


def test_waking_a_core_that_is_awake_asks_the_golden_prompt_only() -> None:
    desk = Desk(vocab_size=VOCAB_SIZE)
    desk.runner.wake = lambda: pytest.fail("was awake")  # type: ignore[method-assign]
    desk.run(WakeUp())
    assert isinstance(desk.published[0], CoreAwake)


def test_a_core_without_a_known_vocabulary_is_asked_with_the_first_token() -> None:
    desk = Desk()
    desk.run(WakeUp())
    (awake, *_) = desk.published
    assert isinstance(awake, CoreAwake)
    golden = golden_sequence(1, 200, 0.0)
    assert set(golden.prompt_token_ids) == {0}
    assert list(awake.golden.token_ids) == generate(golden.prompt_token_ids, golden.sampling, VOCAB_SIZE)


def test_a_core_that_can_not_wake_ends() -> None:
    desk = Desk()

    def fail() -> None:
        raise MemoryError("no room")

    desk.runner.wake = fail  # type: ignore[method-assign]
    desk.replies = {1: WakeUp()}
    assert desk.run(Sleep()) == 1
    assert desk.published[-1] == CoreFailed("can't wake up: MemoryError: no room")


# --- warm-up ---


def test_warm_up_answers_and_says_nothing() -> None:
    desk = Desk()
    request = make_request("golden", 6, max_tokens=3, num_logprobs=1)
    answer = desk.loop.warm_up(request)
    assert list(answer.token_ids) == generate(request.prompt_token_ids, request.sampling, VOCAB_SIZE)
    assert len(answer.logprobs) == 3
    assert desk.published == []


def test_warm_up_that_is_refused_or_fails_is_an_error() -> None:
    with pytest.raises(GoldenError, match="refused"):
        Desk().loop.warm_up(make_request("golden", 500))
    desk = Desk()
    run = desk.runner.run_step

    def run_step(plan: Any) -> Any:
        failure = SequenceFailure(FailureKind.NON_FINITE_LOGITS, "NaN")
        return type(result := run(plan))(result.step_id, {}, 0.1, failed={"golden": failure})

    desk.runner.run_step = run_step  # type: ignore[method-assign]
    with pytest.raises(GoldenError, match="failed: NaN"):
        desk.loop.warm_up(make_request("golden", 6))


# --- faults and failures ---


HANG = SetFaults(hung_core=True)


def hung(*after: object) -> tuple[int, list[FromCore]]:
    """What a loop says that hangs at once and gets these messages one by one while it does."""
    published: list[FromCore] = []
    inbox = WatchedInbox(HANG)
    inbox.while_blocked = list(after)
    code = make_loop(inbox, published, enable_faults=True).run_until_shutdown()
    return code, published


def test_a_hung_core_does_nothing_until_the_fault_ends_and_then_all_of_it() -> None:
    messages = [make_request("a", max_tokens=1), make_request("b", max_tokens=1), AbortSequence("b", "moved")]
    code, published = hung(*messages, SetFaults())
    assert code == 0
    updates = [update for m in published if isinstance(m, StepReport) for update in m.updates]
    assert {update.seq_id: update.finish_reason for update in updates} == {"a": "length", "b": "abort"}


@pytest.mark.parametrize("end", [Shutdown(), ConnectionClosed("gone")], ids=["shutdown", "lost connection"])
def test_a_hung_core_ends_when_told(end: Shutdown | ConnectionClosed) -> None:
    assert hung(end) == (0, [CoreIdle(0.0, 0, 64)]), "what it said before it hung"


def test_a_fault_that_is_set_anew_keeps_the_core_hung() -> None:
    code, published = hung(make_request("a", max_tokens=1), HANG, HANG, Shutdown())
    assert code == 0
    assert not [m for m in published if isinstance(m, StepReport) and m.num_tokens]


def test_the_seconds_of_a_failed_step_are_its_own() -> None:
    desk = Desk(None, RuntimeError("boom"))
    desk.run(make_request("a"))
    assert [report.seconds for report in desk.reports] == pytest.approx([STEP_S, 0.0])


@pytest.mark.parametrize(
    ("is_injected", "kind"), [(True, "out_of_memory"), (False, "step_failed")], ids=["drill", "real"]
)
def test_a_failed_step_is_logged_with_its_kind_and_whether_it_was_a_drill(
    log_events: Events, is_injected: bool, kind: str
) -> None:
    desk = Desk(*([] if is_injected else [RuntimeError("boom")]), enable_faults=True)
    desk.run(SetFaults(oom_steps=int(is_injected)), make_request("a"), make_request("b"))
    (event,) = named(log_events, "step.failed")
    assert (event["kind"], event["is_injected"], event["step_id"]) == (kind, is_injected, 1)
    assert event["seq_ids"] == ["a", "b"]
    assert desk.reports[0].out_of_memory == int(is_injected)
    assert desk.reports[0].failed_steps == 1
    assert desk.reports[0].seconds == pytest.approx(0.0)


def test_the_last_failure_of_many_is_the_reason_of_the_end() -> None:
    errors = [RuntimeError(f"boom {i}") for i in range(MAX_FAILED_STEPS)]
    desk = Desk(*errors, max_num_seqs=1)
    assert desk.run(*(make_request(f"r{i}") for i in range(MAX_FAILED_STEPS + 1))) == 1
    last = f"RuntimeError: boom {MAX_FAILED_STEPS - 1}"
    expected = f"{MAX_FAILED_STEPS} steps in a row failed, the last one: the step failed: {last}"
    assert desk.published[-1] == CoreFailed(expected)
    assert [report.failed_steps for report in desk.reports] == [1] * MAX_FAILED_STEPS


def test_seconds_of_a_step_are_those_of_the_clock_not_of_the_runner() -> None:
    desk = Desk(enable_faults=True)
    desk.runner.cost = FakeCost(STEP_S, 0.001, 0.0, 0.0)
    desk.run(SetFaults(slow_steps=3.0), make_request("a", 10, max_tokens=3), make_request("b", 3, max_tokens=9))
    assert desk.scheduler.preemption_cost.step_seconds(4) == pytest.approx(3 * (STEP_S + 0.004), rel=0.01)


# --- waiting ---


def test_a_core_waits_a_second_when_idle_and_never_while_it_has_work() -> None:
    inbox, published = WatchedInbox(make_request("a", max_tokens=20)), list[FromCore]()
    assert make_loop(inbox, published).run_until_shutdown() == 0
    assert inbox.waits == [1.0] * 4  # for the sequence, for two idle reports, for the shutdown
    assert sum(isinstance(message, StepReport) for message in published) == 20


def test_faults_are_off_by_default() -> None:
    published: list[FromCore] = []
    make_loop(WatchedInbox(SetFaults(8.0), make_request("a", max_tokens=1)), published).run_until_shutdown()
    assert next(m for m in published if isinstance(m, StepReport)).seconds == pytest.approx(STEP_S)


def test_news_of_no_step_has_no_tokens_and_no_rows() -> None:
    desk = Desk()
    desk.replies = {1: make_request("b", 500), 2: make_request("c", max_tokens=9), 3: Shutdown()}
    desk.run(make_request("a", 500))
    nothing = [(r.num_tokens, r.num_seqs, r.seconds, r.failed_steps) for r in desk.reports if r.kind is StepKind.NONE]
    assert nothing == [(0, 0, 0.0, 0)] * 3
    assert desk.ends["c"].finish_reason == "abort"


def test_warm_up_is_measured_by_the_clock_too() -> None:
    desk = Desk()
    desk.runner.cost = FakeCost(STEP_S, 0.001, 0.0, 0.0)
    run = desk.runner.run_step
    desk.runner.run_step = lambda plan: replace(run(plan), seconds=99.0)  # type: ignore[method-assign]
    desk.loop.warm_up(make_request("golden", 10, max_tokens=3))
    assert desk.scheduler.preemption_cost.step_seconds(4) == pytest.approx(STEP_S + 0.004, rel=0.01)
