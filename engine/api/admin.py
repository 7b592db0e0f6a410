"""Guarded routes: drain, abort, limits, what is in flight, faults for drills, requests from other nodes."""

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

from engine.api.arrival import admitting, arrival_of
from engine.api.body import check_token, parse_body, parse_query, read_body
from engine.api.constrain import check_continued
from engine.api.errors import ApiError, from_refusal
from engine.api.handoff import read_handoff, write_handoff
from engine.api.openai import accepts_handoff
from engine.api.respond import FlightResponse
from engine.api.schema import AbortBody, DrainBody, ExportBody, FaultsBody, LimitsBody, SleepQuery
from engine.node.health import Reason
from engine.node.inflight import Flight, ReplayError
from engine.node.node import Node
from engine.node.refusal import RefusedError, TooLongError
from engine.node.sleep import SleepRefusedError

log = structlog.get_logger()

MAX_ADMIN_BYTES = 2 * 2**20
BLOCKS_WITHIN_S = 1.0  # a core in a long step answers after it

B = TypeVar("B", bound=BaseModel)


def routes() -> list[Route]:
    return [
        Route("/admin/drain", drain, methods=["GET", "POST"]),
        Route("/admin/resume", resume, methods=["POST"]),
        Route("/admin/sleep", sleep, methods=["GET", "POST"]),
        Route("/admin/wake_up", wake_up, methods=["POST"]),
        Route("/admin/requests", requests, methods=["GET"]),
        Route("/admin/abort", abort, methods=["POST"]),
        Route("/admin/export", export, methods=["POST"]),
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


async def sleep(request: Request) -> Response:
    """POST falls asleep; `?level=1|2`, and `?drain=true&deadline=S` when requests may be served still."""
    check_token(request)
    node: Node = request.app.state.node
    if request.method == "POST":
        query = parse_query(request, SleepQuery)
        try:
            await node.sleeper.sleep(query.level, query.deadline if query.drain else None)
        except SleepRefusedError as exc:
            raise ApiError(409, str(exc), code=exc.code) from exc
    return JSONResponse(node.sleeper.status())


async def wake_up(request: Request) -> Response:
    """Answers when the model's answer to the golden prompt is known: 503 when it is wrong."""
    check_token(request)
    node: Node = request.app.state.node
    try:
        status = await node.sleeper.wake()
    except SleepRefusedError as exc:
        raise ApiError(409 if exc.code == "busy" else 503, str(exc), code=exc.code) from exc
    reason = node.judge_health()
    if reason not in (Reason.READY, Reason.DRAINING):
        raise ApiError(503, f"awake, but not ready: {reason.value}; see /health/deep", code=reason.value)
    return JSONResponse(status | {"ready": reason is Reason.READY, "reason": reason.value})


async def requests(request: Request) -> Response:
    check_token(request)
    node: Node = request.app.state.node
    blocks = await node.core.blocks_held(BLOCKS_WITHIN_S) if node.flights else {}
    now = time.monotonic()
    held = sorted(node.flights, key=lambda flight: flight.arrived_at)
    answer: dict[str, object] = {"requests": [_describe(flight, blocks, now) for flight in held]}
    if blocks is None:
        answer["kv_blocks_unknown"] = "the core did not answer in time"
    return JSONResponse(answer)


def _describe(flight: Flight, blocks: Mapping[str, int] | None, now: float) -> dict[str, object]:
    """No prompt and no text: this is for the person on call. `blocks` by sequence id; None: not known."""
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
        "kv_blocks": None if blocks is None else sum(blocks.get(c.seq_id, 0) for c in flight.open_choices),
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


async def export(request: Request) -> Response:
    """What another node needs to go on with these requests (`/internal/continue`): prompt, tokens so far, sampling with
    its seed. They go on here as well, unless they are to stop."""
    check_token(request)
    node: Node = request.app.state.node
    body = await _parse(request, ExportBody)
    now = time.monotonic()
    wanted, found = set(body.request_ids), set[str]()
    exported = []
    for flight in [f for f in node.flights if f.outcome is None]:
        names = wanted & {flight.ask.request_id, flight.ask.id}
        if not names:
            continue
        found |= names
        exported.append(write_handoff(flight, now))
        if body.stop:
            node.fail(flight, "taken over by an operator", "exported", "exported")
    unknown = [i for i in body.request_ids if i not in found]
    log.info("node.requests_exported", count=len(exported), stopped=body.stop)
    return Response(msgspec.json.encode({"requests": exported, "unknown": unknown}), media_type="application/json")


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
    return await parse_body(request, schema, max_bytes=MAX_ADMIN_BYTES)


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
    arrival = arrival_of(request, None, is_continued=True)
    with admitting(node, arrival):
        state = read_handoff(await read_body(request), node)
        arrival = replace(arrival, kind=state.ask.kind, request_id=state.ask.request_id)
        try:
            await check_continued(node, state.ask.sampling.grammar)
            flight = node.admit(
                state.ask,
                arrival=arrival,
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
