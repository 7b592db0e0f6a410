"""One client that asks as a careful one does, and accounts for each request."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from fleetctl.gateway_soak.soak_request import SoakRequest
from fleetctl.gateway_soak.tally import Answer
from fleetctl.gateway_soak.told_answer import ToldAnswer
from fleetctl.kit.line_feed import lines_of

CONFLICT = 409
COME_AGAIN = frozenset({CONFLICT, 429, 503})  # said before anything was begun: the client comes again, as OpenAI's do
PATIENCE_S = 120.0
PAUSE_S = 0.3
STALL_S = 300.0  # a plain answer comes as a whole, and a starved machine takes minutes for it

WasKilled = Callable[[str, float], bool]
"""Whether the gateway of this URL was killed after that monotonic second, or a moment before it."""


class SoakClient:
    """Asks gateways: after a refusal again, and the same request id at the next gateway when one was killed."""

    def __init__(self, gateways: Sequence[str], model: str, was_killed: WasKilled = lambda url, since: False) -> None:
        self._gateways = gateways
        self._model = model
        self._was_killed = was_killed
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(STALL_S, connect=5.0), limits=httpx.Limits(max_connections=None), trust_env=False
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(self, request: SoakRequest, request_id: str) -> Answer:
        """The request's end, whatever gateways do. A connection that breaks is asked again only if we broke it."""
        began = time.monotonic()
        asked = _OpenRequest(request, request_id, began)
        problem = ""
        while time.monotonic() - began < PATIENCE_S:
            url = self._gateways[(zlib.crc32(request_id.encode()) + asked.number) % len(self._gateways)]
            asked.number += 1
            asked.url = url
            asked_at = time.monotonic()
            try:
                answer = await self._ask_once(asked)
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__} at {url}"
                if not self._was_killed(url, asked_at):
                    break
                if isinstance(error, httpx.ConnectError):
                    asked.unheard += 1
            else:
                if answer is not None:
                    return answer
                problem = "refused for two minutes"
            await asyncio.sleep(PAUSE_S)
        return asked.end(None, problem)

    async def _ask_once(self, asked: _OpenRequest) -> Answer | None:
        """None: it was told to come again. Raises httpx.HTTPError when the gateway went away."""
        request = asked.request
        async with self._http.stream(
            "POST",
            asked.url + request.path,
            json=request.body(self._model),
            headers={"X-Request-Id": asked.request_id},
        ) as response:
            if response.status_code in COME_AGAIN:
                asked.unheard += response.status_code == CONFLICT
                return None
            if response.status_code != httpx.codes.OK:
                said = (await response.aread())[:300].decode("utf-8", "replace")
                return asked.end(None, f"{response.status_code}: {said}")
            if request.is_streamed:
                return await _read_stream(response, asked)
            told = ToldAnswer()
            told.note_body(json.loads(await response.aread()))
            return asked.end(told.canonical())


class _OpenRequest:
    """A request on its way."""

    def __init__(self, request: SoakRequest, request_id: str, began: float) -> None:
        self.request = request
        self.request_id = request_id
        self.url = ""
        self.number = 0
        self.unheard = 0  # attempts that no gateway took up under this id
        self.longest_pause_s = 0.0
        self.ttft_s: float | None = None
        self._began = began

    def note_token(self, now: float) -> None:
        if self.ttft_s is None:
            self.ttft_s = now - self._began

    def end(self, told: str | None, problem: str = "") -> Answer:
        return Answer(
            self.request_id,
            told,
            problem,
            attempts=self.number,
            unheard=self.unheard,
            longest_pause_s=self.longest_pause_s,
            ttft_s=self.ttft_s,
            duration_s=time.monotonic() - self._began,
        )


async def _read_stream(response: httpx.Response, asked: _OpenRequest) -> Answer:
    told, is_done = ToldAnswer(), False
    heard_at = time.monotonic()
    async for line in lines_of(response):
        now = time.monotonic()
        asked.longest_pause_s, heard_at = max(asked.longest_pause_s, now - heard_at), now
        if not line.startswith("data: "):
            continue
        if is_done:
            return asked.end(None, "something came after [DONE]")
        if line == "data: [DONE]":
            is_done = True
            continue
        event = json.loads(line[6:])
        if "error" in event:
            return asked.end(None, f"error event: {event['error']}"[:300])
        if any(map(_has_text, event.get("choices") or ())):
            asked.note_token(now)
        told.note_body(event)
    if not is_done:
        raise httpx.RemoteProtocolError("the stream ended without [DONE]")
    return asked.end(told.canonical())


def _has_text(choice: dict[str, Any]) -> bool:
    return bool(choice.get("text") or (choice.get("delta") or {}).get("content"))
