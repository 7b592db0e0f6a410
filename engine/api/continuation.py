"""Going on with a stream whose node died: the gateway's account of it, read again as a request and its progress.

The gateway has the client's body, what the first node said of it (`ResolvedRequest`) and the progress lines of all that
it passed on. Nothing of the dead node is needed. Preparing the body again and replaying the tokens gives the state that
the dead node had after the last event that the client got.

A node hands `/v1/responses` off in this form too, whole ones as well: their object repeats the client's body.
"""

from __future__ import annotations

import hmac
import json
from typing import Literal

import msgspec
from starlette.requests import Request

from engine.api import prepare
from engine.api.body import as_schema
from engine.api.errors import ApiError
from engine.api.prepare_responses import response_request
from engine.api.schema import ChatBody, CompletionBody
from engine.api.schema_responses import ResponsesBody
from engine.config import NodeConfig
from engine.node.generation_request import GenerationRequest, Kind
from engine.node.request_record import Arrival
from engine.node.served_model import ServedModel
from engine.node.stream_progress import (
    CoveredTokens,
    ProgressLines,
    ResolvedRequest,
    prompt_digest,
    read_progress,
)
from engine.protocol.request_id import REQUEST_ID

VERSION: Literal[2] = 2
PROGRESS_HEADER = "X-Fleet-Progress"


class Continuation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object that crosses. `request` is the client's body as it was sent."""

    version: int
    request_id: str
    path: Literal["/v1/completions", "/v1/chat/completions", "/v1/responses"]
    request: msgspec.Raw
    resolved: ResolvedRequest
    progress: str
    elapsed_s: float  # since the request came in first

    @property
    def kind(self) -> Kind:
        """Of the route that the client asked."""
        return _KINDS[self.path]

    @property
    def response_body(self) -> ResponsesBody:
        """Of a request to `/v1/responses`. Raises ApiError 400."""
        return as_schema(bytes(self.request), ResponsesBody)


_KINDS: dict[str, Kind] = {"/v1/completions": "completion", "/v1/chat/completions": "chat", "/v1/responses": "response"}
_decoder = msgspec.json.Decoder(Continuation)


def read_continuation(body: bytes) -> Continuation:
    """Raises ApiError 400."""
    try:
        found = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ApiError(400, f"not a continuation: {exc}", code="bad_handoff") from exc
    if not REQUEST_ID.fullmatch(found.request_id) or not found.elapsed_s >= 0:
        raise ApiError(400, "not a continuation: bad request_id or elapsed_s", code="bad_handoff")
    return found


async def prepare_continuation(
    model: ServedModel, continuation: Continuation, arrival: Arrival, left_s: float | None
) -> tuple[GenerationRequest, list[CoveredTokens]]:
    """The request as the first node had it, and how far it has come. `left_s`: what is left of its caller's deadline.

    Raises ApiError (409: it can't be continued here), TooLongError, RefusedError.
    """
    source = bytes(continuation.request)
    if continuation.kind == "completion":
        request = await prepare.completion_request(model, as_schema(source, CompletionBody), arrival)
    elif continuation.kind == "response":
        request = await response_request(model, continuation.response_body, arrival)
    else:
        request = await prepare.chat_request(model, as_schema(source, ChatBody), arrival)
    resolved = continuation.resolved
    if resolved.model not in model.names:
        raise ApiError(409, f"the model `{resolved.model}` is not served here", code="model_not_found")
    if prompt_digest(request.prompts) != resolved.prompt_digest:
        raise ApiError(409, "can't be continued here: its prompt has other tokens here", code="replay_differs")
    request = resolved.apply(request)
    if left_s is not None:
        request = prepare.with_deadline(request, continuation.elapsed_s + left_s)
    if not request.stream and continuation.kind != "response":
        raise ApiError(400, "not a continuation: only a stream has progress", code="bad_handoff")
    try:
        covered = read_progress(continuation.progress, request.n * len(request.prompts))
    except ValueError as exc:
        raise ApiError(400, f"not a continuation: progress: {exc}", code="bad_handoff") from exc
    for choice in covered:
        _check_tokens(choice, request, model.facts.vocab_size)
    return request, covered


def _check_tokens(choice: CoveredTokens, request: GenerationRequest, vocab_size: int) -> None:
    name = f"not a continuation: progress of choice {choice.index}"
    if len(choice.token_ids) > request.sampling.max_tokens:
        raise ApiError(400, f"{name}: more tokens than max_tokens", code="bad_handoff")
    if choice.token_ids and max(choice.token_ids) >= vocab_size:
        raise ApiError(400, f"{name}: a token id is out of the vocabulary", code="bad_handoff")


def resolved_header(request: GenerationRequest) -> str:
    """The value of the answer's `X-Fleet-Progress`: what the caller gives to the node that continues."""
    return json.dumps(msgspec.to_builtins(ResolvedRequest.of(request)))


def progress_lines(request: Request) -> ProgressLines | None:
    """For callers that prove to know the admin token; to anybody else a stream looks as OpenAI's.

    The proof is an HMAC of the request id: the token itself does not travel with every request, nor to other engines.
    """
    given = request.headers.get(PROGRESS_HEADER)
    config: NodeConfig = request.app.state.config
    if given is None or config.admin_token is None:
        return None
    wanted = hmac.digest(config.admin_token.encode(), request.state.request_id.encode(), "sha256").hex()
    return ProgressLines() if hmac.compare_digest(given.encode(), wanted.encode()) else None
