"""What errors of engines that are not ours mean: the client's own, the node's, or too much to do.

Our nodes say it in words (`X-Fleet-Refused`, the error's `code`). vLLM and SGLang write an HTTP status as the error's
`code`, also in a stream's last event; vLLM and SGLang answer 503 when their queue is full (`--max-num-queued-reqs`,
`--max-queued-requests`), llama.cpp while it loads its model.
"""

from __future__ import annotations

import asyncio
import json

from fleetctl.gateway.http.event_stream import StreamError
from fleetctl.gateway.http.node_client import NodeAnswer, NodeClientError

# What they call their own trouble, as the error's type, where its code is no HTTP status.
_TROUBLES = frozenset({"InternalServerError", "server_error"})
_LOADING = "unavailable_error"  # llama.cpp
_READ_LIMIT_S = 1.0
_MAX_BYTES = 64 * 1024


def is_nodes_trouble(error: StreamError) -> bool:
    """Whether another node may do better than the one that ended its stream with this error."""
    return error.status >= 500 if error.status is not None else error.kind in _TROUBLES


def is_clients_own(error: StreamError) -> bool:
    """Whether the client has to change something: no node would do better."""
    return error.kind == "invalid_request_error" or (error.status is not None and 400 <= error.status < 500)


async def read_refusal(answer: NodeAnswer) -> str | None:
    """What the engine itself refuses with 503: `overloaded` or `not_ready`. None: something else said it, or failed."""
    body = bytearray()
    try:
        async with asyncio.timeout(_READ_LIMIT_S):
            while len(body) < _MAX_BYTES and (data := await answer.read_any()):
                body += data
        told = json.loads(body)
        error = told.get("error", told)
        if error["code"] != 503:
            return None
        return "not_ready" if error.get("type") == _LOADING else "overloaded"
    except asyncio.CancelledError:  # the wait for this node is over, and nobody else has its answer
        answer.release()
        raise
    except (NodeClientError, TimeoutError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
