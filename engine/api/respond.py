"""Writing the answer of a request in flight: a stream of events, or one body. Ends the request, whatever happens.

Both watch for the client hanging up while they wait: its sequences are then aborted in the core at once. A stream's
head is sent with its first event, so what fails before has a status of its own, which lets another node take it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.api import chunks
from engine.api.continuation import PROGRESS_HEADER, resolved_header
from engine.api.errors import error_body
from engine.api.handoff import write_handoff
from engine.node.choice import BAD_GRAMMAR, OUT_OF_MEMORY, ChoiceDelta
from engine.node.inflight import CORE_DEAD, NODE_STOPPING, Fate, InflightRequest
from engine.node.queue_guard import QUEUE_TIMEOUT
from engine.node.refusal import LONGEST_RETRY_AFTER_S
from engine.node.request_registry import RequestRegistry
from engine.text.tokenizer import Tokenizer

HANDOFF_EVENT = "fleet.handoff"
EVENT_STREAM = "text/event-stream; charset=utf-8"
# Of answers that failed before anything of them was sent, by error code; what is not here is the node's own fault.
STATUS_OF = {
    BAD_GRAMMAR: 400,
    "deadline_exceeded": 504,
    QUEUE_TIMEOUT: 503,
    CORE_DEAD: 503,
    NODE_STOPPING: 503,
    OUT_OF_MEMORY: 503,
}
# Seconds until a client may come again, with 503. A core is back within seconds.
RETRY_AFTER_S = {QUEUE_TIMEOUT: LONGEST_RETRY_AFTER_S, CORE_DEAD: 2, NODE_STOPPING: 2, OUT_OF_MEMORY: 2}
# Said in X-Fleet-Refused: the request ended with what held it, or with what it shared memory with, and may begin anew
# on another node.
MAY_GO_ELSEWHERE = frozenset({CORE_DEAD, NODE_STOPPING, OUT_OF_MEMORY})


class GenerationResponse(Response):
    """The answer to an admitted request: a stream of events or one body, as it asked."""

    def __init__(self, requests: RequestRegistry, tokenizer: Tokenizer, inflight: InflightRequest) -> None:
        self.requests = requests
        self.tokenizer = tokenizer
        self.inflight = inflight
        self.background = None
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with _held(self.requests, self.inflight, receive):
            if self.inflight.request.stream:
                await self._write_stream(send)
            else:
                await self._write_whole(send)

    async def _write_stream(self, send: Send) -> None:
        inflight = self.inflight
        has_begun = False
        if opening := self.opening():
            has_begun = True
            await self._start(send, 200, EVENT_STREAM)
            await send({"type": "http.response.body", "body": opening, "more_body": True})
        while True:
            deltas = await inflight.next_deltas()
            if deltas:
                events = b"".join([self.delta_events(delta) for delta in deltas])
                if events:
                    if not has_begun:
                        has_begun = True
                        await self._start(send, 200, EVENT_STREAM)
                    await send({"type": "http.response.body", "body": events, "more_body": True})
            elif inflight.outcome is not None:
                break
        if not has_begun:
            if inflight.outcome is Fate.FAILED:
                await self._send_failure(send)
                return
            await self._start(send, 200, EVENT_STREAM)
        await send({"type": "http.response.body", "body": self.tail(), "more_body": False})

    def opening(self) -> bytes:
        """Events of a stream that need no news of the core."""
        return b""

    def delta_events(self, delta: ChoiceDelta) -> bytes:
        """What a stream says of one delta."""
        return chunks.delta_events(self.inflight, delta, self.tokenizer)

    def tail(self) -> bytes:
        """The end of a stream, once the request has its outcome."""
        inflight = self.inflight
        match inflight.outcome:
            case Fate.FINISHED:
                return (chunks.usage_event(inflight) if inflight.request.include_usage else b"") + chunks.DONE
            case Fate.MOVED:
                rest = b"" if inflight.progress is None else inflight.progress.rest()
                return rest + chunks.event(self.handoff(), HANDOFF_EVENT)
            case Fate.FAILED:
                return b"data: " + self._error() + b"\n\n"
            case _:
                return b""

    def handoff(self) -> msgspec.Struct:
        """What another node goes on from."""
        return write_handoff(self.inflight, time.monotonic())

    def _error(self) -> bytes:
        code = self.inflight.error_code
        kind = "invalid_request_error" if STATUS_OF.get(code or "") == 400 else "server_error"
        return error_body(self.inflight.error or "", kind, code=code)

    def whole_answer(self) -> bytes:
        """The body of a request that finished."""
        return chunks.whole_answer(self.inflight, self.tokenizer)

    async def _write_whole(self, send: Send) -> None:
        inflight = self.inflight
        while inflight.outcome is None:
            await inflight.next_deltas()
        headers: dict[str, str] = {}
        match inflight.outcome:
            case Fate.FINISHED:
                status, body = 200, self.whole_answer()
            case Fate.MOVED:
                status, headers = 202, {"X-Fleet-Handoff": "state"}
                body = msgspec.json.encode(self.handoff())
            case Fate.FAILED:
                await self._send_failure(send)
                return
            case _:
                return
        await self._send_body(send, status, body, headers)

    async def _send_failure(self, send: Send) -> None:
        """The answer of a request that failed before anything was sent; the gateway may take it to another node."""
        code = self.inflight.error_code or ""
        headers = {}
        if code in RETRY_AFTER_S:
            headers["Retry-After"] = str(RETRY_AFTER_S[code])
        if code in MAY_GO_ELSEWHERE:
            headers["X-Fleet-Refused"] = code
        await self._send_body(send, STATUS_OF.get(code, 500), self._error(), headers)

    async def _send_body(self, send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
        await self._start(send, status, "application/json", {**headers, "Content-Length": str(len(body))})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, send: Send, status: int, media_type: str, headers: dict[str, str] | None = None) -> None:
        self.inflight.status = status
        pairs = {"Content-Type": media_type, "X-Request-Id": self.inflight.request.request_id, **(headers or {})}
        if media_type == EVENT_STREAM:
            pairs |= {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must not gather events
            if self.inflight.progress is not None:
                pairs[PROGRESS_HEADER] = resolved_header(self.inflight.request)
        raw = [(key.lower().encode(), value.encode()) for key, value in pairs.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})


@asynccontextmanager
async def _held(requests: RequestRegistry, inflight: InflightRequest, receive: Receive) -> AsyncIterator[None]:
    """Holds the inflight while its answer is written; a client that hangs up, or any exception, aborts it."""
    watcher = asyncio.create_task(_until_gone(receive))
    watcher.add_done_callback(lambda _: requests.abandon(inflight))
    is_written = False
    try:
        yield
        is_written = not watcher.done()
    finally:
        watcher.cancel()
        outcome = inflight.outcome or Fate.ABORTED
        requests.close(inflight, outcome if is_written else Fate.ABORTED)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
