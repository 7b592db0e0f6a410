"""Taking a node out of service without losing a request: the state, the deadline and the receipt.

`Drain` is pure bookkeeping with the time as an argument; `DrainControl` runs one on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import structlog

from engine.node.inflight import Fate

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
class Drain:
    """Owner of the drain state. Times are unix seconds: they are shown to people and other machines."""

    since: float
    state: DrainState = DrainState.SERVING
    deadline_at: float | None = None
    receipt: Receipt = field(default_factory=Receipt)

    def begin(self, held: int, deadline_s: float, now: float) -> None:
        """Starts a drain, or gives a running one a new deadline. Drained stays drained."""
        if self.state is DrainState.DRAINED:
            return
        if self.state is DrainState.SERVING:
            self.state, self.since = DrainState.DRAINING, now
            self.receipt = Receipt(in_flight=held)
        self.deadline_at = now + deadline_s
        self.settle(held, now)

    def resume(self, now: float) -> None:
        """Back to serving. Requests that are being handed off already still move."""
        if self.state is not DrainState.SERVING:
            self.state, self.since, self.deadline_at = DrainState.SERVING, now, None

    def note(self, fate: Fate, held: int, now: float) -> None:
        """One held request ended (or one arrival was refused); `held` are left."""
        if self.state is DrainState.SERVING:
            return
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

    def __init__(self, *, num_held: Callable[[], int], hand_off: Callable[[], None]) -> None:
        """`hand_off` stops every request that can go on elsewhere; each end comes back through `note_ended`."""
        self._drain = Drain(since=time.time())
        self._num_held = num_held
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
        held = self._num_held()
        if self.takes_work:
            log.info("node.drain_started", in_flight=held, deadline_s=deadline_s)
        self._drain.begin(held, deadline_s, time.time())
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._until_drained(), name="drain")

    def resume(self) -> None:
        """Back to serving."""
        self._drain.resume(time.time())
        self._changed.set()
        log.info("node.resumed")

    def note_ended(self, fate: Fate, held: int) -> None:
        """One request ended, or one arrival was refused; `held` are left."""
        self._drain.note(fate, held, time.time())
        self._changed.set()

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
