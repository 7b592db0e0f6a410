"""The way in that all routes share whose work goes to the core: counted, read, checked, prepared, held."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from starlette.requests import Request

from engine.api import prepare
from engine.api.arrival import admitting, arrival_of, arriving
from engine.api.body import check_api_key, parse_body
from engine.api.continuation import progress_lines
from engine.api.deadline import deadline_of
from engine.api.errors import ApiError, from_refusal, from_too_long
from engine.api.schema import WorkBody
from engine.node.admission import Admission
from engine.node.generation_request import GenerationRequest, Kind
from engine.node.inflight import InflightRequest
from engine.node.refusal import RefusedError, TooLongError
from engine.node.request_record import Arrival
from engine.node.request_registry import RequestRegistry
from engine.node.served_model import ServedModel
from engine.node.stream_progress import ProgressLines

B = TypeVar("B", bound=WorkBody)
Prepared = Callable[[ServedModel, B, Arrival], Awaitable[GenerationRequest]]


class Entry:
    """`take` a request in; whoever calls it writes the answer."""

    def __init__(self, model: ServedModel, admission: Admission, requests: RequestRegistry) -> None:
        self.model = model
        self.requests = requests
        self._admission = admission

    async def take(
        self,
        request: Request,
        kind: Kind,
        schema: type[B],
        prepared: Prepared[B],
        *,
        text_field: str,
    ) -> tuple[InflightRequest, B]:
        """Held, with its body. `text_field`: where a text that is too long stands.

        Raises ApiError.
        """
        arrival = arrival_of(request, kind)
        with admitting(self._admission, arrival) as held:
            check_api_key(request)
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(arriving(self._admission, arrival))
                body = await parse_body(request, schema)
                if held.rename(request, body.request_id):
                    arrival = held.arrival
                    await stack.enter_async_context(arriving(self._admission, arrival))
                self._check_task(kind)
                try:
                    self._admission.check(request_id=arrival.request_id)  # before the work of tokenising
                    wanted = await prepared(self.model, body, arrival)
                    if (deadline_s := deadline_of(request)) is not None:
                        wanted = prepare.with_deadline(wanted, deadline_s)
                    lines = lines_of(request, wanted)
                    inflight = self._admission.admit(
                        wanted, arrival=arrival, accepts_handoff=accepts_handoff(request, wanted, lines), lines=lines
                    )
                except RefusedError as exc:
                    raise from_refusal(exc) from exc
                except TooLongError as exc:
                    raise from_too_long(exc, text_field) from exc
        return inflight, body

    def _check_task(self, kind: Kind) -> None:
        pooling = self.model.pooling
        if (kind in POOLED) == (pooling is not None):
            return
        if pooling is None:
            message = (
                "this node generates text: for vectors start a node with `--task embed`, or serve a model for them"
            )
        else:
            own = ("embeddings", "score", "rerank") if pooling.task == "embed" else ("score", "rerank")
            answered = ", ".join(f"/v1/{name}" for name in own)
            message = f"this node does not generate (--task {pooling.task}): it answers {answered}"
        raise ApiError(400, message, param="model", code="task_not_served")


POOLED = frozenset({"embedding", "score"})


def lines_of(request: Request, wanted: GenerationRequest) -> ProgressLines | None:
    """What tells the caller of each event of the stream; None: nothing does."""
    return progress_lines(request) if wanted.stream and _moves(wanted) else None


def accepts_handoff(request: Request, wanted: GenerationRequest, lines: ProgressLines | None) -> bool:
    """Whether the caller takes a hand-off object instead of the rest of the answer, and it can be made."""
    if request.headers.get("X-Fleet-Handoff", "").strip().lower() != "accept" or not _moves(wanted):
        return False
    return wanted.kind != "response" or not wanted.stream or lines is not None


def _moves(wanted: GenerationRequest) -> bool:
    """Whether another node could go on with it.

    A vector is there at once or not at all: its texts begin anew elsewhere. A response's last events repeat the log
    probabilities of all its tokens, which no line tells.
    """
    if wanted.kind == "response":
        return wanted.sampling.num_logprobs is None
    return wanted.kind not in POOLED
