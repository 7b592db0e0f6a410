"""Sends requests as clients do, and tells how each one ended for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from engine.soak.request import SoakRequest

TIMEOUT_S = 120.0
# Said in X-Fleet-Refused of a request that had been taken in: another node may take it, here it failed.
FAILED_BEFORE_ITS_ANSWER = ("core_dead", "node_stopping", "out_of_memory")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended for its client: finished, failed, refused, invalid, moved, given_up, or cut.

    `cut` is the one that must never be: an answer that ends without an end.
    """

    request_id: str
    kind: str
    ending: str
    status: int | None = None
    tokens: int | None = None  # completion tokens, by the answer's usage
    detail: str = ""
    handoff: dict[str, Any] | None = None
    is_continuation: bool = False
    said: tuple[int, ...] = ()  # the first choice's tokens, where the request asked for their ids


class Client:
    """One client of the node; a session with connections that are kept and reused."""

    def __init__(self, url: str, token: str) -> None:
        self._token = token
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        self._session = aiohttp.ClientSession(url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0))

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def send(self, request: SoakRequest, request_id: str) -> Outcome:
        """Never raises but CancelledError."""
        sending = self._send(request, request_id)
        try:
            if request.hang_up_s is None:
                return await sending
            return await asyncio.wait_for(sending, request.hang_up_s)
        except TimeoutError:
            is_planned = request.hang_up_s is not None
            return Outcome(request_id, request.kind, "given_up" if is_planned else "cut", detail="no answer in time")
        except (aiohttp.ClientError, ConnectionError) as error:
            # A body that is too large may be refused before all of it was sent.
            ending = "invalid" if request.kind == "oversize" else "cut"
            return Outcome(request_id, request.kind, ending, detail=f"{type(error).__name__}: {error}")

    async def _send(self, request: SoakRequest, request_id: str) -> Outcome:
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id, **request.headers}
        async with self._session.post(request.path, data=request.body, headers=headers) as answer:
            if answer.content_type == "text/event-stream":
                return await self._read_stream(request, request_id, answer)
            return _whole(request.kind, request_id, answer.status, await answer.read(), answer.headers)

    async def continue_handoff(self, outcome: Outcome) -> Outcome:
        """Continues a request that the node handed off, on the same node. Raises aiohttp.ClientError."""
        assert outcome.handoff is not None
        kind = f"{outcome.kind}, continued"
        headers = {"Authorization": f"Bearer {self._token}", "X-Request-Id": outcome.request_id}
        async with self._session.post("/internal/continue", json=outcome.handoff, headers=headers) as answer:
            if answer.content_type != "text/event-stream":
                return _whole(
                    kind, outcome.request_id, answer.status, await answer.read(), answer.headers, is_continuation=True
                )
            ending = _Ending(outcome.said)
            async for name, data in _events(answer):
                ending.read_event(name, data)
            return ending.outcome(outcome.request_id, kind, answer.status, is_continuation=True)

    async def _read_stream(self, request: SoakRequest, request_id: str, answer: aiohttp.ClientResponse) -> Outcome:
        ending, count = _Ending(), 0
        async for name, data in _events(answer):
            ending.read_event(name, data)
            count += 1
            if request.hang_up_events is not None and count >= request.hang_up_events:
                answer.close()
                return Outcome(request_id, request.kind, "given_up", answer.status)
        return ending.outcome(request_id, request.kind, answer.status)

    async def admin(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and answer of a route of the node; with the token."""
        headers = {"Authorization": f"Bearer {self._token}"}
        async with self._session.request(method, path, json=body, headers=headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text


class _Ending:
    """What the events of a stream said, after what others said before, and of its end."""

    def __init__(self, said: tuple[int, ...] = ()) -> None:
        self._ending, self._detail = "cut", "the stream stopped without an end"
        self._tokens: int | None = None
        self._handoff: dict[str, Any] | None = None
        self._said = list(said)

    def read_event(self, name: str, data: str) -> None:
        if self._ending != "cut":
            self._ending, self._detail = "cut", f"an event after the end: {data[:100]}"
        elif data == "[DONE]":
            self._ending, self._detail = "finished", ""
        elif name == "fleet.handoff":
            self._ending, self._detail, self._handoff = "moved", "", json.loads(data)
        else:
            chunk = json.loads(data)
            if "error" in chunk:
                self._ending, self._detail = "failed", str(chunk["error"]["code"])
            elif chunk.get("usage"):
                self._tokens = int(chunk["usage"]["completion_tokens"])
            for choice in chunk.get("choices", ()):
                if choice["index"] == 0:
                    self._said += choice.get("token_ids") or ()

    def outcome(self, request_id: str, kind: str, status: int, *, is_continuation: bool = False) -> Outcome:
        said = tuple(self._said)
        return Outcome(
            request_id, kind, self._ending, status, self._tokens, self._detail, self._handoff, is_continuation, said
        )


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str]]:
    name = "message"
    async for raw in answer.content:
        line = raw.decode().rstrip("\r\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, line.removeprefix("data: ")
            name = "message"


def _whole(
    kind: str, request_id: str, status: int, body: bytes, headers: Any, *, is_continuation: bool = False
) -> Outcome:
    try:
        decoded = json.loads(body)
        if status == 200:
            tokens = int(decoded["usage"]["completion_tokens"])
            said = tuple(decoded["choices"][0].get("token_ids") or ())
            return Outcome(request_id, kind, "finished", 200, tokens, is_continuation=is_continuation, said=said)
        if status == 202:
            return Outcome(request_id, kind, "moved", 202, handoff=decoded, is_continuation=is_continuation)
        error = decoded["error"]
        if set(error) != {"message", "type", "param", "code"}:
            raise ValueError("not OpenAI's error")
    except (ValueError, KeyError, TypeError) as reason:
        return Outcome(request_id, kind, "cut", status, detail=f"{status} {reason}: {body[:100]!r}")
    # A grammar fails a request that was begun: once wrong numbers were said that do not fit it, say.
    ending = "failed" if status >= 500 or error["code"] == "grammar_failed" else "invalid"
    if headers.get("X-Fleet-Refused") not in (None, *FAILED_BEFORE_ITS_ANSWER):
        ending = "refused"
    return Outcome(request_id, kind, ending, status, detail=str(error["code"]), is_continuation=is_continuation)
