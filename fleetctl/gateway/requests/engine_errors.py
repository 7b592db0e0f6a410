"""What errors of engines that are not ours mean: the client's own, the node's, or too much to do.

Our nodes say it in words (`X-Fleet-Refused`, the error's `code`). vLLM and SGLang write an HTTP status as the error's
`code`, also in a stream's last event; vLLM and SGLang answer 503 when their queue is full (`--max-num-queued-reqs`,
`--max-queued-requests`), llama.cpp while it loads its model.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from fleetctl.gateway.http.event_stream import EventStreamReader, StreamError, error_of
from fleetctl.gateway.http.node_client import NodeAnswer, NodeClientError

# What they call their own trouble, as the error's type, where its code is no HTTP status.
_TROUBLES = frozenset({"InternalServerError", "server_error"})
_LOADING = "unavailable_error"  # llama.cpp
_READ_LIMIT_S = 1.0
_MAX_BYTES = 64 * 1024


class Refusal(NamedTuple):
    """`status`: what the answer amounts to. `said`: why the engine itself refuses, in our words; None: it does not."""

    status: int
    said: str | None


def is_nodes_trouble(error: StreamError) -> bool:
    """Whether another node may do better than the one that ended its stream with this error."""
    return error.status >= 500 if error.status is not None else error.kind in _TROUBLES


def is_clients_own(error: StreamError) -> bool:
    """Whether the client has to change something: no node would do better."""
    return error.kind == "invalid_request_error" or (error.status is not None and 400 <= error.status < 500)


async def read_refusal(answer: NodeAnswer) -> Refusal:
    """How the answer begins, for which a stream's first event is waited for. Raises NodeDisconnectedError.

    An engine that finds its queue full when it has begun a stream says so in the first event, under status 200.
    """
    if answer.status == 503:
        return Refusal(503, _why(await _read_error(answer)))
    if answer.status == 200 and answer.content_type == "text/event-stream":
        reader = EventStreamReader()
        reader.feed(await answer.peek())
        if reader.error is not None and reader.error.status is not None and reader.error.status >= 500:
            return Refusal(reader.error.status, _why(reader.error))
    return Refusal(answer.status, None)


def _why(error: StreamError) -> str | None:
    if error.status != 503:
        return None
    return "not_ready" if error.kind == _LOADING else "overloaded"


async def _read_error(answer: NodeAnswer) -> StreamError:
    body = b""
    try:
        async with asyncio.timeout(_READ_LIMIT_S):
            while len(body) < _MAX_BYTES and (data := await answer.read_any()):
                body += data
    except (NodeClientError, TimeoutError):
        return StreamError()
    return error_of(body)
