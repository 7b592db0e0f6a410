"""Guarded routes: drain, abort, limits, what is in flight, faults for drills, requests from other nodes."""

from __future__ import annotations

import time
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.api.body import check_token, read_body
from engine.api.errors import ApiError, from_refusal, from_validation
from engine.api.handoff import read_handoff
from engine.api.openai import accepts_handoff
from engine.api.respond import FlightResponse
from engine.api.schema import AbortBody, DrainBody, FaultsBody, LimitsBody
from engine.inflight import Flight, ReplayError
from engine.node import Node
from engine.refusal import RefusedError, TooLongError

B = TypeVar("B", bound=BaseModel)


def routes() -> list[Route]:
    return [
        Route("/admin/drain", drain, methods=["GET", "POST"]),
        Route("/admin/resume", resume, methods=["POST"]),
        Route("/admin/requests", requests, methods=["GET"]),
        Route("/admin/abort", abort, methods=["POST"]),
        Route("/admin/limits", limits, methods=["GET", "POST"]),
        Route("/admin/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
        Route("/admin/faults", faults, methods=["GET", "POST"]),
        Route("/internal/continue", continue_request, methods=["POST"]),
    ]


async def drain(request: Request) -> Response:
    check_token(request)
    node: Node = request.app.state.node
    if request.method == "POST":
        node.begin_drain((await _parse(request, DrainBody)).deadline_s)
    return JSONResponse(node.drain_status())


async def resume(request: Request) -> Response:
    check_token(request)
    node: Node = request.app.state.node
    node.resume()
    return JSONResponse(node.drain_status())


async def requests(request: Request) -> Response:
    check_token(request)
    node: Node = request.app.state.node
    now = time.monotonic()
    held = sorted(node.flights, key=lambda flight: flight.arrived_at)
    return JSONResponse({"requests": [_describe(flight, now) for flight in held]})


def _describe(flight: Flight, now: float) -> dict[str, object]:
    """No prompt and no text: this is for the person on call."""
    if flight.outcome is not None:
        state = "ending"
    elif any(c.abort_reason == "moved" for c in flight.open_choices):
        state = "moving"
    else:
        state = "waiting" if flight.is_waiting else "running"
    return {
        "request_id": flight.ask.request_id,
        "id": flight.ask.id,
        "kind": flight.ask.kind,
        "state": state,
        "stream": flight.ask.stream,
        "choices": len(flight.choices),
        "tokens_in": flight.num_prompt_tokens,
        "tokens_out": flight.num_output_tokens,
        "age_s": round(now - flight.arrived_at, 3),
        "continued": flight.is_continued,
        "can_move": flight.accepts_handoff,
        "priority": flight.ask.priority,
        "deadline_s": flight.ask.deadline_s,
    }


async def abort(request: Request) -> Response:
    """Ends requests with an error event; null ends all. Ids that are not in flight are named, not an error."""
    check_token(request)
    node: Node = request.app.state.node
    wanted = (await _parse(request, AbortBody)).request_ids
    known = {i for f in node.flights if f.outcome is None for i in (f.ask.request_id, f.ask.id)}
    aborted = node.abort(wanted)
    return JSONResponse({"aborted": aborted, "unknown": [i for i in wanted or () if i not in known]})


async def limits(request: Request) -> Response:
    check_token(request)
    node: Node = request.app.state.node
    if request.method == "POST":
        try:
            node.set_limits((await _parse(request, LimitsBody)).changes())
        except ValueError as exc:
            raise ApiError(400, str(exc), code="limits_contradict", param=str(exc).partition(":")[0]) from exc
    return JSONResponse(node.limits.shown())


async def reset_prefix_cache(request: Request) -> Response:
    """Done before any request that is sent after the answer."""
    check_token(request)
    node: Node = request.app.state.node
    if not node.reset_prefix_cache():
        raise ApiError(503, "there is no core that could do it", code="core_dead")
    return JSONResponse({"success": True})


async def _parse(request: Request, schema: type[B]) -> B:
    body = await read_body(request)
    try:
        return schema.model_validate_json(body)
    except ValidationError as exc:
        raise from_validation(exc) from exc


async def faults(request: Request) -> Response:
    node: Node = request.app.state.node
    if not node.config.enable_faults:
        raise ApiError(404, "faults are off: start the node with --enable-faults", code="faults_disabled")
    check_token(request)
    if request.method == "POST":
        node.set_faults((await _parse(request, FaultsBody)).changes())
    return JSONResponse(node.faults.shown())


async def continue_request(request: Request) -> Response:
    """Goes on with what another node handed off: the rest of its stream, or its whole answer."""
    check_token(request)
    node: Node = request.app.state.node
    arrived_at = time.monotonic()
    state = read_handoff(await read_body(request), node)
    try:
        flight = node.admit(
            state.ask,
            arrived_at=arrived_at,
            accepts_handoff=accepts_handoff(request),
            progress=state.choices,
            elapsed_before_s=state.elapsed_s,
        )
    except RefusedError as exc:
        raise from_refusal(exc) from exc
    except TooLongError as exc:
        raise ApiError(409, f"can't be continued here: {exc}", code="context_length_exceeded") from exc
    except ReplayError as exc:
        raise ApiError(409, f"can't be continued here: {exc}", code="replay_differs") from exc
    return FlightResponse(node, flight)
