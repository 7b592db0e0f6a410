"""Writing the answer of a flight: a stream of events, or one body. Ends the flight, whatever happens.

Both watch for the client hanging up while they wait: its sequences are then aborted in the core at once.
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
from engine.api.errors import error_body
from engine.api.handoff import write_handoff
from engine.node.inflight import BAD_GRAMMAR, Fate, Flight
from engine.node.node import Node
from engine.node.queue_guard import QUEUE_TIMEOUT
from engine.node.refusal import LONGEST_RETRY_AFTER_S

HANDOFF_EVENT = "fleet.handoff"
# Of whole answers that failed, by error code; what is not here is the node's own fault.
STATUS_OF = {BAD_GRAMMAR: 400, "deadline_exceeded": 504, QUEUE_TIMEOUT: 503}


class FlightResponse(Response):
    """The answer to an admitted request, as its ask wants it."""

    def __init__(self, node: Node, flight: Flight) -> None:
        self.node = node
        self.flight = flight
        self.background = None
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with _held(self.node, self.flight, receive):
            if self.flight.ask.stream:
                await self._write_stream(send)
            else:
                await self._write_whole(send)

    async def _write_stream(self, send: Send) -> None:
        flight, tokenizer = self.flight, self.node.tokenizer
        await self._start(send, 200, "text/event-stream; charset=utf-8")
        while True:
            deltas = await flight.news()
            if deltas:
                events = b"".join([chunks.delta_events(flight, delta, tokenizer) for delta in deltas])
                if events:
                    await send({"type": "http.response.body", "body": events, "more_body": True})
            elif flight.outcome is not None:
                break
        await send({"type": "http.response.body", "body": self._tail(), "more_body": False})

    def _tail(self) -> bytes:
        flight = self.flight
        match flight.outcome:
            case Fate.FINISHED:
                return (chunks.usage_event(flight) if flight.ask.include_usage else b"") + chunks.DONE
            case Fate.MOVED:
                return chunks.event(write_handoff(flight, time.monotonic()), HANDOFF_EVENT)
            case Fate.FAILED:
                return b"data: " + self._error() + b"\n\n"
            case _:
                return b""

    def _error(self) -> bytes:
        code = self.flight.error_code
        kind = "invalid_request_error" if STATUS_OF.get(code or "") == 400 else "server_error"
        return error_body(self.flight.error or "", kind, code=code)

    async def _write_whole(self, send: Send) -> None:
        flight = self.flight
        while flight.outcome is None:
            await flight.news()
        headers: dict[str, str] = {}
        match flight.outcome:
            case Fate.FINISHED:
                status, body = 200, chunks.whole_answer(flight, self.node.tokenizer)
            case Fate.MOVED:
                status, headers = 202, {"X-Fleet-Handoff": "state"}
                body = msgspec.json.encode(write_handoff(flight, time.monotonic()))
            case Fate.FAILED:
                status = STATUS_OF.get(flight.error_code or "", 500)
                body = self._error()
                if status == 503:
                    headers = {"Retry-After": str(LONGEST_RETRY_AFTER_S)}
            case _:
                return
        await self._start(send, status, "application/json", {**headers, "Content-Length": str(len(body))})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, send: Send, status: int, media_type: str, headers: dict[str, str] | None = None) -> None:
        self.flight.status = status
        pairs = {"Content-Type": media_type, "X-Request-Id": self.flight.ask.request_id, **(headers or {})}
        if self.flight.ask.stream:
            pairs |= {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must not gather events
        raw = [(key.lower().encode(), value.encode()) for key, value in pairs.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})


@asynccontextmanager
async def _held(node: Node, flight: Flight, receive: Receive) -> AsyncIterator[None]:
    """Holds the flight while its answer is written; a client that hangs up, or any exception, aborts it."""
    watcher = asyncio.create_task(_until_gone(receive))
    watcher.add_done_callback(lambda _: node.abandon(flight))
    is_written = False
    try:
        yield
        is_written = not watcher.done()
    finally:
        watcher.cancel()
        outcome = flight.outcome or Fate.ABORTED
        node.close(flight, outcome if is_written else Fate.ABORTED)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
