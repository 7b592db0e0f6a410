"""The end of a node's service: drain, move what can be moved, end the rest with an error."""

from __future__ import annotations

import time
from collections.abc import Iterable

import structlog

from engine.node.drain import DrainControl
from engine.node.inflight import InflightRequest
from engine.node.request_registry import RequestRegistry

log = structlog.get_logger()

HANDOFF_GRACE_S = 5.0  # after the deadline, for hand-offs to be written


async def stop_serving(drain: DrainControl, requests: RequestRegistry, drain_timeout_s: float) -> None:
    """Drains; at the deadline moves what can be moved and ends the rest with an error. Nothing is held after."""
    deadline_at = drain.deadline_at
    left_s = None if deadline_at is None else max(0.0, deadline_at - time.time())
    deadline_s = drain_timeout_s if left_s is None else min(drain_timeout_s, left_s)
    drain.begin_drain(deadline_s)
    if await requests.is_empty_within(deadline_s):
        return
    requests.hand_off()
    _fail(requests, [f for f in requests.held if not f.accepts_handoff])
    if await requests.is_empty_within(HANDOFF_GRACE_S):
        return
    _fail(requests, list(requests.held))
    if not await requests.is_empty_within(HANDOFF_GRACE_S):
        log.warning("node.requests_cut", count=len(requests.held))


def _fail(requests: RequestRegistry, held: Iterable[InflightRequest]) -> None:
    for inflight in held:
        requests.fail(inflight, "the node is stopping", "node_stopping")
