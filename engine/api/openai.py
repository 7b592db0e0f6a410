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
from engine.api.arrival import admitting, arrival_of, arriving
from engine.api.body import check_api_key, parse_body
from engine.api.continuation import progress_lines
from engine.api.errors import ApiError, from_refusal, from_too_long
from engine.api.respond import GenerationResponse
from engine.api.schema import MAX_DEADLINE_S, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from engine.api.text_logprobs import shown
from engine.node.admission import Admission
from engine.node.generation_request import GenerationRequest, Kind
from engine.node.refusal import RefusedError, TooLongError
from engine.node.request_record import Arrival
from engine.node.request_registry import RequestRegistry
from engine.node.served_model import ServedModel

DEADLINE_HEADER = "X-Fleet-Deadline-S"

B = TypeVar("B", bound=BaseModel)


class OpenAIRoutes:
    """What clients use. `started_at` in unix seconds: the model's `created`."""

    def __init__(
        self, *, model: ServedModel, admission: Admission, requests: RequestRegistry, started_at: float
    ) -> None:
        self._model = model
        self._admission = admission
        self._requests = requests
        self._started_at = started_at

    def routes(self) -> list[Route]:
        """For the application."""
        return [
            Route("/v1/models", self.list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.show_model, methods=["GET"]),  # names may hold slashes
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        ]

    async def list_models(self, request: Request) -> Response:
        """Every name that the one model of this node answers to."""
        check_api_key(request)
        return JSONResponse({"object": "list", "data": [self._entry(name) for name in self._model.names]})

    async def show_model(self, request: Request) -> Response:
        """One name; 404 for another."""
        check_api_key(request)
        return JSONResponse(self._entry(prepare.check_model(self._model, request.path_params["model"])))

    def _entry(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": int(self._started_at),
            "owned_by": "engine",
            "max_model_len": self._model.max_sequence_tokens,
        }

    async def completions(self, request: Request) -> Response:
        """A stream or a whole answer, as the body asks."""
        return await self._generate(request, "completion", CompletionBody, prepare.completion_request)

    async def chat_completions(self, request: Request) -> Response:
        """A stream or a whole answer, as the body asks."""
        return await self._generate(request, "chat", ChatBody, prepare.chat_request)

    async def _generate(
        self,
        request: Request,
        kind: Kind,
        schema: type[B],
        prepared: Callable[[ServedModel, B, Arrival], Awaitable[GenerationRequest]],
    ) -> Response:
        arrival = arrival_of(request, kind)
        with admitting(self._admission, arrival):
            check_api_key(request)
            async with arriving(self._admission, arrival):
                body = await parse_body(request, schema)
                try:
                    self._admission.check(request_id=arrival.request_id)  # before the work of tokenising
                    wanted = await prepared(self._model, body, arrival)
                    if (deadline_s := deadline_of(request)) is not None:
                        wanted = prepare.with_deadline(wanted, deadline_s)
                    inflight = self._admission.admit(
                        wanted,
                        arrival=arrival,
                        accepts_handoff=accepts_handoff(request),
                        lines=progress_lines(request) if wanted.stream else None,
                    )
                except RefusedError as exc:
                    raise from_refusal(exc) from exc
                except TooLongError as exc:
                    raise from_too_long(exc, "messages" if kind == "chat" else "prompt") from exc
        return GenerationResponse(self._requests, self._model.tokenizer, inflight)

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a prompt or of a rendered chat."""
        check_api_key(request)
        body = await parse_body(request, TokenizeBody)
        try:
            token_ids = await prepare.tokenize(self._model, body)
        except TooLongError as exc:
            raise from_too_long(exc, "prompt" if body.messages is None else "messages") from exc
        answer = {"count": len(token_ids), "max_model_len": self._model.max_sequence_tokens, "tokens": token_ids}
        if body.return_token_strs:
            answer["token_strs"] = [shown(self._model.tokenizer.piece(token_id)) for token_id in token_ids]
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        check_api_key(request)
        body = await parse_body(request, DetokenizeBody)
        prepare.check_model(self._model, body.model)
        return JSONResponse({"prompt": await prepare.detokenize(self._model, body.tokens)})


def accepts_handoff(request: Request) -> bool:
    """Whether the caller takes a hand-off object instead of the rest of the answer."""
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
