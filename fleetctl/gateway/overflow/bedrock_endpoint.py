"""Amazon Bedrock: Converse and ConverseStream, signed with AWS's own library.

botocore alone (the extra `bedrock`): its signer, its decoder of event streams and its chain of credentials
(environment, files, roles of the machine) are the ones that AWS keeps; the request itself goes through our own
session. It is imported when the first endpoint of this kind is opened.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from fleetctl.gateway.http.answers import read_retry_after_s
from fleetctl.gateway.overflow.converse import ChunkWriter, chat_completion, converse_body
from fleetctl.gateway.overflow.openai_endpoint import post, read_whole
from fleetctl.gateway.overflow.outside import (
    NotExpressibleError,
    OutsideAnswer,
    OutsideError,
    OutsideRequest,
    Usage,
    max_input_tokens,
    wants_usage,
)
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.overflow import OverflowEndpoint, OverflowModel

CHAT_PATH = "/v1/chat/completions"
SERVICE = "bedrock"
EVENT_STREAM = "application/vnd.amazon.eventstream"


def outside_request(
    path: str, body: dict[str, Any], endpoint: OverflowEndpoint, model: OverflowModel
) -> OutsideRequest:
    """The request as it goes out. Raises NotExpressibleError."""
    if path != CHAT_PATH:
        raise NotExpressibleError("a plain completion")
    sent = converse_body(body, endpoint.default_max_tokens)
    is_stream = body.get("stream") is True
    encoded = json.dumps(sent, separators=(",", ":")).encode()
    operation = "converse-stream" if is_stream else "converse"
    target = f"/model/{quote(model.outside_model, safe='')}/{operation}"
    limit = sent["inferenceConfig"]["maxTokens"]
    return OutsideRequest(target, encoded, is_stream, max_input_tokens(encoded), limit, wants_usage(body))


class AwsSigner:
    """Signs requests with Signature Version 4. Threading: `headers` may block for credentials of a role."""

    def __init__(self, region: str) -> None:
        """Raises BadInputError when botocore is not installed."""
        try:
            from botocore.auth import SigV4Auth
            from botocore.session import Session
        except ImportError as error:
            raise BadInputError(
                "gateway.overflow: kind bedrock needs botocore", remedy="pip install 'llm-fleetctl[bedrock]'"
            ) from error
        self._region = region
        self._make_auth = SigV4Auth
        self._session = Session()

    def headers(self, url: str, body: bytes, headers: dict[str, str]) -> dict[str, str]:
        """The headers with those that sign them. Raises BadInputError when there are no credentials."""
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        try:
            credentials = self._session.get_credentials()
            frozen = None if credentials is None else credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise BadInputError(f"AWS credentials: {type(error).__name__}") from error
        if frozen is None:
            raise BadInputError(
                "AWS credentials: there are none", remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role"
            )
        request = AWSRequest(method="POST", url=url, data=body, headers=headers)
        self._make_auth(frozen, SERVICE, self._region).add_auth(request)
        return dict(request.headers.items())


async def send(
    session: aiohttp.ClientSession,
    endpoint: OverflowEndpoint,
    request: OutsideRequest,
    signer: AwsSigner,
    answer_id: str,
    model: str,
) -> OutsideAnswer:
    """The endpoint's answer, once its head is there. Raises OutsideError, BadInputError (no credentials)."""
    base = endpoint.url or f"https://bedrock-runtime.{endpoint.region}.amazonaws.com"
    url = base.rstrip("/") + request.target
    accept = EVENT_STREAM if request.is_stream else "application/json"
    headers = {"Content-Type": "application/json", "Accept": accept}
    signed = await asyncio.to_thread(signer.headers, url, request.body, headers)
    response = await post(session, URL(url, encoded=True), request.body, signed, endpoint)
    return _BedrockAnswer(response, request, answer_id, model)


class _BedrockAnswer(OutsideAnswer):
    def __init__(self, response: aiohttp.ClientResponse, request: OutsideRequest, answer_id: str, model: str) -> None:
        is_stream = response.status == 200 and request.is_stream
        content_type = "text/event-stream" if is_stream else "application/json"
        super().__init__(response.status, content_type, read_retry_after_s(response.headers.get("Retry-After")))
        self._response = response
        self._wants_usage = request.wants_usage
        self._answer_id, self._model = answer_id, model

    async def events(self) -> AsyncGenerator[bytes, None]:
        """See OutsideAnswer."""
        from botocore.eventstream import EventStreamBuffer, ParserError

        writer = ChunkWriter(
            answer_id=self._answer_id, model=self._model, created=int(time.time()), wants_usage=self._wants_usage
        )
        buffer = EventStreamBuffer()
        has_ended = False
        try:
            while part := await self._response.content.readany():
                buffer.add_data(part)
                for kind, event in _messages(buffer):
                    has_ended = has_ended or kind == "messageStop"
                    if chunks := b"".join(writer.chunks(kind, event)):
                        yield chunks
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, ParserError) as error:
            raise OutsideError(f"its stream was cut ({type(error).__name__})", was_sent=True) from error
        finally:
            self.usage = writer.usage
        if not has_ended:
            raise OutsideError("its stream ended early", was_sent=True)
        yield b"".join(writer.last())

    async def whole(self) -> bytes:
        """See OutsideAnswer."""
        body = await read_whole(self._response)
        if self.status != 200:
            return body
        try:
            value = chat_completion(
                json.loads(body), answer_id=self._answer_id, model=self._model, created=int(time.time())
            )
        except (ValueError, RecursionError) as error:
            raise OutsideError("its answer is no Converse answer", was_sent=True) from error
        self.usage = Usage(value["usage"]["prompt_tokens"], value["usage"]["completion_tokens"])
        return json.dumps(value).encode()

    def close(self) -> None:
        """See OutsideAnswer."""
        self._response.release()


def _messages(buffer: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and payload of each event. Raises OutsideError for one that says that the stream failed."""
    for message in buffer:
        headers = message.headers
        if headers.get(":message-type") != "event":
            reason = headers.get(":exception-type") or headers.get(":error-code") or "error"
            raise OutsideError(f"its stream failed ({reason})", was_sent=True)
        value = json.loads(message.payload)
        if not isinstance(value, dict):
            raise ValueError("payload")
        yield str(headers.get(":event-type")), value
