"""Sends the workload to an OpenAI-compatible server, so many requests at once, and notes when text arrives."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence

import aiohttp

from engine.bench.figures import Figures, RequestTiming, figures_of
from engine.bench.workload import BenchRequest

REQUEST_TIMEOUT_S = 900.0


class IncompleteAnswerError(RuntimeError):
    """A server did not give what was asked for."""


async def run_http_load(
    url: str, model: str, requests: Sequence[BenchRequest], concurrency: int, limit_s: float = math.inf
) -> Figures:
    """Figures of one run; no request is sent after `limit_s`, those sent are answered to the end.

    Raises IncompleteAnswerError when any answer is not whole: a fast wrong server is no server.
    """
    waiting = iter(requests)
    answers: list[RequestTiming] = []
    async with client_session() as session:

        async def client() -> None:
            for request in waiting:
                try:
                    answers.append(await ask(session, url, model, request))
                except (aiohttp.ClientError, TimeoutError) as error:
                    raise IncompleteAnswerError(f"{url}: {type(error).__name__}: {error}") from error
                if time.perf_counter() - started > limit_s:
                    return

        started = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as clients:  # one that fails ends the others
                for _ in range(concurrency):
                    clients.create_task(client())
        except* IncompleteAnswerError as failed:
            raise IncompleteAnswerError(str(failed.exceptions[0])) from failed
        return figures_of(answers, time.perf_counter() - started)


def client_session() -> aiohttp.ClientSession:
    """A connection for each request: servers differ in how long they keep one that is idle."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True))


async def ask(session: aiohttp.ClientSession, url: str, model: str, request: BenchRequest) -> RequestTiming:
    """Sends one request and reads its answer. Raises IncompleteAnswerError, aiohttp.ClientError, TimeoutError."""
    body = {
        "model": model,
        "prompt": list(request.prompt),
        "max_tokens": request.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_at, times, tokens = time.perf_counter(), [], None
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise IncompleteAnswerError(f"{url}: HTTP {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            arrived = time.perf_counter()
            event = json.loads(line[6:])
            if any(choice.get("text") for choice in event.get("choices", ())):
                times.append(arrived)
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    if tokens != request.output_tokens or not times:
        raise IncompleteAnswerError(
            f"{url}: {tokens} tokens in {len(times)} pieces came, {request.output_tokens} were asked for"
        )
    return RequestTiming(sent_at, tuple(times), request.output_tokens)
