"""`/v1/responses`: a chat in OpenAI's newer form. Nothing is stored."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.api.body import check_api_key
from engine.api.chunks import event
from engine.api.continuation import VERSION, Continuation
from engine.api.entry import Entry
from engine.api.errors import ApiError
from engine.api.prepare_responses import response_request
from engine.api.respond import HANDOFF_EVENT, GenerationResponse
from engine.api.responses import ResponseEvents, whole_response
from engine.api.schema_responses import ResponsesBody
from engine.api.text_logprobs import TokenTexts
from engine.node.choice import ChoiceDelta
from engine.node.inflight import Fate, InflightRequest
from engine.node.request_registry import RequestRegistry
from engine.node.stream_progress import ProgressLines, ResolvedRequest
from engine.text.tokenizer import Tokenizer


class ResponsesRoutes:
    """What clients of `responses` use."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def routes(self) -> list[Route]:
        """For the application."""
        return [
            Route("/v1/responses", self.create, methods=["POST"]),
            Route("/v1/responses/{id}", self.find, methods=["GET", "DELETE"]),
        ]

    async def create(self, request: Request) -> Response:
        """A stream of events, or the whole response."""
        entry = self._entry
        inflight, body = await entry.take(request, "response", ResponsesBody, response_request, text_field="input")
        return ResponsesResponse(entry.requests, entry.model.tokenizer, inflight, body)

    async def find(self, request: Request) -> Response:
        """Always 404."""
        check_api_key(request)
        message = f"no response {request.path_params['id'][:64]!r}: this node keeps none"
        raise ApiError(404, message, code="response_not_found", param="id")


class ResponsesResponse(GenerationResponse):
    """The answer, in events or whole. `told`: the lines of what other nodes sent of it."""

    def __init__(
        self,
        requests: RequestRegistry,
        tokenizer: Tokenizer,
        inflight: InflightRequest,
        body: ResponsesBody,
        told: str = "",
    ) -> None:
        super().__init__(requests, tokenizer, inflight)
        self._texts = TokenTexts.of(inflight.request, tokenizer)
        self._events = ResponseEvents(inflight, body, self._texts)
        self._asked = body
        self._told = told

    def opening(self) -> bytes:
        """Events that another node had no time for."""
        return self._events.resume(self._told) if self._told else b""

    def delta_events(self, delta: ChoiceDelta) -> bytes:
        """Of one delta."""
        return self._events.of(delta)

    def tail(self) -> bytes:
        """The last events, or the hand-off."""
        if self.inflight.outcome is Fate.MOVED:
            return event(self.handoff(), HANDOFF_EVENT)
        return self._events.end()

    def whole_answer(self) -> bytes:
        """The response."""
        return msgspec.json.encode(whole_response(self.inflight, self._asked, self._texts))

    def handoff(self) -> Continuation:
        """As the gateway would write it if this node had died: tokens that no event covers are drawn again."""
        inflight = self.inflight
        lines = self._events.lines
        if not inflight.request.stream:
            covered = ProgressLines()
            covered.hold(0, inflight.choices[0].output_token_ids)
            lines = covered.line(0).decode()
        return Continuation(
            version=VERSION,
            request_id=inflight.request.request_id,
            path="/v1/responses",
            request=msgspec.Raw(self._asked.model_dump_json(by_alias=True, exclude_unset=True).encode()),
            resolved=ResolvedRequest.of(inflight.request),
            progress=lines,
            elapsed_s=time.monotonic() - inflight.arrived_at + inflight.elapsed_before_s,
        )
