"""The judgement of silent nodes: on a clock of its own, with probes answered by the test."""

from __future__ import annotations

import asyncio

import pytest

from fleetctl.gateway.nodes.loads import Loads
from fleetctl.gateway.nodes.node_watch import (
    DEADLINE_MARGIN_S,
    STALL_S,
    SUSPECT_AFTER_S,
    SWEEP_S,
    NodeWatch,
    ProbeAnswer,
    Wait,
    WaitEnd,
)
from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.wire.routing import RouteState

pytestmark = pytest.mark.anyio

LIMITS = GatewaySettings()
A, B = (Endpoint(name, f"http://{name}", RouteState.ACTIVE, "default", "m") for name in "ab")


class Rig:
    """A watch whose probes are answered by `answers` (by node; None: not at all) as soon as they are asked."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.loads = Loads(clock=lambda: self.now)
        self.answers: dict[str, ProbeAnswer | None] = {}
        self.held: set[str] = set()  # nodes whose probes stay open until `released`
        self.released = asyncio.Event()
        self.asked: list[str] = []
        self.counted: list[bool] = []
        self.watch = NodeWatch(self.loads, LIMITS, self._probe, on_probe=self.counted.append, clock=lambda: self.now)

    async def _probe(self, endpoint: Endpoint) -> ProbeAnswer | None:
        self.asked.append(endpoint.node)
        if endpoint.node in self.held:
            await self.released.wait()
        return self.answers.get(endpoint.node, ProbeAnswer("ready"))

    async def pass_time(self, seconds: float) -> None:
        """Sweep as the loop does, until so much time has passed."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now = min(until, self.now + SWEEP_S)
            self.watch.sweep()
            await asyncio.sleep(0)
            await asyncio.sleep(0)


def noticed_within_s() -> float:
    """Of silence, when probes fail at once; an unanswered one adds its limit."""
    return LIMITS.probe_after_s + 4 * SWEEP_S


async def test_a_node_that_answers_probes_may_be_silent_as_long_as_a_long_prompt_takes() -> None:
    rig = Rig()
    wait = rig.watch.begin(A)
    await rig.pass_time(600)
    assert wait.end is None
    assert len(rig.asked) > 100
    assert rig.watch.why_out(A) is None
    assert rig.watch.oldest_waits_s() == {"a": 600.0}


async def test_a_node_that_does_not_answer_loses_what_waits_there_and_nobody_else_does() -> None:
    rig = Rig()
    rig.answers["a"] = None
    at_a, at_b = rig.watch.begin(A), rig.watch.begin(B)
    await rig.pass_time(LIMITS.probe_after_s)
    assert (rig.asked, at_a.end) == ([], None)
    await rig.pass_time(noticed_within_s() - LIMITS.probe_after_s)
    assert (at_a.end, at_b.end) == (WaitEnd.NODE_SILENT, None)
    assert (rig.watch.why_out(A), rig.watch.why_out(B)) == (WaitEnd.NODE_SILENT, None)
    assert rig.watch.silent_nodes() == {"a": WaitEnd.NODE_SILENT}
    assert rig.counted.count(False) >= LIMITS.probe_failures


async def test_one_failed_probe_is_chance() -> None:
    rig = Rig()
    rig.answers["a"] = None
    wait = rig.watch.begin(A)
    while not rig.counted:
        await rig.pass_time(SWEEP_S)
    rig.answers["a"] = ProbeAnswer("ready")
    await rig.pass_time(60)
    assert (wait.end, rig.watch.why_out(A)) == (None, None)


async def test_what_any_request_hears_of_a_node_speaks_for_the_node() -> None:
    rig = Rig()
    waiting, streaming = rig.watch.begin(A), rig.watch.begin(A)
    streaming.has_forwarded = True
    for _ in range(40):
        await rig.pass_time(0.5)
        streaming.note_heard(rig.now)
    assert (rig.asked, waiting.end) == ([], None), "no probe is needed"


async def test_a_silent_node_gets_requests_again_once_it_answers() -> None:
    rig = Rig()
    rig.answers["a"] = None
    rig.watch.finish(await lost_wait(rig))
    await rig.pass_time(30)
    assert rig.watch.why_out(A) is WaitEnd.NODE_SILENT, "though nobody waits for it any more"
    rig.answers["a"] = ProbeAnswer("ready")
    await rig.pass_time(LIMITS.probe_after_s + 2 * SWEEP_S)
    assert rig.watch.why_out(A) is None
    await rig.pass_time(10)
    assert rig.watch.silent_nodes() == {}


async def lost_wait(rig: Rig) -> Wait:
    wait = rig.watch.begin(A)
    await rig.pass_time(noticed_within_s())
    assert wait.end is not None
    return wait


async def test_a_silent_node_that_left_the_table_is_not_asked_for_ever() -> None:
    rig = Rig()
    rig.answers["a"] = None
    rig.watch.finish(await lost_wait(rig))
    rig.watch.keep_only([B])
    await rig.pass_time(5)
    num_asked = len(rig.asked)
    await rig.pass_time(60)
    assert len(rig.asked) == num_asked


async def test_a_node_whose_core_is_stuck_loses_what_was_not_begun_and_keeps_its_streams() -> None:
    rig = Rig()
    rig.answers["a"] = ProbeAnswer("core_stuck")
    waiting, streaming = rig.watch.begin(A), rig.watch.begin(A)
    streaming.has_forwarded = True
    await rig.pass_time(3 * LIMITS.probe_after_s)
    assert (waiting.end, streaming.end) == (WaitEnd.CORE_STUCK, None)
    assert rig.watch.why_out(A) is WaitEnd.CORE_STUCK
    rig.answers["a"] = ProbeAnswer("ready")
    await rig.pass_time(3 * LIMITS.probe_after_s)
    assert rig.watch.why_out(A) is None


@pytest.mark.parametrize("reason", ["draining", "loading", "wrong_output", ""])
async def test_a_node_that_answers_anything_else_keeps_what_it_has(reason: str) -> None:
    rig = Rig()
    rig.answers["a"] = ProbeAnswer(reason)
    wait = rig.watch.begin(A)
    await rig.pass_time(60)
    assert (wait.end, rig.watch.why_out(A)) == (None, None)


async def test_a_stream_outlives_a_short_silence_of_its_node_and_ends_after_a_long_one() -> None:
    rig = Rig()
    rig.answers["a"] = None
    stream = rig.watch.begin(A)
    stream.has_forwarded = True
    await rig.pass_time(LIMITS.stream_silence_limit_s - 1)
    assert (rig.watch.why_out(A), stream.end) == (WaitEnd.NODE_SILENT, None)
    await rig.pass_time(1 + 2 * SWEEP_S)
    assert stream.end is WaitEnd.NODE_SILENT


async def test_limits_end_what_a_node_that_is_well_does_not_go_on_with() -> None:
    rig = Rig()
    waiting, streaming, hurried = rig.watch.begin(A), rig.watch.begin(A), rig.watch.begin(A, rig.now + 7)
    streaming.has_forwarded = True
    await rig.pass_time(7)
    assert hurried.end is None, "the node that has it knows better what to say"
    await rig.pass_time(DEADLINE_MARGIN_S + 2 * SWEEP_S)
    assert hurried.end is WaitEnd.DEADLINE
    await rig.pass_time(LIMITS.stream_idle_limit_s)
    assert (streaming.end, waiting.end) == (WaitEnd.STREAM_IDLE, None)
    await rig.pass_time(LIMITS.first_byte_limit_s)
    assert waiting.end is WaitEnd.FIRST_BYTE_LIMIT
    assert rig.watch.why_out(A) is None


async def test_a_client_that_reads_slowly_is_no_silence_of_the_node() -> None:
    rig = Rig()
    stream = rig.watch.begin(A)
    stream.has_forwarded = stream.is_paused = True
    await rig.pass_time(10 * LIMITS.stream_idle_limit_s)
    assert (stream.end, rig.asked) == (None, [])


async def test_time_in_which_the_gateway_stood_still_counts_for_no_node() -> None:
    rig = Rig()
    rig.held.add("a")
    wait = rig.watch.begin(A)
    await rig.pass_time(LIMITS.probe_after_s + 2 * SWEEP_S)
    assert rig.asked == ["a"]
    rig.answers["a"] = None
    (state,) = rig.watch._states.values()
    state.failures = LIMITS.probe_failures - 1
    rig.now += 100 * STALL_S  # stopped with an open probe, whose limit is over before anything else runs
    rig.released.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (rig.counted, wait.end, rig.watch.why_out(A)) == ([False], None, None)
    rig.watch.sweep()
    assert state.failures == 0
    stream = rig.watch.begin(B)
    stream.has_forwarded = True
    stream.note_heard(rig.now)
    rig.now += 2 * LIMITS.stream_idle_limit_s
    rig.watch.sweep()
    assert stream.end is None


async def test_an_open_probe_turns_new_requests_away_before_it_has_failed() -> None:
    rig = Rig()
    rig.held.add("a")
    rig.watch.begin(A)
    await rig.pass_time(LIMITS.probe_after_s + SUSPECT_AFTER_S + 3 * SWEEP_S)
    assert rig.loads.is_suspect("a")
    assert rig.watch.why_out(A) is None


async def test_a_client_that_leaves_had_reason_to_when_its_node_says_nothing_any_more() -> None:
    rig = Rig()
    wait = rig.watch.begin(A)
    assert rig.watch.trouble_of(wait) is None
    await rig.pass_time(60)
    assert rig.watch.trouble_of(wait) is None, "a long prompt"
    rig.held.add("a")
    await rig.pass_time(2 * LIMITS.probe_after_s + SUSPECT_AFTER_S)
    assert rig.watch.trouble_of(wait) is WaitEnd.NODE_SILENT
    (state,) = rig.watch._states.values()
    for _ in range(LIMITS.probe_failures):
        rig.watch.note_probe(state, None)
    assert rig.watch.trouble_of(wait) is WaitEnd.NODE_SILENT


async def test_an_ended_wait_ends_what_is_awaited_also_when_it_ends_between_two_reads() -> None:
    rig = Rig()
    wait = rig.watch.begin(A)

    async def read() -> None:
        with wait:
            await asyncio.Event().wait()

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    wait.stop(WaitEnd.NODE_SILENT)
    wait.stop(WaitEnd.STREAM_IDLE)
    with pytest.raises(TimeoutError):
        await task
    assert wait.end is WaitEnd.NODE_SILENT, "the first reason stands"
    with pytest.raises(TimeoutError):
        await read()


async def test_a_stream_whose_piece_is_late_by_its_own_pace_has_its_node_asked_sooner_and_once() -> None:
    rig = Rig()
    wait = rig.watch.begin(A)
    wait.has_forwarded = True
    for _ in range(20):
        rig.now += 0.02
        wait.note_heard(rig.now)
    await rig.pass_time(0.5)
    assert rig.asked == []
    await rig.pass_time(2 * SWEEP_S)
    assert rig.asked == ["a"], "twenty-five pieces late, and long before the limit for all"
    await rig.pass_time(LIMITS.probe_after_s - SWEEP_S)
    assert rig.asked == ["a"]


async def test_a_slow_streams_pieces_may_be_as_far_apart_as_they_are() -> None:
    rig = Rig()
    wait = rig.watch.begin(A)
    wait.has_forwarded = True
    for _ in range(5):
        await rig.pass_time(1.25)
        wait.note_heard(rig.now)
    assert rig.asked == []
