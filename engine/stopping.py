"""The end of a node's service: drain, move what can be moved, end the rest with an error."""

from __future__ import annotations

import time
from collections.abc import Iterable

import structlog

from engine.node.inflight import Flight
from engine.node.node import Node

log = structlog.get_logger()

HANDOFF_GRACE_S = 5.0  # after the deadline, for hand-offs to be written


async def stop_serving(node: Node, drain_timeout_s: float) -> None:
    """Drains; at the deadline moves what can be moved and ends the rest with an error. Nothing is held after."""
    deadline_at = node.drain.deadline_at
    left_s = None if deadline_at is None else max(0.0, deadline_at - time.time())
    deadline_s = drain_timeout_s if left_s is None else min(drain_timeout_s, left_s)
    node.begin_drain(deadline_s)
    if await node.is_emptied_within(deadline_s):
        return
    node.hand_off()
    _fail(node, [f for f in node.flights if not f.accepts_handoff])
    if await node.is_emptied_within(HANDOFF_GRACE_S):
        return
    _fail(node, list(node.flights))
    if not await node.is_emptied_within(HANDOFF_GRACE_S):
        log.warning("node.requests_cut", count=len(node.flights))


def _fail(node: Node, flights: Iterable[Flight]) -> None:
    for flight in flights:
        node.fail(flight, "the node is stopping", "node_stopping")
