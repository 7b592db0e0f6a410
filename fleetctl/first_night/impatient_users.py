"""Users who hang up when their answer takes too long, and ask for the same again: no request of theirs is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import aiohttp

from fleetctl.load.client import is_set_within
from fleetctl.load.prompt import prompt_text
from fleetctl.load.shape import RequestShape

HUNG_UP = "hung_up"  # why their requests ended
CHAT_PATH = "/v1/chat/completions"
CONNECT_TIMEOUT_S = 5.0


class ImpatientUsers:
    """Sends shapes as streams, each cut after `patience_s`, and again up to `tries` times."""

    def __init__(self, url: str, model: str, patience_s: float, tries: int, chars_per_token: float) -> None:
        self._url, self._model = url.rstrip("/") + CHAT_PATH, model
        self._patience_s, self._tries, self._chars_per_token = patience_s, tries, chars_per_token
        self.ended: list[tuple[float, float, bool]] = []  # sent and ended (Unix seconds), whether the user hung up

    async def send_until(self, shapes: Iterable[RequestShape], stop: asyncio.Event) -> None:
        """Each shape at its time, until `stop`; then wait for what is in flight, which nobody asks for again."""
        began = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            for number, shape in enumerate(shapes):
                if await is_set_within(stop, began + shape.at_s - time.monotonic()):
                    break
                task = asyncio.create_task(self._ask(session, shape, number, stop))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, session: aiohttp.ClientSession, shape: RequestShape, number: int, stop: asyncio.Event) -> None:
        for _ in range(self._tries):
            sent_at = time.time()
            hung_up = not await self._answered(session, shape, number)
            self.ended.append((sent_at, time.time(), hung_up))
            if not hung_up or stop.is_set():
                return

    async def _answered(self, session: aiohttp.ClientSession, shape: RequestShape, number: int) -> bool:
        """Whether the whole answer, or a refusal, came in time."""
        body = {
            "model": self._model,
            "messages": [
                {
                    "role": "user",
                    "content": prompt_text(shape, salt=-number, chars_per_token=self._chars_per_token),
                }
            ],
            "max_tokens": shape.output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            async with asyncio.timeout(self._patience_s), session.post(self._url, json=body) as response:
                await response.read()
        except TimeoutError:
            return False
        except aiohttp.ClientError:
            await asyncio.sleep(0.2)
            return False
        return True
