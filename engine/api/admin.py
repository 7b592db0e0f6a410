"""Guarded routes: drain and resume, what is in flight, faults for drills, requests from other nodes."""

from __future__ import annotations

import time

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.api.body import check_token, read_body
from engine.api.errors import ApiError, from_refusal, from_validation
from engine.api.handoff import read_handoff
from engine.api.openai import accepts_handoff
from engine.api.respond import FlightResponse
from engine.api.schema import DrainBody, FaultsBody
from engine.inflight import Flight, ReplayError
from engine.node import Node, RefusedError, TooLongError


def routes() -> list[Route]:
    return [
        Route("/admin/drain", drain, methods=["GET", "POST"]),
        Route("/admin/resume", resume, methods=["POST"]),
        Route("/admin/requests", requests, methods=["GET"]),
        Route("/admin/faults", faults, methods=["GET", "POST"]),
        Route("/internal/continue", continue_request, methods=["POST"]),
    ]


async def drain(request: Request) -> Response:
    check_token(request)
    node: Node = request.app.state.node
    if request.method == "POST":
        try:
            body = DrainBody.model_validate_json(await read_body(request))
        except ValidationError as exc:
            raise from_validation(exc) from exc
        node.begin_drain(body.deadline_s)
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
    }


async def faults(request: Request) -> Response:
    node: Node = request.app.state.node
    if not node.config.enable_faults:
        raise ApiError(404, "faults are off: start the node with --enable-faults", code="faults_disabled")
    check_token(request)
    if request.method == "POST":
        try:
            body = FaultsBody.model_validate_json(await read_body(request))
        except ValidationError as exc:
            raise from_validation(exc) from exc
        node.set_slow_steps(body.slow_steps)
    return JSONResponse({"slow_steps": node.slow_steps})


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
