"""What nodes and gateways say of themselves, read once, or why they said nothing. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from fleetctl.engines.kind import EngineKind
from fleetctl.kit.fetch import TextAnswer
from fleetctl.wire.gateway import GatewayWorkers
from runbooks.ports import WayOut

MAX_WORDS = 300
_ERROR_KEYS = ("message", "error_message", "detail", "reason")


class NoAnswerError(Exception):
    """The peer did not answer, or not in the agreed shape: what it does is unknown."""


class SilentPeerError(NoAnswerError):
    """The peer said nothing at all: no connection, or nothing in time. It may hang, or be gone."""


class UnansweredError(SilentPeerError):
    """The peer took the request and did not answer it in time."""


class BadStatusError(NoAnswerError):
    """The peer answered with another status than the agreed one."""

    def __init__(self, message: str, status: int, said: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.said = said  # its own words; empty: none


class NotAllowedError(Exception):
    """The peer refused our token: trying again can't help."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What a node says of itself; `answered` False means it said nothing, and why is in `reason`."""

    answered: bool
    ready: bool
    reason: str
    since: float | None = None


@dataclass(frozen=True, slots=True)
class NodeDrain:
    """`GET /admin/drain`. Counts are requests; `receipt` is complete when `state` is drained."""

    state: str
    running: int
    waiting: int
    receipt: dict[str, int]

    @property
    def held(self) -> int:
        """Requests that the node holds."""
        return self.running + self.waiting


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """What a gateway says of itself. `out`: nodes to which it sends nothing, or little, and why."""

    table_version: int | None
    table_age_s: float | None
    in_flight: int | None
    lost: int  # requests that failed or were given up since its start
    out: dict[str, str]
    failing_open: tuple[str, ...]  # models of which it sees no node well by the controller's word
    ways_out: tuple[WayOut, ...] | None = None  # endpoints outside that it may send requests to; None: not told
    workers: GatewayWorkers | None = None  # None: not told
    inflight: Mapping[str, int] = field(default_factory=dict)  # requests that it has open, by node
    worker_deaths: int | None = None  # ends of its workers that nobody asked for, since its own start; None: not told


@dataclass(frozen=True, slots=True)
class GoldenReport:
    """What `/health/deep` says of the known-answer prompt: passed, failed or unknown, and how long ago in seconds."""

    result: str
    age_s: float | None
    detail: str
    is_running: bool


def health_of(kind: EngineKind, path: str, answered: TextAnswer) -> NodeHealth:
    status = answered.status
    if status is None:
        return NodeHealth(False, False, f"no answer: {answered.problem}")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return NodeHealth(True, False, f"{path} answers {status}: it wants a key")
    if status not in (200, 503):
        return NodeHealth(False, False, f"{path} answers {status}")
    if status == 200 and not kind.is_own:
        return NodeHealth(True, True, "ready")
    answer = parse_object(answered.text.encode())
    reason = answer.get("reason") if kind.is_own else _foreign_reason(kind, answered.text)
    since = answer.get("since") if kind.is_own else None
    return NodeHealth(
        answered=True,
        ready=status == 200,
        reason=reason if isinstance(reason, str) else ("ready" if status == 200 else "not ready, without a reason"),
        since=float(since) if isinstance(since, int | float) else None,
    )


def _foreign_reason(kind: EngineKind, text: str) -> str:
    """Why another engine is not ready, in the words that our own nodes have for it."""
    if kind.unready_reason:
        return kind.unready_reason
    return "loading" if "loading" in text.lower() else f"{kind.title} says no more"


def parse_object(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content or b"{}")
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def words_of(content: bytes) -> str:
    """What an error answer says, in the shapes that engines have; for people, one short line."""
    told = parse_object(content)
    inner = told.get("error")
    found = inner.get("message") if isinstance(inner, dict) else inner
    words = next((one for one in (found, *map(told.get, _ERROR_KEYS)) if isinstance(one, str)), "")
    return " ".join((words or content[:MAX_WORDS].decode("utf-8", "replace")).split())[:MAX_WORDS]


def parse_drain(answer: dict[str, Any]) -> NodeDrain:
    state = answer.get("state")
    if state not in ("serving", "draining", "drained"):
        raise NoAnswerError(f"the node states an unknown drain state {state!r}")
    receipt = answer.get("receipt")
    running, waiting = answer.get("running"), answer.get("waiting")
    if not isinstance(running, int) or not isinstance(waiting, int):
        # Not zero: a node that doesn't say what it holds must not be taken for idle.
        raise NoAnswerError("the node does not say how many requests it holds")
    counts = receipt if isinstance(receipt, dict) else {}
    return NodeDrain(state, running, waiting, {k: v for k, v in counts.items() if isinstance(v, int)})


def _ways_out(told: object) -> tuple[WayOut, ...] | None:
    if not isinstance(told, list):
        return None
    rows = [row for row in told if isinstance(row, dict)]
    return tuple(
        WayOut(
            str(row.get("endpoint")),
            frozenset(str(model) for model in models) if isinstance(models := row.get("models"), list) else frozenset(),
            float(left) if isinstance(left := row.get("budget_left"), int | float) else None,
        )
        for row in rows
    )


def parse_gateway(answer: dict[str, Any]) -> GatewayReport:
    if "table_version" not in answer:
        raise NoAnswerError("the gateway states no table_version")
    nodes, outcomes, failing_open = answer.get("nodes"), answer.get("outcomes"), answer.get("failing_open")
    counts = outcomes if isinstance(outcomes, dict) else {}
    workers = answer.get("workers")
    deaths = workers.get("deaths") if isinstance(workers, dict) else None
    try:
        told_workers = None if workers is None else GatewayWorkers.model_validate(workers)
    except ValidationError:
        told_workers = None
    version, age_s, in_flight = (answer.get(key) for key in ("table_version", "table_age_s", "in_flight"))
    return GatewayReport(
        table_version=version if isinstance(version, int) and not isinstance(version, bool) else None,
        table_age_s=float(age_s) if isinstance(age_s, int | float) else None,
        in_flight=in_flight if isinstance(in_flight, int) else None,
        lost=sum(count for key in ("failed", "gave_up") if isinstance(count := counts.get(key), int)),
        inflight={
            str(node): facts["inflight"]
            for node, facts in (nodes if isinstance(nodes, dict) else {}).items()
            if isinstance(facts, dict) and isinstance(facts.get("inflight"), int)
        },
        out={
            str(node): str(facts["out"])
            for node, facts in (nodes if isinstance(nodes, dict) else {}).items()
            if isinstance(facts, dict) and facts.get("out")
        },
        failing_open=tuple(str(model) for model in failing_open) if isinstance(failing_open, list) else (),
        ways_out=_ways_out(answer.get("overflow")),
        workers=told_workers,
        worker_deaths=deaths if isinstance(deaths, int) else None,
    )
