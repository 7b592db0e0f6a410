"""The public routes: completions, chat, models, tokenising."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.api import prepare
from engine.api.body import check_api_key, parse_body
from engine.api.entry import Entry
from engine.api.errors import from_too_long
from engine.api.respond import GenerationResponse
from engine.api.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from engine.api.text_logprobs import shown
from engine.node.inflight import InflightRequest
from engine.node.refusal import TooLongError


class OpenAIRoutes:
    """What clients use. `started_at` in unix seconds: the model's `created`."""

    def __init__(self, entry: Entry, *, started_at: float) -> None:
        self._entry = entry
        self._model = entry.model
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
        return JSONResponse({"object": "list", "data": [self._listed(name) for name in self._model.names]})

    async def show_model(self, request: Request) -> Response:
        """One name; 404 for another."""
        check_api_key(request)
        return JSONResponse(self._listed(prepare.check_model(self._model, request.path_params["model"])))

    def _listed(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": int(self._started_at),
            "owned_by": "engine",
            "max_model_len": self._model.max_sequence_tokens,
        }

    async def completions(self, request: Request) -> Response:
        """A stream or a whole answer, as the body asks."""
        take = self._entry.take
        inflight, _ = await take(request, "completion", CompletionBody, prepare.completion_request, text_field="prompt")
        return self._answer(inflight)

    async def chat_completions(self, request: Request) -> Response:
        """A stream or a whole answer, as the body asks."""
        inflight, _ = await self._entry.take(request, "chat", ChatBody, prepare.chat_request, text_field="messages")
        return self._answer(inflight)

    def _answer(self, inflight: InflightRequest) -> Response:
        return GenerationResponse(self._entry.requests, self._model.tokenizer, inflight)

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
