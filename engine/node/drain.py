"""Taking a node out of service without losing a request: the state, the deadline and the receipt.

`Drain` is pure bookkeeping with the time as an argument; `DrainControl` runs one on the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import structlog

from engine.node.inflight import Fate, InflightRequest

log = structlog.get_logger()


class DrainState(StrEnum):
    """A label of `engine_drain_state` too."""

    SERVING = "serving"
    DRAINING = "draining"  # no new work; held requests finish, or move when the deadline passes
    DRAINED = "drained"  # nothing is held; stays so until resumed


@dataclass(slots=True)
class Receipt:
    """What became of the requests held when the drain began. Whole when drained: in_flight is the sum of
    finished, moved and aborted. `refused` are later arrivals, never accepted. A request that failed while draining
    counts as aborted."""

    in_flight: int = 0
    finished: int = 0
    moved: int = 0
    refused: int = 0
    aborted: int = 0


@dataclass(slots=True)
class DrainedRequest:
    """One request of the drain: held when it began, or refused since. Tokens are output tokens but for `tokens_in`."""

    request_id: str
    tokens_in: int = 0
    tokens_before: int = 0  # when the drain began
    tokens_out: int = 0  # when it ended here
    fate: Fate | None = None  # None: held still


MAX_DRAINED_REQUESTS = 10_000
"""Rows that are kept of one drain; counts go on beyond them."""


@dataclass(slots=True)
class Drain:
    """Owner of the drain state. Times are unix seconds: they are shown to people and other machines."""

    since: float
    state: DrainState = DrainState.SERVING
    deadline_at: float | None = None
    receipt: Receipt = field(default_factory=Receipt)
    requests: dict[str, DrainedRequest] = field(default_factory=dict)  # by request id

    def begin(self, held: int, deadline_s: float, now: float, requests: Iterable[DrainedRequest] = ()) -> None:
        """Starts a drain, or gives a running one a new deadline. Drained stays drained. `requests`: what is held."""
        if self.state is DrainState.DRAINED:
            return
        if self.state is DrainState.SERVING:
            self.state, self.since = DrainState.DRAINING, now
            self.receipt = Receipt(in_flight=held)
            self.requests = {one.request_id: one for one in itertools.islice(requests, MAX_DRAINED_REQUESTS)}
        self.deadline_at = now + deadline_s
        self.settle(held, now)

    def resume(self, now: float) -> None:
        """Back to serving. Requests that are being handed off already still move."""
        if self.state is not DrainState.SERVING:
            self.state, self.since, self.deadline_at = DrainState.SERVING, now, None

    def note(self, fate: Fate, held: int, now: float, ended: DrainedRequest | None = None) -> None:
        """One held request ended (or one arrival was refused); `held` are left. `ended`: what is known of it."""
        if self.state is DrainState.SERVING:
            return
        if ended is not None:
            self._keep(ended, fate)
        match fate:
            case Fate.REFUSED:
                self.receipt.refused += 1
            case Fate.FINISHED:
                self.receipt.finished += 1
            case Fate.MOVED:
                self.receipt.moved += 1
            case Fate.ABORTED | Fate.FAILED:
                self.receipt.aborted += 1
        self.settle(held, now)

    def _keep(self, ended: DrainedRequest, fate: Fate) -> None:
        known = self.requests.get(ended.request_id)
        if known is not None and known.fate is None:
            known.fate, known.tokens_in, known.tokens_out = fate, ended.tokens_in, ended.tokens_out
        elif known is None and len(self.requests) < MAX_DRAINED_REQUESTS:
            ended.fate = fate
            self.requests[ended.request_id] = ended

    def settle(self, held: int, now: float) -> None:
        """Drained, when nothing is held any more."""
        if self.state is DrainState.DRAINING and held == 0:
            self.state, self.since = DrainState.DRAINED, now
            self.check_integrity()

    def check_integrity(self) -> None:
        """Raises AssertionError when a drained node can't account for a request."""
        r = self.receipt
        if self.state is DrainState.DRAINED:
            assert r.in_flight == r.finished + r.moved + r.aborted, r

    def status(self, *, running: int, waiting: int) -> dict[str, object]:
        """The body of `/admin/drain`; `running` and `waiting` count sequences."""
        return {
            "state": self.state.value,
            "since": self.since,
            "deadline_at": self.deadline_at,
            "running": running,
            "waiting": waiting,
            "receipt": asdict(self.receipt),
        }


class DrainControl:
    """Begins and ends the drain of a node, and hands off at its deadline. Threading: event loop only."""

    def __init__(self, *, held: Callable[[], Iterable[InflightRequest]], hand_off: Callable[[], None]) -> None:
        """`hand_off` stops every request that can go on elsewhere; each end comes back through `note_ended`."""
        self._drain = Drain(since=time.time())
        self._held = held
        self._hand_off = hand_off
        self._changed = asyncio.Event()  # a request ended, or the deadline or the state changed
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> DrainState:
        """Serving, draining or drained."""
        return self._drain.state

    @property
    def takes_work(self) -> bool:
        """Whether new requests are taken."""
        return self._drain.state is DrainState.SERVING

    @property
    def deadline_at(self) -> float | None:
        """Unix seconds; None while the node serves."""
        return self._drain.deadline_at

    def begin_drain(self, deadline_s: float) -> None:
        """No new work from now on; held requests finish, and those that can are handed off at the deadline."""
        held = list(self._held())
        if self.takes_work:
            log.info("node.drain_started", in_flight=len(held), deadline_s=deadline_s)
        requests = [drained_request(inflight, tokens_before=inflight.num_output_tokens) for inflight in held]
        self._drain.begin(len(held), deadline_s, time.time(), requests)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._until_drained(), name="drain")

    def resume(self) -> None:
        """Back to serving."""
        self._drain.resume(time.time())
        self._changed.set()
        log.info("node.resumed")

    def note_ended(self, inflight: InflightRequest, fate: Fate, held: int) -> None:
        """One request ended; `held` are left."""
        self._drain.note(fate, held, time.time(), drained_request(inflight))
        self._changed.set()

    def note_refused(self, request_id: str, held: int) -> None:
        """One arrival was refused; `held` are left. `request_id` is empty where it is not known."""
        self._drain.note(Fate.REFUSED, held, time.time(), DrainedRequest(request_id) if request_id else None)
        self._changed.set()

    def requests(self) -> list[dict[str, object]]:
        """Each request that was held when the drain began, or refused since, and its fate; none while serving."""
        if self.takes_work:
            return []
        return [asdict(one) | {"fate": one.fate and one.fate.value} for one in self._drain.requests.values()]

    def status(self, *, running: int, waiting: int) -> dict[str, object]:
        """The body of `/admin/drain`; `running` and `waiting` count sequences."""
        return self._drain.status(running=running, waiting=waiting)

    async def _until_drained(self) -> None:
        while self.state is DrainState.DRAINING:
            self._changed.clear()
            left_s = (self._drain.deadline_at or 0.0) - time.time()
            if left_s <= 0:
                self._hand_off()
            try:
                await asyncio.wait_for(self._changed.wait(), left_s if left_s > 0 else None)
            except TimeoutError:
                continue
        log.info("node.drain_ended", state=self.state.value, **asdict(self._drain.receipt))


def drained_request(inflight: InflightRequest, *, tokens_before: int = 0) -> DrainedRequest:
    """What is kept of a request while its node drains."""
    return DrainedRequest(
        inflight.request.request_id,
        tokens_in=inflight.num_prompt_tokens,
        tokens_before=tokens_before,
        tokens_out=inflight.num_output_tokens,
    )
