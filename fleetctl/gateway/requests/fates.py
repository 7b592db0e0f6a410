"""What became of each request. Every accepted request ends in exactly one terminal state, and is logged once."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from fleetctl.gateway.admission.admission import Admitted
from fleetctl.gateway.admission.demand import UsageMeter
from fleetctl.gateway.nodes.node_watch import Wait
from fleetctl.gateway.requests.request_log import RequestLog
from fleetctl.gateway.response_cache import Recording

MAX_REMEMBERED = 20_000
TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})  # W3C trace context


class Outcome(StrEnum):
    """How a request ended for its client."""

    FINISHED = "finished"  # the client got a whole answer
    REFUSED = "refused"  # never started, or can't be served as it is: bad request, overloaded, or no node
    FAILED = "failed"  # accepted, and ended with an error that the client was told: lost
    GAVE_UP = "gave_up"  # the client hung up on a node that did not answer any more: lost
    CLIENT_GONE = "client_gone"  # the client hung up, its node was well; the node was told at once

    @property
    def is_lost(self) -> bool:
        """Whether the client did not get an answer that the fleet owed it."""
        return self is Outcome.FAILED or self is Outcome.GAVE_UP


class Death(NamedTuple):
    """A node that ended, or fell silent, with the request in hand."""

    node: str
    reason: str  # disconnected, cut, core_dead, out_of_memory, node_silent or core_stuck
    at_event: int = 0  # events of the answer that the client had by then
    held_s: float = 0.0  # for how long it had the request
    unheard_s: float = 0.0  # for how long nothing had been heard of it when it got the request, nor was since

    @property
    def fate(self) -> str:
        """The reason of a request that ends with it."""
        return "node_lost" if self.reason in ("disconnected", "cut") else self.reason


@dataclass(slots=True)
class Move:
    """Another node went on with the request."""

    source: str
    target: str
    reason: str  # handoff, or how its node ended
    num_tokens: int | None  # of the answer, that the client had; None: not counted
    pause_s: float | None = None  # from the last that was heard of `source` to the first event of `target`
    how: str = "exact"  # or by_text: see docs/gateway.md

    def as_json(self) -> dict[str, Any]:
        """For `GET /gateway/requests/{request_id}`."""
        return {
            "from": self.source,
            "to": self.target,
            "reason": self.reason,
            "how": self.how,
            "tokens": self.num_tokens,
            "pause_s": self.pause_s,
        }


class OpenTrace(Protocol):
    """The span of a request that has no fate yet (`tracing.py`). Times are monotonic seconds."""

    def carried_by(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The headers with this span as the parent."""

    def note_phase(self, name: str, start: float, end: float, **attributes: str) -> None:
        """A part of the request's time."""

    def end(self, proxied: ProxiedRequest) -> None:
        """The request has its fate."""


class ProxiedRequest:
    """One request on its way. Changed by the proxy only, ended once by `Fates.end`."""

    __slots__ = (
        "admitted",
        "answer_headers",
        "body_hash",
        "body_key",
        "deaths",
        "duration_s",
        "failed_at",
        "meter",
        "moves",
        "nodes",
        "outcome",
        "paused_at",
        "priority",
        "queue_wait_s",
        "reason",
        "recording",
        "request_id",
        "retries",
        "started",
        "started_at",
        "status",
        "tenant",
        "trace",
        "ttft_s",
        "wait",
    )

    def __init__(self, request_id: str, started_at: float, started: float) -> None:
        self.request_id = request_id
        self.started_at = started_at  # Unix seconds
        self.started = started  # monotonic seconds
        self.nodes: list[str] = []  # every node that answered it, in order
        self.wait: Wait | None = None  # at the node that has it, or had it last
        self.answer_headers: list[tuple[bytes, bytes]] = []  # ours, for whatever answer the client gets
        self.deaths: list[Death] = []  # nodes that died or fell silent with it
        self.body_key: bytes | None = None  # of the client's body, once a node died with it
        self.body_hash: int | None = None  # of path and body, in this process; None: not read yet
        self.failed_at: list[str] = []  # nodes that answered it with an error of theirs
        self.tenant: str | None = None  # whose key it came with; None: not known yet, or none that we know
        self.priority: str | None = None  # the tenant's class
        self.admitted: Admitted | None = None  # what admission is owed back
        self.queue_wait_s = 0.0  # waited here for a node with a free seat
        self.meter = UsageMeter()
        self.trace: OpenTrace | None = None  # its open span, when a collector is configured
        self.recording: Recording | None = None  # of its answer, for the response cache
        self.moves: list[Move] = []  # in order
        self.paused_at: float | None = None  # monotonic seconds: its stream waits for the node that goes on
        self.retries = 0
        self.status: int | None = None  # what the client saw; None when it saw nothing
        self.ttft_s: float | None = None
        self.outcome: Outcome | None = None
        self.reason = ""
        self.duration_s: float | None = None

    def set_header(self, name: bytes, value: str) -> None:
        """Tell the client something in the answer's head; the last value stands."""
        kept = [one for one in self.answer_headers if one[0] != name]
        self.answer_headers = [*kept, (name, value.encode("latin-1", "replace"))]

    @property
    def moved(self) -> int:
        """How often another node went on with it."""
        return len(self.moves)

    @property
    def last_node(self) -> str:
        """The node that had it last; empty when none had."""
        if self.wait is not None:
            return self.wait.node
        return self.nodes[-1] if self.nodes else self.deaths[-1].node if self.deaths else ""

    def as_json(self) -> dict[str, Any]:
        """The body of `GET /gateway/requests/{request_id}`. Times in seconds, `started_at` in Unix seconds."""
        return {
            "request_id": self.request_id,
            "fate": self.outcome.value if self.outcome else "in_flight",
            "tenant": self.tenant,
            "class": self.priority,
            "queue_wait_s": self.queue_wait_s,
            "moved": self.moved,
            "moves": [move.as_json() for move in self.moves],
            "retries": self.retries,
            "nodes": list(self.nodes),
            "node": self.last_node,  # a plain answer's node is in `nodes` only once it has answered
            "deaths": [
                {
                    "node": death.node,
                    "reason": death.reason,
                    "at_event": death.at_event,
                    "held_s": round(death.held_s, 3),
                }
                for death in self.deaths
            ],
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
        on_begin: Callable[[ProxiedRequest], None] = lambda proxied: None,
        on_rename: Callable[[ProxiedRequest, str], None] = lambda proxied, before: None,
        on_end: Callable[[ProxiedRequest], None] = lambda proxied: None,
    ) -> None:
        self._now = now
        self._clock = clock
        self._max_remembered = max_remembered
        self._on_begin = on_begin
        self._on_rename = on_rename
        self._on_end = on_end
        self._open: dict[str, ProxiedRequest] = {}
        self._ended: OrderedDict[str, ProxiedRequest] = OrderedDict()
        self._begun = 0
        self.counts: Counter[Outcome] = Counter()
        self.log = RequestLog(now=now)

    @property
    def in_flight(self) -> int:
        """How many requests have no fate yet."""
        return len(self._open)

    def is_in_flight(self, request_id: str) -> bool:
        """Whether a request of this id has no fate yet: another one of the same id needs an id of its own."""
        return request_id in self._open

    def begin(self, request_id: str) -> ProxiedRequest:
        """Take a request into account. The id must not be in flight."""
        assert request_id not in self._open
        proxied = ProxiedRequest(request_id, self._now(), self._clock())
        self._open[request_id] = proxied
        self._begun += 1
        self._on_begin(proxied)
        return proxied

    def rename(self, proxied: ProxiedRequest, request_id: str) -> None:
        """Give a request that is open the id that its body names. The id must not be in flight."""
        assert request_id not in self._open
        before = proxied.request_id
        self._open[request_id] = self._open.pop(before)
        proxied.request_id = request_id
        self._on_rename(proxied, before)

    def end(self, proxied: ProxiedRequest, outcome: Outcome, *, reason: str = "", status: int | None = None) -> None:
        """Give the request its terminal state. A second end is a programming error."""
        assert proxied.outcome is None, f"{proxied.request_id} already ended as {proxied.outcome}"
        proxied.outcome = outcome
        proxied.reason = reason
        if status is not None:
            proxied.status = status
        proxied.duration_s = self._clock() - proxied.started
        del self._open[proxied.request_id]
        self._ended.pop(proxied.request_id, None)
        self._ended[proxied.request_id] = proxied
        if len(self._ended) > self._max_remembered:
            self._ended.popitem(last=False)
        self.counts[outcome] += 1
        self._on_end(proxied)
        self.log.write(
            request_id=proxied.request_id,
            outcome=outcome,
            tenant=proxied.tenant,
            node=proxied.last_node or None,
            moved=proxied.moved,
            retries=proxied.retries,
            status=proxied.status,
            reason=reason or None,
            duration_s=round(proxied.duration_s, 4),
            ttft_s=None if proxied.ttft_s is None else round(proxied.ttft_s, 4),
        )
        proxied.wait = None

    def mark_first_byte(self, proxied: ProxiedRequest) -> float:
        """Note the first event sent to the client; returns seconds since the request came in."""
        proxied.ttft_s = self._clock() - proxied.started
        return proxied.ttft_s

    def get(self, request_id: str) -> ProxiedRequest | None:
        """The request in flight, or the one of this id that ended last; None when it is not remembered."""
        return self._open.get(request_id) or self._ended.get(request_id)

    def ended_as_json(self) -> Iterator[dict[str, Any]]:
        """Of those that are remembered, the one that ended last at the end."""
        return (proxied.as_json() for proxied in self._ended.values())

    def check_integrity(self) -> None:
        """Raises AssertionError when a request was lost or ended twice."""
        assert self._begun == len(self._open) + sum(self.counts.values())
        assert all(f.outcome is None for f in self._open.values())
        assert all(f.outcome is not None for f in self._ended.values())
        assert len(self._ended) <= self._max_remembered
