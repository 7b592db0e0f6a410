"""Taking a node out of service without losing a request: the state, the deadline and the receipt.

Pure bookkeeping with the time as an argument. Who is handed off, and how, is the node's business.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum

from engine.node.inflight import Fate


class DrainState(StrEnum):
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
        if self.state is DrainState.DRAINING and held == 0:
            self.state, self.since = DrainState.DRAINED, now
            self.check_integrity()

    def check_integrity(self) -> None:
        """Raises AssertionError when a drained node can't account for a request."""
        r = self.receipt
        if self.state is DrainState.DRAINED:
            assert r.in_flight == r.finished + r.moved + r.aborted, r

    def status(self, *, running: int, waiting: int) -> dict[str, object]:
        return {
            "state": self.state.value,
            "since": self.since,
            "deadline_at": self.deadline_at,
            "running": running,
            "waiting": waiting,
            "receipt": asdict(self.receipt),
        }
