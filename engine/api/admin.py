"""Guarded routes: drain, sleep, abort, limits, what is in flight, faults for drills, requests from other nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import msgspec
import structlog
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.api import continuation
from engine.api.arrival import admitting, arrival_of, arriving
from engine.api.body import check_token, parse_body, parse_query, read_body
from engine.api.constrain import check_continued
from engine.api.continuation import Continuation
from engine.api.deadline import deadline_of
from engine.api.entry import accepts_handoff, lines_of
from engine.api.errors import ApiError, from_refusal
from engine.api.handoff import HandoffState, handoff_version, read_handoff, write_handoff
from engine.api.respond import GenerationResponse
from engine.api.responses_routes import ResponsesResponse
from engine.api.schema import AbortBody, DrainBody, DrainQuery, ExportBody, FaultsBody, LimitsBody, SleepQuery
from engine.node.admission import Admission
from engine.node.choice import ReplayError
from engine.node.core_link import CoreLink
from engine.node.drain import DrainControl
from engine.node.faults import FaultControl
from engine.node.health import Reason
from engine.node.health_watch import HealthWatch
from engine.node.inflight import InflightRequest
from engine.node.limits import ContradictoryLimitsError, LimitsInForce
from engine.node.refusal import RefusedError, TooLongError
from engine.node.request_record import Arrival
from engine.node.request_registry import RequestRegistry
from engine.node.served_model import ServedModel
from engine.node.sleep import Sleeper, SleepRefusedError
from engine.protocol.messages import ResetPrefixCache

log = structlog.get_logger()

MAX_ADMIN_BYTES = 2 * 2**20
MAX_PROGRESS_BYTES = 16 * 2**20  # of a continuation, beside the client's own body
BLOCKS_WITHIN_S = 1.0  # a core in a long step answers after it

B = TypeVar("B", bound=BaseModel)


class AdminRoutes:
    """What the controller and operators use; all of it needs the admin token."""

    def __init__(
        self,
        *,
        model: ServedModel,
        core: CoreLink,
        requests: RequestRegistry,
        admission: Admission,
        drain: DrainControl,
        sleeper: Sleeper,
        health: HealthWatch,
        limits: LimitsInForce,
        faults: FaultControl | None,
    ) -> None:
        """`faults` None: the node was started without them."""
        self._model = model
        self._core = core
        self._requests = requests
        self._admission = admission
        self._drain = drain
        self._sleeper = sleeper
        self._health = health
        self._limits = limits
        self._faults = faults

    def routes(self) -> list[Route]:
        """For the application."""
        return [
            Route("/admin/drain", self.drain, methods=["GET", "POST"]),
            Route("/admin/resume", self.resume, methods=["POST"]),
            Route("/admin/sleep", self.sleep, methods=["GET", "POST"]),
            Route("/admin/wake_up", self.wake_up, methods=["POST"]),
            Route("/admin/requests", self.list_requests, methods=["GET"]),
            Route("/admin/kv", self.kv_blocks, methods=["GET"]),
            Route("/admin/abort", self.abort, methods=["POST"]),
            Route("/admin/export", self.export, methods=["POST"]),
            Route("/admin/limits", self.limits, methods=["GET", "POST"]),
            Route("/admin/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
            Route("/admin/faults", self.faults, methods=["GET", "POST"]),
            Route("/internal/continue", self.continue_request, methods=["POST"]),
        ]

    async def drain(self, request: Request) -> Response:
        """POST begins a drain or gives it a new deadline; both tell state and receipt. GET with `?requests=true` also
        tells each request that was held when it began, or refused since."""
        check_token(request)
        if request.method == "POST":
            self._drain.begin_drain((await _parse(request, DrainBody)).deadline_s)
        with_requests = request.method == "GET" and parse_query(request, DrainQuery).requests
        return self._drain_status(with_requests=with_requests)

    async def resume(self, request: Request) -> Response:
        """Back to serving."""
        check_token(request)
        self._drain.resume()
        return self._drain_status()

    def _drain_status(self, *, with_requests: bool = False) -> Response:
        running, waiting = self._requests.counts(self._core.running)
        status = self._drain.status(running=running, waiting=waiting)
        return JSONResponse(status | ({"requests": self._drain.requests()} if with_requests else {}))

    async def sleep(self, request: Request) -> Response:
        """POST falls asleep; `?level=1|2`, and `?drain=true&deadline=S` when requests may be served still."""
        check_token(request)
        if request.method == "POST":
            query = parse_query(request, SleepQuery)
            try:
                await self._sleeper.sleep(query.level, query.deadline if query.drain else None)
            except SleepRefusedError as exc:
                raise ApiError(409, str(exc), code=exc.code) from exc
        return JSONResponse(self._sleeper.status())

    async def wake_up(self, request: Request) -> Response:
        """Answers when the model's answer to the golden prompt is known: 503 when it is wrong."""
        check_token(request)
        try:
            status = await self._sleeper.wake()
        except SleepRefusedError as exc:
            raise ApiError(409 if exc.code == "busy" else 503, str(exc), code=exc.code) from exc
        reason = self._health.judge()
        if reason not in (Reason.READY, Reason.DRAINING):
            raise ApiError(503, f"awake, but not ready: {reason.value}; see /health/deep", code=reason.value)
        return JSONResponse(status | {"ready": reason is Reason.READY, "reason": reason.value})

    async def list_requests(self, request: Request) -> Response:
        """What is in flight, oldest first, and the ids of what is not taken in yet."""
        check_token(request)
        blocks = await self._core.blocks_held(BLOCKS_WITHIN_S) if self._requests.held else {}
        now = time.monotonic()
        held = sorted(self._requests.held, key=lambda inflight: inflight.arrived_at)
        answer: dict[str, object] = {
            "requests": [_describe(inflight, blocks, now) for inflight in held],
            "arriving": sorted(self._admission.arriving),
        }
        if blocks is None:
            answer["kv_blocks_unknown"] = "the core did not answer in time"
        return JSONResponse(answer)

    async def kv_blocks(self, request: Request) -> Response:
        """What the KV cache is used for."""
        check_token(request)
        told = await self._core.block_use(BLOCKS_WITHIN_S)
        if told is None:
            raise ApiError(503, "the core did not answer in time", code="core_silent")
        return JSONResponse(
            {
                "block_size": told.block_size,
                "num_blocks": told.num_blocks,
                "num_held": told.num_held,
                "num_shared": told.num_shared,
                "num_kept": told.num_kept,
                "num_kept_reused": told.num_kept_reused,
            }
        )

    async def abort(self, request: Request) -> Response:
        """Ends requests with an error event; null ends all. Ids that are not in flight are named, not an error."""
        check_token(request)
        wanted = (await _parse(request, AbortBody)).request_ids
        known = {name for f in self._requests.held if f.outcome is None for name in f.names}
        aborted = self._requests.abort(wanted)
        return JSONResponse({"aborted": aborted, "unknown": [i for i in wanted or () if i not in known]})

    async def export(self, request: Request) -> Response:
        """What another node needs to go on with these requests (`/internal/continue`): prompt, tokens so far, sampling
        with its seed. They go on here as well, unless they are to stop."""
        check_token(request)
        body = await _parse(request, ExportBody)
        now = time.monotonic()
        wanted, found = set(body.request_ids), set[str]()
        exported = []
        for inflight in [f for f in self._requests.held if f.outcome is None]:
            names = wanted & inflight.names
            if not names or inflight.request.kind not in ("chat", "completion"):
                continue
            found |= names
            exported.append(write_handoff(inflight, now))
            if body.stop:
                self._requests.fail(inflight, "taken over by an operator", "exported", "exported")
        unknown = [i for i in body.request_ids if i not in found]
        log.info(
            "node.requests_exported",
            count=len(exported),
            stopped=body.stop,
            request_ids=[handoff.request_id for handoff in exported],
        )
        return Response(msgspec.json.encode({"requests": exported, "unknown": unknown}), media_type="application/json")

    async def limits(self, request: Request) -> Response:
        """POST changes limits for steps and arrivals from now on."""
        check_token(request)
        if request.method == "POST":
            try:
                self._limits.change((await _parse(request, LimitsBody)).changes())
            except ContradictoryLimitsError as exc:
                raise ApiError(400, str(exc), code="limits_contradict", param=exc.limit) from exc
        return JSONResponse(self._limits.now.shown())

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Done before any request that is sent after the answer."""
        check_token(request)
        if not self._core.send(ResetPrefixCache()):
            raise ApiError(503, "there is no core that could do it", code="core_dead")
        return JSONResponse({"success": True})

    async def faults(self, request: Request) -> Response:
        """POST turns faults for drills on, or off with null; 404 on a node that was not started for it."""
        if self._faults is None:
            raise ApiError(404, "faults are off: start the node with --enable-faults", code="faults_disabled")
        check_token(request)
        if request.method == "POST":
            self._faults.change((await _parse(request, FaultsBody)).changes())
        return JSONResponse(self._faults.now.shown())

    async def continue_request(self, request: Request) -> Response:
        """Goes on with what another node handed off, or died with: the rest of its stream, or its whole answer."""
        check_token(request)
        arrival = arrival_of(request, None, is_continued=True)
        with admitting(self._admission, arrival):
            async with arriving(self._admission, arrival):
                return await self._continued(request, arrival)

    async def _continued(self, request: Request, arrival: Arrival) -> GenerationResponse:
        body = await read_body(request, extra_bytes=MAX_PROGRESS_BYTES)
        try:
            if handoff_version(body) == continuation.VERSION:
                return await self._take_continuation(request, continuation.read_continuation(body), arrival)
            return await self._take_handoff(request, read_handoff(body, self._model), arrival)
        except RefusedError as exc:
            raise from_refusal(exc) from exc
        except TooLongError as exc:
            raise ApiError(409, f"can't be continued here: {exc}", code="context_length_exceeded") from exc
        except ReplayError as exc:
            raise ApiError(409, f"can't be continued here: {exc}", code="replay_differs") from exc

    async def _take_handoff(self, request: Request, state: HandoffState, arrival: Arrival) -> GenerationResponse:
        arrival = replace(arrival, kind=state.request.kind, request_id=state.request.request_id)
        await check_continued(self._model, state.request.sampling.grammar, arrival.client)
        lines = lines_of(request, state.request)
        inflight = self._admission.admit(
            state.request,
            arrival=arrival,
            accepts_handoff=accepts_handoff(request, state.request, lines),
            progress=state.choices,
            lines=lines,
            elapsed_before_s=state.elapsed_s,
        )
        return GenerationResponse(self._requests, self._model.tokenizer, inflight)

    async def _take_continuation(self, request: Request, found: Continuation, arrival: Arrival) -> GenerationResponse:
        arrival = replace(arrival, kind=found.kind, request_id=found.request_id)
        self._admission.check(request_id=arrival.request_id)  # before the work of tokenising
        wanted, covered = await continuation.prepare_continuation(self._model, found, arrival, deadline_of(request))
        lines = lines_of(request, wanted)
        inflight = self._admission.admit(
            wanted,
            arrival=arrival,
            accepts_handoff=accepts_handoff(request, wanted, lines),
            progress=covered,
            lines=lines,
            elapsed_before_s=found.elapsed_s,
        )
        if found.kind == "response":
            tokenizer = self._model.tokenizer
            return ResponsesResponse(self._requests, tokenizer, inflight, found.response_body, found.progress)
        return GenerationResponse(self._requests, self._model.tokenizer, inflight)


async def _parse(request: Request, schema: type[B]) -> B:
    return await parse_body(request, schema, max_bytes=MAX_ADMIN_BYTES)


def _describe(inflight: InflightRequest, blocks: Mapping[str, int] | None, now: float) -> dict[str, object]:
    """No prompt and no text: this is for the person on call. `blocks` by sequence id; None: not known."""
    if inflight.outcome is not None:
        state = "ending"
    elif any(c.abort_reason == "moved" for c in inflight.open_choices):
        state = "moving"
    else:
        state = "waiting" if inflight.is_waiting else "running"
    return {
        "request_id": inflight.request.request_id,
        "id": inflight.request.answer_id,
        "kind": inflight.request.kind,
        "state": state,
        "stream": inflight.request.stream,
        "choices": len(inflight.choices),
        "tokens_in": inflight.num_prompt_tokens,
        "tokens_out": inflight.num_output_tokens,
        "kv_blocks": None if blocks is None else sum(blocks.get(c.seq_id, 0) for c in inflight.open_choices),
        "age_s": round(now - inflight.arrived_at, 3),
        "continued": inflight.is_continued,
        "can_move": inflight.accepts_handoff,
        "priority": inflight.request.priority,
        "deadline_s": inflight.request.deadline_s,
    }
