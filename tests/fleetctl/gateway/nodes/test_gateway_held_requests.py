"""Requests that get lost inside a node that is well: when it is asked for them, and what its word means."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from fleetctl.gateway.nodes import node_watch
from fleetctl.gateway.nodes.held_requests import LATE_FACTOR, SLOW_TOKEN_S, late_after_s
from fleetctl.gateway.nodes.loads import Loads
from fleetctl.gateway.nodes.node_watch import HELD_AGAIN_S, HELD_PAUSE_S, SWEEP_S, NodeWatch, ProbeAnswer, WaitEnd
from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.wire.routing import RouteState
from tests.fixtures.gateway import Served, chat_text, small_fleet, until

pytestmark = pytest.mark.anyio

LIMITS = GatewaySettings()
A = Endpoint("a", "http://a", RouteState.ACTIVE, "default", "m", engine="fleetctl")
LATE_S = 100.0


class Rig:
    """A watch on a clock of its own, and a node that is well and says of each question what `held` is."""

    def __init__(self, held: frozenset[str] | None) -> None:
        self.now = 1000.0
        self.held = held
        self.num_asked = 0
        self.watch = NodeWatch(
            Loads(clock=lambda: self.now), LIMITS, self._probe, ask_held=self._ask_held, clock=lambda: self.now
        )

    async def _probe(self, endpoint: Endpoint) -> ProbeAnswer:
        return ProbeAnswer("ready")

    async def _ask_held(self, endpoint: Endpoint) -> frozenset[str] | None:
        self.num_asked += 1
        return self.held

    async def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += SWEEP_S
            self.watch.sweep()
            for _ in range(3):
                await asyncio.sleep(0)


async def test_a_request_that_its_node_does_not_know_twice_is_left_and_one_that_it_holds_is_not() -> None:
    rig = Rig(frozenset({"held"}))
    lost, held = (rig.watch.begin(A, request_id=one, late_after_s=LATE_S) for one in ("lost", "held"))
    unpredicted = rig.watch.begin(A, request_id="other")
    await rig.pass_time(LATE_S)
    assert rig.num_asked == 0
    await rig.pass_time(2 * SWEEP_S)
    assert (rig.num_asked, lost.end) == (1, None), "its answer may be on the way"
    await rig.pass_time(HELD_PAUSE_S)
    assert (lost.end, held.end, unpredicted.end) == (WaitEnd.REQUEST_UNKNOWN, None, None)
    assert WaitEnd.REQUEST_UNKNOWN.is_nodes_failure, "another node is asked"
    rig.watch.finish(lost)
    await rig.pass_time(20 * HELD_AGAIN_S)
    assert (held.end, unpredicted.end) == (None, None)
    assert rig.num_asked <= 23, "and is not asked about all the time"


async def test_a_node_that_does_not_say_what_it_holds_keeps_its_requests() -> None:
    rig = Rig(None)
    wait = rig.watch.begin(A, request_id="r", late_after_s=LATE_S)
    await rig.pass_time(LATE_S + 10 * HELD_AGAIN_S)
    assert wait.end is None
    assert rig.num_asked > 2


async def test_what_was_heard_of_meanwhile_is_not_left() -> None:
    rig = Rig(frozenset())
    begun, slow = (rig.watch.begin(A, request_id=one, late_after_s=LATE_S) for one in ("begun", "slow"))
    await rig.pass_time(LATE_S - 1)
    begun.has_forwarded = True
    for _ in range(60):
        begun.note_heard(rig.now)
        slow.note_heard(rig.now)  # a long plain answer on its way
        await rig.pass_time(1)
    assert (begun.end, slow.end, rig.num_asked) == (None, None, 0)


async def test_the_old_limit_holds_where_the_prediction_is_beyond_it() -> None:
    rig = Rig(frozenset())
    wait = rig.watch.begin(A, request_id="r", late_after_s=LIMITS.first_byte_limit_s)
    await rig.pass_time(LIMITS.first_byte_limit_s + 2 * SWEEP_S)
    assert (wait.end, rig.num_asked) == (WaitEnd.FIRST_BYTE_LIMIT, 0)


def test_a_request_is_late_by_what_waits_before_it_and_unknown_where_nothing_was_measured() -> None:
    assert late_after_s(30_000, 1000.0, None, is_stream=True, least_s=60) == 60 + LATE_FACTOR * 30
    whole = late_after_s(30_000, 1000.0, 200, is_stream=False, least_s=60)
    assert whole == 60 + LATE_FACTOR * (30 + 200 * SLOW_TOKEN_S)
    assert late_after_s(30_000, 1000.0, None, is_stream=False, least_s=60) is None
    assert late_after_s(30_000, None, 200, is_stream=True, least_s=60) is None


def prefer_a(served: Served) -> None:
    """`a` is the first choice, and a prefill rate was seen."""
    served.gateway.loads.note_prefill(100_000, time.monotonic() - 0.1)
    served.gateway.loads.suspect("b", 3600)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_lost_inside_a_node_is_answered_by_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(node_watch, "HELD_PAUSE_S", 0.05)
    limits = GatewaySettings(lost_request_after_s=0.05)
    async with small_fleet(tmp_path, "a", "b", limits=limits, engine="fleetctl") as (served, nodes, _):
        prefer_a(served)
        nodes[0].gate.clear()
        nodes[0].held = []
        reply = await served.chat("p", max_tokens=2, stream=stream, headers={"X-Request-Id": "r1"})
        told = reply.text if stream else reply.events or reply.body.decode()
        assert reply.status == 200
        assert chat_text("p", max_tokens=2) in str(told)
        fate = await served.fate("r1")
        assert (fate["fate"], fate["nodes"][-1], fate["deaths"], fate["retries"]) == ("finished", "b", [], 1)
        counted = served.gateway.metrics.registry.get_sample_value(
            "gateway_retries_total", {"reason": "request_unknown"}
        )
        assert counted == 1


async def test_a_request_that_its_node_holds_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "HELD_PAUSE_S", 0.05)
    monkeypatch.setattr(node_watch, "HELD_AGAIN_S", 0.05)
    limits = GatewaySettings(lost_request_after_s=0.05)
    async with small_fleet(tmp_path, "a", "b", limits=limits, engine="fleetctl") as (served, nodes, _):
        prefer_a(served)
        nodes[0].gate.clear()
        nodes[0].held = ["r1"]
        asked = asyncio.ensure_future(served.chat("p", max_tokens=2, headers={"X-Request-Id": "r1"}))
        await until(lambda: nodes[0].num_asked_held >= 3, "three questions")
        nodes[0].gate.set()
        assert (await asked).text == chat_text("p", max_tokens=2)
        assert nodes[1].seen == []
