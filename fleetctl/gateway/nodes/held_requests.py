"""Whether a node still holds a request: when its first byte is late enough to ask, and the question itself.

A request that got lost inside a node that is well looks like a long prompt. So it is asked about once it is far later
than its prompt and what waits before it explain, and it is left only when the node does not know it.
"""

from __future__ import annotations

import asyncio
import json

from fleetctl.gateway.http.node_client import NodeClient, NodeClientError
from fleetctl.gateway.nodes.table import Endpoint

LATE_FACTOR = 10.0  # of what was predicted
SLOW_TOKEN_S = 0.05  # of an answer that comes as a whole; a slow engine's time for a token
HELD_PATH = "/admin/requests"
HELD_LIMIT_S = 5.0  # the node itself waits up to 1 s for its core
MAX_HELD_BYTES = 16 * 1024 * 1024


def late_after_s(
    waiting_tokens: int, rate: float | None, output_tokens: int | None, *, is_stream: bool, least_s: float
) -> float | None:
    """Seconds after which the first byte is late; None: not known.

    `waiting_tokens`: of prompts that the node has still to prefill, this one's too; `rate`: such tokens a second.
    `output_tokens`: what the request asks for at most.
    """
    if not rate or (output_tokens is None and not is_stream):
        return None
    predicted_s = waiting_tokens / rate
    if not is_stream and output_tokens is not None:
        predicted_s += output_tokens * SLOW_TOKEN_S
    return least_s + LATE_FACTOR * predicted_s


async def ask_held_requests(client: NodeClient, endpoint: Endpoint, token: str) -> frozenset[str] | None:
    """Ids of the requests that the node holds or is reading; None: it did not say, or does not tell both."""
    body = bytearray()
    try:
        async with asyncio.timeout(HELD_LIMIT_S):
            headers = [(b"Authorization", f"Bearer {token}".encode())]
            answer = await client.request("GET", endpoint.base, HELD_PATH, headers=headers)
            try:
                if answer.status != 200:
                    return None
                while data := await answer.read_any():
                    body += data
                    if len(body) > MAX_HELD_BYTES:
                        return None
            finally:
                answer.release()
        told = json.loads(body)
        return frozenset([*(one["request_id"] for one in told["requests"]), *told["arriving"]])
    except (NodeClientError, TimeoutError, ValueError, TypeError, KeyError, RecursionError):
        return None
