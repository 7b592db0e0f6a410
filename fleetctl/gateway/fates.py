"""What became of each request. Every accepted request ends in exactly one terminal state, and is logged once."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import structlog

log = structlog.get_logger()

MAX_REMEMBERED = 20_000


class Outcome(StrEnum):
    FINISHED = "finished"  # the client got a whole answer
    REFUSED = "refused"  # never started: bad request, overloaded, or no node; the client may send it again
    FAILED = "failed"  # accepted, and ended with an error that the client was told
    CLIENT_GONE = "client_gone"  # the client hung up; the node was told at once


class Flight:
    """One request on its way. Changed by the proxy only, ended once by `Fates.end`."""

    __slots__ = (
        "duration_s", "moved", "nodes", "outcome", "reason", "request_id", "retries", "started",
        "started_at", "status", "ttft_s",
    )  # fmt: skip

    def __init__(self, request_id: str, started_at: float, started: float) -> None:
        self.request_id = request_id
        self.started_at = started_at  # Unix seconds
        self.started = started  # monotonic seconds
        self.nodes: list[str] = []  # every node that had it, in order
        self.moved = 0  # hand-offs that another node took over
        self.retries = 0
        self.status: int | None = None  # what the client saw; None when it saw nothing
        self.ttft_s: float | None = None
        self.outcome: Outcome | None = None
        self.reason = ""
        self.duration_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "fate": self.outcome.value if self.outcome else "in_flight",
            "moved": self.moved,
            "retries": self.retries,
            "nodes": list(self.nodes),
            "status": self.status,
            "reason": self.reason,
            "started_at": self.started_at,
            "duration_s": self.duration_s,
            "ttft_s": self.ttft_s,
        }


class Fates:
    """All requests in flight, and the most recent ended ones, by request id."""

    def __init__(
        self,
        *,
        max_remembered: int = MAX_REMEMBERED,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        on_end: Callable[[Flight], None] = lambda flight: None,
    ) -> None:
        self._now = now
        self._clock = clock
        self._max_remembered = max_remembered
        self._on_end = on_end
        self._flying: dict[str, Flight] = {}
        self._ended: OrderedDict[str, Flight] = OrderedDict()
        self._begun = 0
        self.counts: Counter[Outcome] = Counter()

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    def is_flying(self, request_id: str) -> bool:
        return request_id in self._flying

    def begin(self, request_id: str) -> Flight:
        """Take a request into account. The id must not be in flight."""
        assert request_id not in self._flying
        flight = Flight(request_id, self._now(), self._clock())
        self._flying[request_id] = flight
        self._begun += 1
        return flight

    def end(self, flight: Flight, outcome: Outcome, *, reason: str = "", status: int | None = None) -> None:
        """Give the flight its terminal state. A second end is a programming error."""
        assert flight.outcome is None, f"{flight.request_id} already ended as {flight.outcome}"
        flight.outcome = outcome
        flight.reason = reason
        if status is not None:
            flight.status = status
        flight.duration_s = self._clock() - flight.started
        del self._flying[flight.request_id]
        self._ended.pop(flight.request_id, None)
        self._ended[flight.request_id] = flight
        if len(self._ended) > self._max_remembered:
            self._ended.popitem(last=False)
        self.counts[outcome] += 1
        self._on_end(flight)
        log.info(
            "request.finished",
            request_id=flight.request_id,
            outcome=outcome.value,
            node=flight.nodes[-1] if flight.nodes else None,
            moved=flight.moved,
            retries=flight.retries,
            status=flight.status,
            reason=reason or None,
            duration_s=round(flight.duration_s, 4),
            ttft_s=None if flight.ttft_s is None else round(flight.ttft_s, 4),
        )

    def mark_first_byte(self, flight: Flight) -> float:
        """Note the first event sent to the client; returns seconds since the request came in."""
        flight.ttft_s = self._clock() - flight.started
        return flight.ttft_s

    def get(self, request_id: str) -> Flight | None:
        return self._flying.get(request_id) or self._ended.get(request_id)

    def check_integrity(self) -> None:
        assert self._begun == len(self._flying) + sum(self.counts.values())
        assert all(f.outcome is None for f in self._flying.values())
        assert all(f.outcome is not None for f in self._ended.values())
        assert len(self._ended) <= self._max_remembered
