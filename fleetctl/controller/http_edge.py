"""The rim of the HTTP API: who may ask, how much a stranger may send, and how errors are told."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TypeVar

import structlog
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from alerts.errors import AlertsError
from fleetctl.controller.audit import CALLER, Audit
from fleetctl.controller.database import FencedError
from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError, UnreachableError
from fleetctl.wire import Problem
from runbooks.errors import NotFoundError, RunbookError, StaleEpochError
from runbooks.run import ConflictError

log = structlog.get_logger()

MAX_BODY_BYTES = 256 * 1024
BODY_TIMEOUT_S = 10.0
MAX_WAIT_S = 30.0
OPEN_PATHS = frozenset({"/health/live", "/metrics"})
B = TypeVar("B", bound=BaseModel)
OWN_TOKEN, WEBHOOK = "controller.token", "webhook"  # what the audit calls these credentials
Handler = Callable[[Request], Awaitable[Response]]


class HostGate:
    """Answers requests without the token only under a name that is ours.

    A page in a browser on this machine may be served under a name that its owner then points at 127.0.0.1 (DNS
    rebinding): such a request comes from loopback, and says the foreign name in `Host`. An IP address can't be rebound.
    """

    def __init__(self, app: ASGIApp, token: str, names: Iterable[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._names = {name.lower().rstrip(".") for name in names} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_local(scope) or hmac.compare_digest(_bearer(scope), self._token):
            await self._app(scope, receive, send)
            return
        host = _host(scope)
        if host is None or host in self._names or host.endswith(".localhost") or _is_address(host):
            await self._app(scope, receive, send)
            return
        problem = Problem(
            error=f"Host {host[:100]!r} is no name of this controller",
            remedy="use localhost or its IP address, add the name to controller.allowed_hosts, or send the token",
            exit_code=2,
        )
        await JSONResponse(problem.model_dump(), HTTPStatus.MISDIRECTED_REQUEST)(scope, receive, send)


def _host(scope: Scope) -> str | None:
    """The Host header without its port, in lower case; None without one: no browser leaves it out."""
    for name, value in scope["headers"]:
        if name == b"host":
            text = bytes(value).decode("latin-1").strip().lower()
            if text.startswith("["):
                return text[1:].partition("]")[0]
            return text.partition(":")[0].rstrip(".")
    return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class TokenGate:
    """Lets changes through with the bearer token only; reads too, when they come from another machine."""

    def __init__(
        self, app: ASGIApp, token: str, own_gates: Mapping[str, Callable[[Scope], Response | None]] | None = None
    ) -> None:
        """`own_gates`: paths that ask for other credentials, to what answers None for whoever may pass."""
        self._app = app
        self._token = token.encode()
        self._own_gates = own_gates or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (gate := self._own_gates.get(scope["path"])) is not None:
            CALLER.set(WEBHOOK)
            await (gate(scope) or self._app)(scope, receive, send)
            return
        if scope["type"] != "http" or self._may_pass(scope):
            CALLER.set(OWN_TOKEN)
            await self._app(scope, receive, send)
            return
        problem = Problem(
            error="a token is needed for this" if not _bearer(scope) else "the token is wrong",
            remedy="send Authorization: Bearer <token>; fleetctl reads it from controller.token in its state folder",
        )
        response = JSONResponse(problem.model_dump(), HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Bearer"})
        await response(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if scope["path"] in OPEN_PATHS:
            return True
        if scope["method"] in ("GET", "HEAD") and _is_local(scope):
            return True
        return hmac.compare_digest(_bearer(scope), self._token)


def _bearer(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = bytes(value).partition(b" ")
            return token.strip() if kind.lower() == b"bearer" else b""
    return b""


def _is_local(scope: Scope) -> bool:
    client = scope.get("client")
    if client is None:
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


async def read_body(request: Request, model: type[B]) -> B:
    """The body as `model`. Raises BadInputError naming the field, HTTPException 408 and 413."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BODY_BYTES:
                    large = f"the body is larger than {MAX_BODY_BYTES} bytes"
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, large)
                parts.append(part)
    except TimeoutError:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, f"no whole body within {BODY_TIMEOUT_S:g} s") from None
    try:
        return model.model_validate_json(b"".join(parts) or b"{}")
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInputError(f"body: {place}: {first['msg']}" if place else f"body: {first['msg']}") from error


def int_param(request: Request, name: str, default: int = 0) -> int:
    """A query parameter that is a whole number, 0 or more. Raises BadInputError."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadInputError(f"{name}: expected a whole number, 0 or more, not {text[:40]!r}")
    return int(text)


def bool_param(request: Request, name: str) -> bool:
    """A query parameter that is true or false (also 1 or 0); false when it is not given. Raises BadInputError."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "1", "false", "0"):
        raise BadInputError(f"{name}: expected true or false, not {text[:40]!r}")
    return text in ("true", "1")


def wait_param(request: Request) -> float:
    """How long a long poll may wait, in seconds: at most MAX_WAIT_S. Raises BadInputError."""
    return min(float_param(request, "wait_s") or 0.0, MAX_WAIT_S)


def float_param(request: Request, name: str) -> float | None:
    """A query parameter in seconds, 0 or more; None when it is not given. Raises BadInputError."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        raise BadInputError(f"{name}: expected seconds, 0 or more, not {text[:40]!r}")
    return seconds


def guarded(handler: Handler) -> Handler:
    """The handler with its errors told as Problems: known ones with their status, others as 500 without their text."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except HTTPException:
            raise
        except Exception as error:
            status, problem = problem_of(error)
            if status is HTTPStatus.INTERNAL_SERVER_ERROR:
                log.error("request.failed", path=request.url.path, error=repr(error), exc_info=True)
            return JSONResponse(problem.model_dump(), status)

    return answer


class RunRefusedError(RefusedError):
    """A guard refused a run, which is stored with the refusal: the journal has told the audit."""


def audited(audit: Audit, what: str, handler: Handler, *, by_journal: bool = False) -> Handler:
    """The handler of a change, with a row of the audit for what was done and for what was refused by a guard.

    The handler says with `note` whose change it is and of what. `by_journal`: what is done has its rows already.
    """

    async def answer(request: Request) -> Response:
        try:
            response = await handler(request)
        except (RefusedError, ConflictError) as error:
            if not isinstance(error, RunRefusedError):
                await audit.record(what, **_noted(request), outcome=f"refused: {error}")
            raise
        if not by_journal and response.status_code < HTTPStatus.BAD_REQUEST:
            await audit.record(what, **_noted(request))
        return response

    return answer


def note(request: Request, *, who: str, target: str = "", why: str = "") -> None:
    """What the audit is told of this change."""
    request.state.audit = {"who": who, "target": target, "why": why}


def _noted(request: Request) -> dict[str, str]:
    return getattr(request.state, "audit", None) or {"who": CALLER.get()}


def problem_of(error: Exception) -> tuple[HTTPStatus, Problem]:
    """Status and body for an error of any package."""
    if isinstance(error, FencedError | StaleEpochError):
        return HTTPStatus.SERVICE_UNAVAILABLE, Problem(error=str(error), exit_code=4)
    if isinstance(error, FleetctlError):
        statuses: list[tuple[type[FleetctlError], HTTPStatus]] = [
            (BadInputError, HTTPStatus.BAD_REQUEST),
            (RefusedError, HTTPStatus.CONFLICT),
            (UnreachableError, HTTPStatus.SERVICE_UNAVAILABLE),
        ]
        status = next((code for kind, code in statuses if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
        return status, Problem(error=error.message, remedy=error.remedy, exit_code=error.exit_code)
    if isinstance(error, RunbookError):
        if isinstance(error, NotFoundError):
            return HTTPStatus.NOT_FOUND, Problem(error=error.message, remedy=error.remedy, exit_code=2)
        if isinstance(error, ConflictError):
            return HTTPStatus.CONFLICT, Problem(error=error.message, remedy=error.remedy, exit_code=3)
        return HTTPStatus.BAD_REQUEST, Problem(error=error.message, remedy=error.remedy, exit_code=2)
    if isinstance(error, AlertsError):
        return HTTPStatus.BAD_REQUEST, Problem(error=str(error), exit_code=2)
    return HTTPStatus.INTERNAL_SERVER_ERROR, Problem(error="the controller failed; its log says why")


async def on_http_exception(_: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such route, wrong method, body too large) as Problems."""
    assert isinstance(error, HTTPException)
    problem = Problem(error=error.detail, exit_code=2)
    return JSONResponse(problem.model_dump(), error.status_code, headers=dict(error.headers or {}))
