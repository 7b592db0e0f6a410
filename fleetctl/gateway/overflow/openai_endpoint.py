"""An OpenAI-compatible service: the request goes out under its model's other name, the answer passes as it is."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
from yarl import URL

from fleetctl.gateway.http.answers import read_retry_after_s
from fleetctl.gateway.http.event_stream import EventStreamReader, EventTooLongError
from fleetctl.gateway.overflow.outside import (
    NotExpressibleError,
    OutsideAnswer,
    OutsideError,
    OutsideRequest,
    Usage,
    max_input_tokens,
    output_limit,
    refuse_unbounded,
    usage_of,
    wants_usage,
)
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.overflow import OverflowEndpoint, OverflowModel

MAX_ANSWER_BYTES = 64 * 1024 * 1024
PATHS = {"/v1/chat/completions": "/chat/completions", "/v1/completions": "/completions"}
OURS = ("deadline_s",)  # words of a body that only our nodes know


def outside_request(
    path: str, body: dict[str, Any], endpoint: OverflowEndpoint, model: OverflowModel
) -> OutsideRequest:
    """The request as it goes out. Raises NotExpressibleError."""
    refuse_unbounded(body)
    limit = output_limit(body)
    sent = {key: value for key, value in body.items() if key not in OURS} | {"model": model.outside_model}
    if limit is None:
        limit = sent["max_tokens"] = endpoint.default_max_tokens
    is_stream = body.get("stream") is True
    if is_stream:
        options = body.get("stream_options")
        sent["stream_options"] = (options if isinstance(options, dict) else {}) | {"include_usage": True}
    encoded = json.dumps(sent, separators=(",", ":")).encode()
    answers = _count(body, "n") * _num_prompts(body.get("prompt"))
    answers = max(answers, _count(body, "best_of") * _num_prompts(body.get("prompt")))
    return OutsideRequest(
        PATHS[path], encoded, is_stream, max_input_tokens(encoded), limit * answers, wants_usage(body) or not is_stream
    )


async def send(session: aiohttp.ClientSession, endpoint: OverflowEndpoint, request: OutsideRequest) -> OutsideAnswer:
    """The endpoint's answer, once its head is there. Raises OutsideError, BadInputError (no API key)."""
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream" if request.is_stream else "*/*"}
    if (key := await asyncio.to_thread(_api_key, endpoint)) is not None:
        headers["Authorization"] = f"Bearer {key}"
    assert endpoint.url is not None
    url = URL(endpoint.url.rstrip("/") + request.target, encoded=True)
    response = await post(session, url, request.body, headers, endpoint)
    return _OpenAIAnswer(response, request)


async def post(
    session: aiohttp.ClientSession, url: URL, body: bytes, headers: dict[str, str], endpoint: OverflowEndpoint
) -> aiohttp.ClientResponse:
    """The response to these bytes. Raises OutsideError without URL, headers or body in its message."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=endpoint.connect_limit_s, sock_read=endpoint.idle_limit_s)
    try:
        return await session.post(url, data=body, headers=headers, timeout=timeout, allow_redirects=False)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise OutsideError("no connection", was_sent=False) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise OutsideError(f"no answer ({type(error).__name__})", was_sent=True) from error


async def read_whole(response: aiohttp.ClientResponse) -> bytes:
    """The body of bounded size. Raises OutsideError."""
    parts: list[bytes] = []
    size = 0
    try:
        while part := await response.content.readany():
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise OutsideError("its answer is too long", was_sent=True)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise OutsideError(f"its answer was cut ({type(error).__name__})", was_sent=True) from error
    return b"".join(parts)


class _OpenAIAnswer(OutsideAnswer):
    def __init__(self, response: aiohttp.ClientResponse, request: OutsideRequest) -> None:
        super().__init__(
            response.status, response.content_type, read_retry_after_s(response.headers.get("Retry-After"))
        )
        self._response = response
        self._wants_usage = request.wants_usage

    async def events(self) -> AsyncGenerator[bytes, None]:
        """See OutsideAnswer. The event that tells usage alone is left out for a client that did not ask for it."""
        reader = EventStreamReader()
        try:
            while part := await self._response.content.readany():
                if whole := self._noted(reader.feed(part)):
                    yield whole
        except (aiohttp.ClientError, TimeoutError, OSError, EventTooLongError) as error:
            if not reader.is_done:
                raise OutsideError(f"its stream was cut ({type(error).__name__})", was_sent=True) from error
        if rest := reader.finish():
            yield rest
        if not reader.is_done:
            raise OutsideError("its stream ended early", was_sent=True)

    async def whole(self) -> bytes:
        """See OutsideAnswer."""
        body = await read_whole(self._response)
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        self.usage = usage_of(value.get("usage")) if isinstance(value, dict) else None
        return body

    def close(self) -> None:
        """See OutsideAnswer."""
        self._response.release()

    def _noted(self, events: bytes) -> bytes:
        if b'"usage"' not in events:
            return events
        kept = []
        for event in events.replace(b"\r\n", b"\n").split(b"\n\n"):
            value = _data_of(event)
            usage: Usage | None = usage_of(value.get("usage")) if value is not None else None
            if usage is not None:
                self.usage = usage
            is_usage_alone = usage is not None and value is not None and value.get("choices") == []
            if event and (self._wants_usage or not is_usage_alone):
                kept.append(event + b"\n\n")
        return b"".join(kept)


def _data_of(event: bytes) -> dict[str, Any] | None:
    if not event.startswith(b"data:") or b'"usage"' not in event:
        return None
    try:
        value = json.loads(event.removeprefix(b"data:"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _api_key(endpoint: OverflowEndpoint) -> str | None:
    """The key now; None where none is wanted. Raises BadInputError: never with what the key is."""
    if endpoint.api_key_env is not None:
        key = os.environ.get(endpoint.api_key_env, "").strip()
        where = f"${endpoint.api_key_env}"
    elif endpoint.api_key_file is not None:
        where = str(endpoint.api_key_file)
        try:
            key = endpoint.api_key_file.expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(f"{where}: {getattr(error, 'strerror', None) or 'not text'}") from error
    else:
        return None
    if not key.isascii() or not key.isprintable() or not key:
        raise BadInputError(f"{where}: no API key")
    return key


def _count(body: dict[str, Any], key: str) -> int:
    asked = body.get(key)
    if asked is None:
        return 1
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise NotExpressibleError(key)
    return asked


def _num_prompts(prompt: Any) -> int:
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
