"""A client request as it comes in: what is known of it, that its id is in flight once, its end when it is refused."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from starlette.requests import Request

from engine.api.errors import ApiError
from engine.node.admission import Admission
from engine.node.generation_request import Kind
from engine.node.inflight import Fate
from engine.node.request_record import Arrival
from engine.protocol.request_id import REQUEST_ID

SHADOW_HEADER = "X-Fleet-Shadow"
TRACE_HEADERS = ("traceparent", "tracestate")
MAX_TRACE_CHARS = 1024  # W3C asks for 512 of tracestate; what is longer is dropped, as the recommendation allows
MAX_ADDRESS_CHARS = 64
CLIENT_GONE = "client_gone"
REQUEST_IN_FLIGHT = "request_in_flight"
LET_GO_S = 0.5  # a request whose caller has hung up is in flight until that is noticed
LET_GO_PAUSE_S = 0.02


def arrival_of(request: Request, kind: Kind | None, *, is_continued: bool = False) -> Arrival:
    """To be called first of all: it takes the time."""
    given = {name: request.headers.get(name) for name in TRACE_HEADERS}
    return Arrival(
        request.state.request_id,
        kind,
        time.monotonic(),
        {name: value for name, value in given.items() if value is not None and len(value) <= MAX_TRACE_CHARS},
        is_continued,
        client_of(request),
        shadow_of(request),
    )


def shadow_of(request: Request) -> str:
    """The id of the request that this is a gateway's copy of; empty: it is none."""
    given = request.headers.get(SHADOW_HEADER, "")
    return given if REQUEST_ID.fullmatch(given) else ""


def client_of(request: Request) -> str:
    """Whose share the request takes: of its API key, else of the address it came from, by the gateway's word if a
    gateway is between."""
    given = request.headers.get("Authorization")
    if given is not None:
        return f"key {hashlib.sha256(given.encode(errors='replace')).hexdigest()}"
    forwarded = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
    own = "" if request.client is None else request.client.host
    return f"address {forwarded[:MAX_ADDRESS_CHARS] or own}"


class Admitting:
    """A request that is not held yet; its body may rename it."""

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival

    def rename(self, request: Request, request_id: str | None) -> bool:
        """Takes the id that the body gives, where no usable one came in its header; returns whether it did."""
        if request_id is None or REQUEST_ID.fullmatch(request.headers.get("X-Request-Id", "")):
            return False
        request.state.request_id = request_id
        self.arrival = replace(self.arrival, request_id=request_id)
        return True


@contextmanager
def admitting(admission: Admission, arrival: Arrival) -> Iterator[Admitting]:
    """Whatever ends a request in here, before it is held, is counted and logged once."""
    held = Admitting(arrival)
    try:
        yield held
    except ApiError as exc:
        admission.turn_away(held.arrival, _fate_of(exc), exc.status, exc.code)
        raise
    except Exception:
        admission.turn_away(held.arrival, Fate.FAILED, 500, "internal")
        raise


@asynccontextmanager
async def arriving(admission: Admission, arrival: Arrival) -> AsyncIterator[None]:
    """The request is among those that arrive, the only one of its id.

    A client that lost its gateway asks another one under the same id: while the first request goes on, the second one
    is told so and not computed beside it. A request that another node hands over belongs to the caller that has the
    first one, so it comes in. Raises ApiError.
    """
    until = time.monotonic() + LET_GO_S
    while not arrival.is_continued and admission.is_in_flight(arrival.request_id):
        if time.monotonic() >= until:
            message = f"request {arrival.request_id} is in flight on this node"
            raise ApiError(409, message, code=REQUEST_IN_FLIGHT, headers={"Retry-After": "1"})
        await asyncio.sleep(LET_GO_PAUSE_S)
    admission.arriving.add(arrival.request_id)
    try:
        yield
    finally:
        admission.arriving.discard(arrival.request_id)


def _fate_of(error: ApiError) -> Fate:
    if error.code == CLIENT_GONE:
        return Fate.ABORTED
    return Fate.REFUSED if "X-Fleet-Refused" in error.headers else Fate.INVALID
