"""The soak's users: requests whose answer is known from a quiet run, and one client that accounts for each of them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

COME_AGAIN = frozenset({409, 429, 503})  # said before anything was begun: the client comes again, as OpenAI's do
PATIENCE_S = 120.0
PAUSE_S = 0.3
STALL_S = 300.0  # a plain answer comes as a whole, and a starved machine takes minutes for it


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """One kind of request. Equal kinds have equal answers, on every node."""

    prompt: str
    max_tokens: int
    is_streamed: bool
    temperature: float
    seed: int

    def body(self, model: str) -> dict[str, Any]:
        """What is sent."""
        return {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "stream": self.is_streamed,
            "temperature": self.temperature,
            "seed": self.seed,
            "ignore_eos": True,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request in the end. `text` None: no whole answer; `problem` says why."""

    request_id: str
    text: str | None
    problem: str = ""
    attempts: int = 1
    longest_pause_s: float = 0.0


@dataclass(slots=True)
class Tally:
    """All requests of a soak."""

    finished: int = 0
    retried: int = 0  # came again after a refusal, or after their gateway was gone
    lost: list[Answer] = field(default_factory=list)
    changed: list[Answer] = field(default_factory=list)  # other text than in the quiet run: tokens changed or twice
    longest_pause_s: float = 0.0

    def note(self, answer: Answer, expected: str) -> None:
        """Count one answer."""
        self.retried += answer.attempts > 1
        self.longest_pause_s = max(self.longest_pause_s, answer.longest_pause_s)
        if answer.text is None:
            self.lost.append(answer)
        elif answer.text != expected:
            self.changed.append(answer)
        else:
            self.finished += 1


def make_requests(count: int, seed: int) -> list[SoakRequest]:
    """Streams and plain ones, greedy and seeded, short and long."""
    chance = random.Random(seed)
    return [
        SoakRequest(
            prompt=" ".join(f"word{chance.randrange(500)}" for _ in range(chance.choice((8, 40, 200)))),
            max_tokens=chance.choice((8, 40, 120, 300)),
            is_streamed=chance.random() < 0.7,
            temperature=chance.choice((0.0, 0.8)),
            seed=number,
        )
        for number in range(count)
    ]


class SoakClient:
    """Asks gateways as a careful client does: the same request id at the next gateway when one is gone."""

    def __init__(self, gateways: Sequence[str], model: str) -> None:
        self._gateways = gateways
        self._model = model
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(STALL_S, connect=5.0), limits=httpx.Limits(max_connections=None), trust_env=False
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(self, request: SoakRequest, request_id: str) -> Answer:
        """The request's end, whatever gateways do. Only a gateway that went away, or a refusal, is asked again."""
        deadline = time.monotonic() + PATIENCE_S
        attempts, problem = 0, ""
        while time.monotonic() < deadline:
            url = self._gateways[(hash(request_id) + attempts) % len(self._gateways)]
            attempts += 1
            try:
                answer = await self._ask_once(url, request, request_id, attempts)
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__} at {url}"
                if len(self._gateways) == 1:
                    break
            else:
                if answer is not None:
                    return answer
                problem = "refused for two minutes"
            await asyncio.sleep(PAUSE_S)
        return Answer(request_id, None, problem, attempts)

    async def fate(self, request_id: str) -> str:
        """What the first gateway that knows it says became of the request; "unknown" when none does."""
        for url in self._gateways:
            try:
                answer = await self._http.get(f"{url}/gateway/requests/{request_id}")
            except httpx.HTTPError:
                continue
            if answer.status_code == 200:
                return str(answer.json().get("fate"))
        return "unknown"

    async def _ask_once(self, url: str, request: SoakRequest, request_id: str, attempts: int) -> Answer | None:
        """None: it was told to come again. Raises httpx.HTTPError when the gateway went away."""
        body, headers = request.body(self._model), {"X-Request-Id": request_id}
        async with self._http.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as response:
            if response.status_code in COME_AGAIN:
                return None
            if response.status_code != 200:
                said = (await response.aread())[:300].decode("utf-8", "replace")
                return Answer(request_id, None, f"{response.status_code}: {said}", attempts)
            if not request.is_streamed:
                text = json.loads(await response.aread())["choices"][0]["text"]
                return Answer(request_id, text, attempts=attempts)
            return await _read_stream(response, request_id, attempts)


async def _read_stream(response: httpx.Response, request_id: str, attempts: int) -> Answer:
    parts: list[str] = []
    heard_at, longest_s, is_done = time.monotonic(), 0.0, False
    async for line in response.aiter_lines():
        now = time.monotonic()
        longest_s, heard_at = max(longest_s, now - heard_at), now
        if not line.startswith("data: "):
            continue
        if is_done:
            return Answer(request_id, None, "something came after [DONE]", attempts, longest_s)
        if line == "data: [DONE]":
            is_done = True
            continue
        event = json.loads(line[6:])
        if "error" in event:
            return Answer(request_id, None, f"error event: {event['error']}"[:300], attempts, longest_s)
        parts += [choice.get("text") or "" for choice in event.get("choices", ())]
    if not is_done:
        raise httpx.RemoteProtocolError("the stream ended without [DONE]")
    return Answer(request_id, "".join(parts), "", attempts, longest_s)
