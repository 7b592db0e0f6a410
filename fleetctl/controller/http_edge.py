"""The rim of the HTTP API: who may ask, how much a stranger may send, and how errors are told."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import structlog
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from alerts.errors import AlertsError
from fleetctl.controller.access.gate import bearer_of, identity_of, is_local
from fleetctl.controller.access.identity import ForbiddenError
from fleetctl.controller.access.tokens import Tokens
from fleetctl.controller.audit import Audit
from fleetctl.controller.database import FencedError
from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError, UnreachableError
from fleetctl.wire.base import Problem
from fleetctl.wire.identity import TokenRole
from runbooks.errors import NotFoundError, RunbookError, StaleEpochError
from runbooks.run import ConflictError

log = structlog.get_logger()

MAX_BODY_BYTES = 256 * 1024
BODY_TIMEOUT_S = 10.0
MAX_FILE_BYTES = 256 << 20
FILE_TIMEOUT_S = 120.0
MAX_WAIT_S = 30.0
B = TypeVar("B", bound=BaseModel)
Handler = Callable[[Request], Awaitable[Response]]


class HostGate:
    """Answers requests without the token only under a name that is ours, and none that a foreign page's script sends.

    A page in a browser on this machine may be served under a name that its owner then points at 127.0.0.1 (DNS
    rebinding): such a request comes from loopback, and says the foreign name in `Host`. An IP address can't be rebound.
    A page elsewhere that has us asked from the browser says its own place in `Origin`, which nobody else sends: it is
    refused whatever token it brings.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, names: Iterable[str], pages: Iterable[str] = ()) -> None:
        """`names`: ours. `pages`: hosts whose pages may ask us from a browser, beside our own."""
        self._app = app
        self._pages = {name.lower().rstrip(".") for name in pages}
        self._tokens = tokens
        self._names = {name.lower().rstrip(".") for name in names} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (origin := _header(scope, b"origin")) is not None:
            own = _header(scope, b"host") or ""
            if not self._is_ours(origin, own):
                problem = Problem(
                    error=f"Origin {origin[:100]!r} is not this controller",
                    remedy="ask without a browser, or add the page's host to controller.allowed_hosts",
                    exit_code=3,
                )
                await JSONResponse(problem.model_dump(), HTTPStatus.FORBIDDEN)(scope, receive, send)
                return
        if scope["type"] != "http" or not is_local(scope) or self._tokens.identify(bearer_of(scope)) is not None:
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

    def _is_ours(self, origin: str, host: str) -> bool:
        """Whether a page of that origin is one that we, or a server of an allowed name, gave out."""
        place = origin.partition("://")[2]
        name = place.rpartition(":")[0] if place.rpartition(":")[2].isdigit() else place
        return bool(place) and (place == host or name in self._pages)


def _header(scope: Scope, wanted: bytes) -> str | None:
    """The header's value in lower case; None without it."""
    for name, value in scope["headers"]:
        if name == wanted:
            return bytes(value).decode("latin-1").strip().lower()
    return None


def _host(scope: Scope) -> str | None:
    """The Host header without its port, in lower case; None without one: no browser leaves it out."""
    text = _header(scope, b"host")
    if text is None:
        return None
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def read_body(request: Request, model: type[B]) -> B:
    """The body as `model`. Raises BadInputError naming the field, HTTPException 408 and 413."""
    parts: list[bytes] = []
    await _receive(request, parts.append, "body", MAX_BODY_BYTES, f"{MAX_BODY_BYTES} bytes", BODY_TIMEOUT_S)
    try:
        return model.model_validate_json(b"".join(parts) or b"{}")
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInputError(f"body: {place}: {first['msg']}" if place else f"body: {first['msg']}") from error


async def receive_file(request: Request, path: Path) -> None:
    """The body into a file. Raises HTTPException 408 and 413."""
    with path.open("wb") as file:
        await _receive(request, file.write, "file", MAX_FILE_BYTES, f"{MAX_FILE_BYTES >> 20} MiB", FILE_TIMEOUT_S)


async def _receive(
    request: Request, take: Callable[[bytes], object], noun: str, max_bytes: int, max_words: str, within_s: float
) -> None:
    """Each part of the body into `take`. Raises HTTPException 408 and 413."""
    size = 0
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    large = f"the {noun} is larger than {max_words}"
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, large)
                take(part)
    except TimeoutError:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, f"no whole {noun} within {within_s:g} s") from None


def int_param(request: Request, name: str, default: int = 0) -> int:
    """A query parameter that is a whole number, 0 or more. Raises BadInputError."""
    text = request.query_params.get(name)
    return default if text is None else whole_number(name, text)


def whole_number(name: str, text: str) -> int:
    """What a client gave as a whole number, 0 or more, under this name. Raises BadInputError."""
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


class ApiRoute(Route):
    """A route with the role that it needs and, when it changes something, what the audit calls that."""

    def __init__(self, path: str, handler: Handler, *, method: str, role: TokenRole, change: str) -> None:
        super().__init__(path, handler, methods=[method])
        self.method = method
        self.role = role
        self.change = change


def read_route(path: str, handler: Handler, tokens: Tokens, *, method: str = "GET") -> ApiRoute:
    """A route that changes nothing: for viewers. What is as the asker has it already is not sent again."""
    answer = guarded(unless_known(_for_role(handler, tokens, TokenRole.VIEWER)))
    return ApiRoute(path, answer, method=method, role=TokenRole.VIEWER, change="")


def unless_known(handler: Handler) -> Handler:
    """The handler, whose JSON has an `ETag`; 304 without a body where `If-None-Match` has it."""

    async def answer(request: Request) -> Response:
        response = await handler(request)
        is_json = (response.media_type or "").startswith("application/json") and response.status_code == HTTPStatus.OK
        if not is_json or request.method != "GET" or isinstance(response, StreamingResponse):
            return response
        more = {"Link": link} if (link := response.headers.get("link")) is not None else {}
        whole = bytes(response.body) + more.get("Link", "").encode()  # what comes after a page is part of it
        tag = f'"{hashlib.blake2b(whole, digest_size=12).hexdigest()}"'
        known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
        if tag in known:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag, **more})
        response.headers["ETag"] = tag
        return response

    return answer


@dataclass(frozen=True, slots=True)
class ChangeRoutes:
    """Makes the routes that change something: each has a role above viewer and a row of the audit."""

    audit: Audit
    tokens: Tokens

    def route(
        self,
        method: str,
        path: str,
        change: str,
        handler: Handler,
        *,
        role: TokenRole = TokenRole.OPERATOR,
        by_journal: bool = False,
    ) -> ApiRoute:
        """`change` is what the audit calls it; `by_journal`: what is done has its rows already."""
        assert change
        assert role is not TokenRole.VIEWER
        within = audited(self.audit, change, handler, by_journal=by_journal)
        return ApiRoute(path, guarded(_for_role(within, self.tokens, role)), method=method, role=role, change=change)


def _for_role(handler: Handler, tokens: Tokens, role: TokenRole) -> Handler:
    async def answer(request: Request) -> Response:
        tokens.require(identity_of(request), role)
        return await handler(request)

    return answer


def audited(audit: Audit, what: str, handler: Handler, *, by_journal: bool = False) -> Handler:
    """The handler of a change, with a row of the audit for what was done and for what was refused by a guard.

    The handler says with `note` what the change is about. `by_journal`: what is done has its rows already.
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


def note(request: Request, *, claim: str = "", target: str = "", why: str = "") -> str:
    """Tell the audit what this change is about; who makes it, with what the caller claims of itself behind it."""
    who = identity_of(request).with_claim(claim)
    request.state.audit = {"who": who, "target": target, "why": why}
    return who


def _noted(request: Request) -> dict[str, str]:
    return getattr(request.state, "audit", None) or {"who": identity_of(request).name}


def problem_of(error: Exception) -> tuple[HTTPStatus, Problem]:
    """Status and body for an error of any package."""
    if isinstance(error, FencedError | StaleEpochError):
        return HTTPStatus.SERVICE_UNAVAILABLE, Problem(error=str(error), exit_code=4)
    if isinstance(error, FleetctlError):
        statuses: list[tuple[type[FleetctlError], HTTPStatus]] = [
            (ForbiddenError, HTTPStatus.FORBIDDEN),
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


def http_exception_handler(routes: Iterable[Route]) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Tells Starlette's own refusals (no such route, wrong method, body too large) as Problems. It names the methods of
    the first route of a path alone: here they are those of all of `routes`."""
    known = tuple(routes)

    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers, remedy = dict(error.headers or {}), None
        if error.status_code == HTTPStatus.NOT_FOUND and error.detail == HTTPStatus.NOT_FOUND.phrase:
            remedy = "GET /openapi.json has the paths that there are; Alertmanager's is /webhooks/alertmanager"
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            here = (route.methods or () for route in known if route.path_regex.match(request.scope["path"]))
            headers["Allow"] = ", ".join(sorted({method for methods in here for method in methods}))
            remedy = f"this path takes {headers['Allow']}"
        problem = Problem(error=error.detail, remedy=remedy, exit_code=2)
        return JSONResponse(problem.model_dump(), error.status_code, headers=headers)

    return answer
