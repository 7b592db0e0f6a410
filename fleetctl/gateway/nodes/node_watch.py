"""Which nodes still answer, and which waits have to end: judged by what is heard, and by a cheap probe.

A long prompt keeps its request silent for minutes on a node that is well, so silence ends nothing by itself. A node
from which nothing was heard for a while is asked `/health/ready`; only one that does not answer that either is silent:
it gets no more requests, and loses what it was given. Knows no request and no client: see `place.py` and `proxy.py`.
Longer than others: a wait, its node and the probe that both are judged by change each other's states.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

import structlog

from fleetctl.gateway.http.node_client import NodeClient, NodeClientError
from fleetctl.gateway.nodes.loads import Loads
from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.settings.gateway import GatewaySettings

log = structlog.get_logger()

SWEEP_S = 0.25
STALL_S = 1.0  # between two sweeps: we stood still ourselves, and what was not heard meanwhile tells nothing of nodes
SUSPECT_AFTER_S = 0.5  # a probe that is open for so long: new requests avoid the node already
DEADLINE_MARGIN_S = 0.5  # the node that has the request knows its deadline, and says more of it
GAP_SAMPLES = 8  # of a stream's pieces: how far its usual distance looks back
LATE_GAPS = 10.0  # so many usual distances without a piece: it is late
SHORTEST_PATIENCE_S = 0.5
PROBE_PATH = "/health/ready"
MAX_PROBE_BYTES = 64 * 1024
HELD_PAUSE_S = 5.0  # between two questions for what a node holds
HELD_AGAIN_S = 30.0  # after the node said that it holds a late request, or did not say
NOT_HELD_TIMES = 2  # in a row: the first answer may have crossed the request's own
STUCK_REASONS = frozenset({"core_stuck", "core_dead"})


class WaitEnd(StrEnum):
    """Why a wait for a node was ended by us. The words are reasons of fates and retries."""

    NODE_SILENT = "node_silent"  # the node does not answer probes
    CORE_STUCK = "core_stuck"  # the node answers and says that its core is stuck or dead
    FIRST_BYTE_LIMIT = "first_byte_limit"  # the node is well, and the answer did not begin
    REQUEST_UNKNOWN = "request_unknown"  # the node is well, and does not know the request
    NODE_LEFT = "node_left"  # the node is well, and what it holds is to go on elsewhere: it is being drained
    STREAM_IDLE = "stream_idle"  # the node is well, and the stream did not go on
    DEADLINE = "deadline_exceeded"  # the client's own

    @property
    def is_nodes_failure(self) -> bool:
        """Whether another node may do better."""
        return self in (WaitEnd.NODE_SILENT, WaitEnd.CORE_STUCK, WaitEnd.REQUEST_UNKNOWN, WaitEnd.NODE_LEFT)

    @property
    def is_of_a_node_that_is_well(self) -> bool:
        """Whether the request is to go elsewhere and the node has done nothing to be avoided."""
        return self in (WaitEnd.REQUEST_UNKNOWN, WaitEnd.NODE_LEFT)


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What a node said of itself. `reason` is empty when it only answered."""

    reason: str = ""


class WatchedNode:
    """What is known of one node while anybody waits for it, or it is out. Times are monotonic seconds."""

    __slots__ = (
        "asked_held_at",
        "endpoint",
        "failures",
        "heard_at",
        "held_question",
        "out",
        "out_since",
        "probe",
        "probed_at",
        "stuck",
        "waits",
    )

    def __init__(self, endpoint: Endpoint, now: float) -> None:
        self.endpoint = endpoint
        self.heard_at = now  # anything of any request, or the answer to a probe
        self.probed_at = now  # the last probe began
        self.probe: asyncio.Task[None] | None = None
        self.held_question: asyncio.Task[None] | None = None
        self.asked_held_at = float("-inf")
        self.failures = 0  # probes without an answer, in a row
        self.stuck = 0  # probes in a row whose answer was that the core is stuck
        self.out: WaitEnd | None = None  # gets no requests, and why
        self.out_since = 0.0
        self.waits: set[Wait] = set()


class Wait:
    """One request's wait for one node.

    What is awaited of the node stands in `with`: TimeoutError when the wait is ended, and `end` says why.
    """

    __slots__ = (
        "_cancelling",
        "_is_cancelled",
        "_owner",
        "_task",
        "began",
        "deadline_at",
        "end",
        "gap_s",
        "has_forwarded",
        "heard_at",
        "is_movable",
        "is_paused",
        "late_at",
        "num_not_held",
        "request_id",
        "state",
    )

    def __init__(self, state: WatchedNode, now: float, deadline_at: float | None, request_id: str) -> None:
        self.state = state
        self.request_id = request_id
        self.late_at: float | None = None  # then the node is asked whether it has the request; None: never
        self.num_not_held = 0  # answers in a row that it has not
        self.began = now
        self.heard_at = now
        self.deadline_at = deadline_at
        self.has_forwarded = False  # the client got something of this node's answer
        self.gap_s: float | None = None  # usual distance of its pieces, once there were some
        self.is_movable = False  # another node can go on with the stream: nothing is lost by leaving this one
        self.is_paused = False  # the client reads slowly: we don't listen to the node
        self.end: WaitEnd | None = None
        # As asyncio.timeout does it, without its timer: a wait has no time of its own, the sweep ends it.
        self._owner: asyncio.Task[object] | None = None  # the request's task, which alone waits
        self._task: asyncio.Task[object] | None = None  # the same while it waits
        self._cancelling = 0  # cancellations of the task that are none of ours
        self._is_cancelled = False

    @property
    def node(self) -> str:
        """The node that is waited for."""
        return self.state.endpoint.node

    def note_heard(self, now: float) -> None:
        """The node said something for this request at `now`."""
        if self.has_forwarded:
            gap_s = now - self.heard_at
            self.gap_s = gap_s if self.gap_s is None else self.gap_s + (gap_s - self.gap_s) / GAP_SAMPLES
        self.heard_at = self.state.heard_at = now

    def stop(self, end: WaitEnd) -> None:
        """End the wait; the first reason stands."""
        if self.end is None:
            self.end = end
            if self._task is not None:
                self._is_cancelled = True
                self._task.cancel()

    def __enter__(self) -> Wait:
        if self.end is not None:
            raise TimeoutError
        task = self._owner
        if task is None:
            task = self._owner = asyncio.current_task()
            assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._is_cancelled and task is not None:
            self._is_cancelled = False
            if task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
                raise TimeoutError from error


class NodeWatch:
    """Owner of what is known of nodes' liveness. Threading: event loop only."""

    def __init__(
        self,
        loads: Loads,
        limits: GatewaySettings,
        probe: Callable[[Endpoint], Awaitable[ProbeAnswer | None]],
        *,
        on_probe: Callable[[bool], None] = lambda answered: None,
        on_back: Callable[[str], None] = lambda node: None,
        ask_held: Callable[[Endpoint], Awaitable[frozenset[str] | None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`probe` asks a node for its health: None when it did not answer. `on_probe` hears whether it did, `on_back`
        of a node that was out and is so no more. `ask_held` asks a node which requests it has: None: it did not say."""
        self._loads = loads
        self._limits = limits
        self._probe = probe
        self._on_probe = on_probe
        self._on_back = on_back
        self._ask_held = ask_held
        self._clock = clock
        self._states: dict[str, WatchedNode] = {}  # by address, of nodes that are waited for or out
        self._out: set[str] = set()  # addresses of those that are out
        self._left: frozenset[str] = frozenset()  # addresses of those whose requests are to go on elsewhere
        self._known: frozenset[str] | None = None  # addresses of the table; None before the first one
        self._awake_since = self._swept_at = clock()

    # What requests do

    def begin(
        self,
        endpoint: Endpoint,
        deadline_at: float | None = None,
        *,
        request_id: str = "",
        late_after_s: float | None = None,
    ) -> Wait:
        """A request waits for this node from now on. `finish` is owed once.

        Without a first byte after `late_after_s` the node is asked whether it knows `request_id`.
        """
        now = self._clock()
        state = self._states.get(endpoint.base)
        if state is None:
            state = self._states[endpoint.base] = WatchedNode(endpoint, now)
        wait = Wait(state, now, deadline_at, request_id)
        if late_after_s is not None and late_after_s < self._limits.first_byte_limit_s:
            wait.late_at = now + late_after_s
        state.waits.add(wait)
        return wait

    def finish(self, wait: Wait) -> None:
        """The request has its answer from the node, or does not want it any more."""
        wait.state.waits.discard(wait)

    @property
    def has_any_out(self) -> bool:
        """Whether any node gets no requests."""
        return bool(self._out)

    def why_out(self, endpoint: Endpoint) -> WaitEnd | None:
        """Why the node gets no requests; None when it may."""
        state = self._states.get(endpoint.base)
        return None if state is None else state.out

    def trouble_of(self, wait: Wait) -> WaitEnd | None:
        """Why a client that gives up now had reason to; None when its node is well as far as we know."""
        state, now = wait.state, self._clock()
        if state.out is not None:
            return state.out
        if now - max(wait.heard_at, state.heard_at) <= self._limits.probe_after_s:
            return None
        if state.failures or (state.probe is not None and now - state.probed_at > SUSPECT_AFTER_S):
            return WaitEnd.NODE_SILENT
        return WaitEnd.CORE_STUCK if state.stuck else None

    # For metrics

    def silent_nodes(self) -> dict[str, WaitEnd]:
        """Nodes that get no requests, and why."""
        return {state.endpoint.node: state.out for state in self._states.values() if state.out is not None}

    def oldest_waits_s(self) -> dict[str, float]:
        """By node: seconds that the oldest request has waited there of which the client got nothing yet."""
        now = self._clock()
        oldest: dict[str, float] = {}
        for state in self._states.values():
            for wait in state.waits:
                if not wait.has_forwarded:
                    oldest[wait.node] = max(oldest.get(wait.node, 0.0), now - wait.began)
        return oldest

    # The judgement

    async def watch_forever(self) -> None:
        """Sweep until cancelled."""
        try:
            while True:
                await asyncio.sleep(SWEEP_S)
                self.sweep()
        finally:
            for state in self._states.values():
                for task in (state.probe, state.held_question):
                    if task is not None:
                        task.cancel()

    def keep_only(self, endpoints: Iterable[Endpoint]) -> None:
        """Nodes that are not among these are forgotten as soon as nobody waits for them."""
        self._known = frozenset(endpoint.base for endpoint in endpoints)

    def leave(self, endpoints: Iterable[Endpoint]) -> None:
        """What these nodes hold goes on elsewhere, as far as it can, from the next sweep on."""
        self._left = frozenset(endpoint.base for endpoint in endpoints)

    def sweep(self) -> None:
        """Judge every wait, and start the probes that are due."""
        now = self._clock()
        if now - self._swept_at > STALL_S:
            log.warning("gateway.stalled", seconds=round(now - self._swept_at, 1))
            self._awake_since = now
            for state in self._states.values():
                state.failures = 0
        self._swept_at = now
        for base, state in list(self._states.items()):
            has_left = self._known is not None and base not in self._known
            if (
                state.probe is None
                and state.held_question is None
                and not state.waits
                and (state.out is None or has_left)
            ):
                del self._states[base]
                self._out.discard(base)
                continue
            self._end_waits(state, now)
            self._probe_if_due(state, now)
            self._ask_held_if_due(state, now)

    def _end_waits(self, state: WatchedNode, now: float) -> None:
        limits = self._limits
        for wait in state.waits:
            if wait.end is not None or wait.is_paused:
                continue
            silence = now - max(wait.heard_at, self._awake_since)
            if wait.deadline_at is not None and now > wait.deadline_at + DEADLINE_MARGIN_S:
                wait.stop(WaitEnd.DEADLINE)
            elif not wait.has_forwarded:
                if state.out is not None:
                    wait.stop(state.out)
                elif state.endpoint.base in self._left:
                    wait.stop(WaitEnd.NODE_LEFT)
                elif now - wait.began > limits.first_byte_limit_s:
                    wait.stop(WaitEnd.FIRST_BYTE_LIMIT)
            elif wait.is_movable and state.out is not None:
                wait.stop(state.out)
            elif wait.is_movable and state.endpoint.base in self._left:
                wait.stop(WaitEnd.NODE_LEFT)
            elif state.out is WaitEnd.NODE_SILENT and silence > limits.stream_silence_limit_s:
                wait.stop(WaitEnd.NODE_SILENT)
            elif silence > limits.stream_idle_limit_s:
                wait.stop(WaitEnd.STREAM_IDLE)

    def _probe_if_due(self, state: WatchedNode, now: float) -> None:
        limits = self._limits
        if state.probe is not None:
            if now - state.probed_at > SUSPECT_AFTER_S:
                self._loads.suspect(state.endpoint.node, 2 * SWEEP_S)
            return
        since = max(state.heard_at, self._awake_since)
        patience_s = limits.probe_after_s
        if state.failures == 0 and state.out is None:
            since = max(since, state.probed_at)
            if state.probed_at < state.heard_at:  # a piece that is late is asked about once; then as often as all
                patience_s = min(
                    (self._patience_s(wait) for wait in state.waits if not wait.is_paused), default=patience_s
                )
            is_waited_for = any(
                not wait.is_paused and now - max(wait.heard_at, self._awake_since) > patience_s for wait in state.waits
            )
            if not is_waited_for:
                return
        elif state.out is not None:
            since = max(since, state.probed_at)
        else:
            since = float("-inf")  # one failed: the next one says whether it was chance
        if now - since > patience_s:
            state.probed_at = now
            state.probe = asyncio.get_running_loop().create_task(self._ask(state), name="gateway.probe")

    def _patience_s(self, wait: Wait) -> float:
        """How long nothing may come before the node is asked: ten times the stream's own pace, where that is known."""
        limit_s = self._limits.probe_after_s
        return limit_s if wait.gap_s is None else min(limit_s, max(SHORTEST_PATIENCE_S, LATE_GAPS * wait.gap_s))

    def _ask_held_if_due(self, state: WatchedNode, now: float) -> None:
        """One question tells of all requests that are late there."""
        if self._ask_held is None or state.held_question is not None or state.out is not None:
            return
        if now - state.asked_held_at >= HELD_PAUSE_S and any(_is_late(wait, now) for wait in state.waits):
            state.asked_held_at = now
            question = self._question_held(state, self._ask_held)
            state.held_question = asyncio.get_running_loop().create_task(question, name="gateway.held")

    async def _question_held(
        self, state: WatchedNode, ask: Callable[[Endpoint], Awaitable[frozenset[str] | None]]
    ) -> None:
        try:
            held = await ask(state.endpoint)
        finally:
            state.held_question = None
        self.note_held(state, held)

    def note_held(self, state: WatchedNode, held: frozenset[str] | None) -> None:
        """Take the node's word into account of which requests it has (None: it did not say)."""
        now = self._clock()
        for wait in state.waits:
            if not _is_late(wait, state.asked_held_at):
                continue  # it came after the question, or was heard of since
            if held is None or wait.request_id in held:
                wait.num_not_held = 0
                wait.late_at = now + HELD_AGAIN_S
                continue
            wait.num_not_held += 1
            if wait.num_not_held >= NOT_HELD_TIMES:
                log.error(
                    "request.unknown_to_node",
                    request_id=wait.request_id,
                    node=wait.node,
                    after_s=round(now - wait.began, 1),
                )
                wait.stop(WaitEnd.REQUEST_UNKNOWN)

    async def _ask(self, state: WatchedNode) -> None:
        awake_since = self._awake_since
        try:
            answer = await self._probe(state.endpoint)
        finally:
            state.probe = None
        self._on_probe(answer is not None)
        has_stalled = self._awake_since != awake_since or self._clock() - self._swept_at > STALL_S
        if answer is not None or not has_stalled:  # that nothing came while we stood still is our own doing
            self.note_probe(state, answer)

    def note_probe(self, state: WatchedNode, answer: ProbeAnswer | None) -> None:
        """Take one probe's answer (None: there was none) into account."""
        if answer is None:
            state.failures += 1
            if state.failures >= self._limits.probe_failures:
                self._take_out(state, WaitEnd.NODE_SILENT)
            return
        state.failures = 0
        state.heard_at = self._clock()
        state.stuck = state.stuck + 1 if answer.reason in STUCK_REASONS else 0
        if state.stuck >= self._limits.probe_failures:
            self._take_out(state, WaitEnd.CORE_STUCK)
        elif state.stuck == 0 and state.out is not None:
            log.info(
                "node.answers_again",
                node=state.endpoint.node,
                was=state.out.value,
                after_s=round(state.heard_at - state.out_since, 1),
            )
            state.out = None
            self._out.discard(state.endpoint.base)
            self._loads.trust(state.endpoint.node)
            self._on_back(state.endpoint.node)

    def _take_out(self, state: WatchedNode, why: WaitEnd) -> None:
        if state.out is why:
            return
        if state.out is None:
            state.out_since = self._clock()
        state.out = why
        self._out.add(state.endpoint.base)
        log.error("node.taken_out", node=state.endpoint.node, reason=why.value, waiting=len(state.waits))
        self._end_waits(state, self._clock())


def _is_late(wait: Wait, now: float) -> bool:
    """Whether its node should be asked if it has the request: nothing came when it should have, nor just now."""
    return (
        wait.late_at is not None
        and not wait.has_forwarded
        and wait.end is None
        and now > wait.late_at
        and now - wait.heard_at >= HELD_PAUSE_S
    )


async def ask_readiness(client: NodeClient, endpoint: Endpoint, limit_s: float) -> ProbeAnswer | None:
    """What `/health/ready` says, whatever its status; None when nothing came within `limit_s`."""
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            answer = await client.request("GET", endpoint.base, PROBE_PATH)
            try:
                if answer.status == 200:
                    return ProbeAnswer("ready")
                while len(body) < MAX_PROBE_BYTES and (data := await answer.read_any()):
                    body += data
            finally:
                answer.release()
    except (NodeClientError, TimeoutError):
        return None
    try:
        reason = json.loads(body)["reason"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ProbeAnswer()  # a node of any kind may say anything: it answered
    return ProbeAnswer(reason if isinstance(reason, str) else "")
