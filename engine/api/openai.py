"""The public routes: completions, chat, models, tokenising."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.api import prepare
from engine.api.arrival import admitting, arrival_of
from engine.api.body import check_api_key, parse_body
from engine.api.errors import ApiError, from_refusal, from_too_long
from engine.api.respond import FlightResponse
from engine.api.schema import MAX_DEADLINE_S, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from engine.api.text_logprobs import shown
from engine.node.inflight import Ask, Kind
from engine.node.node import Node
from engine.node.refusal import RefusedError, TooLongError

DEADLINE_HEADER = "X-Fleet-Deadline-S"

B = TypeVar("B", bound=BaseModel)


def routes() -> list[Route]:
    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{model:path}", model, methods=["GET"]),  # names may hold slashes
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


async def models(request: Request) -> Response:
    check_api_key(request)
    node: Node = request.app.state.node
    entries = [_model(node, name) for name in node.config.served_model_names]
    return JSONResponse({"object": "list", "data": entries})


async def model(request: Request) -> Response:
    check_api_key(request)
    node: Node = request.app.state.node
    return JSONResponse(_model(node, prepare.check_model(node, request.path_params["model"])))


def _model(node: Node, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": int(node.started_at),
        "owned_by": "engine",
        "max_model_len": node.max_sequence_tokens,
    }


async def completions(request: Request) -> Response:
    return await _generate(request, "completion", CompletionBody, prepare.completion_ask)


async def chat_completions(request: Request) -> Response:
    return await _generate(request, "chat", ChatBody, prepare.chat_ask)


async def _generate(
    request: Request, kind: Kind, schema: type[B], to_ask: Callable[[Node, B, str], Awaitable[Ask]]
) -> Response:
    node: Node = request.app.state.node
    arrival = arrival_of(request, kind)
    with admitting(node, arrival):
        check_api_key(request)
        body = await parse_body(request, schema)
        try:
            node.check_admission()  # before the work of tokenising
            ask = await to_ask(node, body, request.state.request_id)
            if (deadline_s := deadline_of(request)) is not None:
                ask = msgspec.structs.replace(ask, deadline_s=min(deadline_s, ask.deadline_s or deadline_s))
            flight = node.admit(ask, arrival=arrival, accepts_handoff=accepts_handoff(request))
        except RefusedError as exc:
            raise from_refusal(exc) from exc
        except TooLongError as exc:
            raise from_too_long(exc, "messages" if kind == "chat" else "prompt") from exc
    return FlightResponse(node, flight)


def accepts_handoff(request: Request) -> bool:
    return request.headers.get("X-Fleet-Handoff", "").strip().lower() == "accept"


def deadline_of(request: Request) -> float | None:
    """Seconds that the client gives us by header. Raises ApiError."""
    text = request.headers.get(DEADLINE_HEADER)
    if text is None:
        return None
    try:
        deadline_s = float(text)
    except ValueError:
        deadline_s = math.nan
    if not 0 < deadline_s <= MAX_DEADLINE_S:
        message = f"{DEADLINE_HEADER}: must be seconds, above 0 and at most {MAX_DEADLINE_S}"
        raise ApiError(400, message, param=DEADLINE_HEADER, code="invalid_value")
    return deadline_s


async def tokenize(request: Request) -> Response:
    check_api_key(request)
    node: Node = request.app.state.node
    body = await parse_body(request, TokenizeBody)
    try:
        token_ids = await prepare.tokenize(node, body)
    except TooLongError as exc:
        raise from_too_long(exc, "prompt" if body.messages is None else "messages") from exc
    answer = {"count": len(token_ids), "max_model_len": node.max_sequence_tokens, "tokens": token_ids}
    if body.return_token_strs:
        answer["token_strs"] = [shown(node.tokenizer.piece(token_id)) for token_id in token_ids]
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def detokenize(request: Request) -> Response:
    check_api_key(request)
    node: Node = request.app.state.node
    body = await parse_body(request, DetokenizeBody)
    prepare.check_model(node, body.model)
    return JSONResponse({"prompt": await prepare.detokenize(node, body.tokens)})
