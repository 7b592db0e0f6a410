"""Names who asks before a route is reached: 401 without a token that opens, 429 for an address that tries many."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fleetctl.controller.access.identity import Identity
from fleetctl.controller.access.rate_limits import RateLimits
from fleetctl.controller.access.tokens import LOCAL, Tokens
from fleetctl.controller.audit import CALLER
from fleetctl.controller.records import Records
from fleetctl.wire.base import Problem
from fleetctl.wire.identity import TokenRole

OPEN_PATHS = frozenset({"/health/live", "/health/leader", "/metrics"})
WEBHOOK = "webhook"  # what the audit calls these credentials
MAX_BAD_TOKENS = 60  # from one address within a window
WINDOW_S = 60.0
MAX_ADDRESSES = 1000  # that are remembered; the oldest goes


class BadTokens:
    """Wrong tokens by the address that sent them, within a window of time. What is right is never held up."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()  # window's begin, and how many

    def count(self, address: str) -> float:
        """One more; how long this address is refused, in seconds, 0 while it may go on."""
        self._records.metrics.bad_tokens.inc()
        now = self._records.clock.now()
        began, num = self._counts.pop(address, (now, 0))
        if not 0 <= now - began < WINDOW_S:
            began, num = now, 0
        self._counts[address] = (began, num + 1)
        if len(self._counts) > MAX_ADDRESSES:
            self._counts.popitem(last=False)
        if num + 1 == MAX_BAD_TOKENS:
            text = f"{MAX_BAD_TOKENS} wrong tokens from {address} within {WINDOW_S:.0f} s: more are not looked at"
            self._records.timeline.append_soon("token.refused", text)
        return WINDOW_S - (now - began) if num + 1 > MAX_BAD_TOKENS else 0.0


class TokenGate:
    """Lets changes through with a token only; reads too, when they come from another machine.

    Which role a route needs is the route's to say: see `http_edge.api_route`.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        records: Records,
        limits: RateLimits,
        own_gates: Mapping[str, Callable[[Scope], Response | None]] | None = None,
    ) -> None:
        """`own_gates`: paths that ask for other credentials, to what answers None for whoever may pass; they have
        limits of their own too."""
        self._app = app
        self._tokens = tokens
        self._bad_tokens = BadTokens(records)
        self._limits = limits
        self._own_gates = own_gates or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (gate := self._own_gates.get(scope["path"])) is not None:
            self._name(scope, Identity(WEBHOOK, TokenRole.OPERATOR, WEBHOOK))
            await (gate(scope) or self._app)(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        key = bearer_of(scope)
        identity = self._tokens.identify(key) if key else None
        if identity is None and self._may_pass_unnamed(scope):
            identity = LOCAL
        if (held_up := self._limits.refusal(scope, identity)) is not None:
            await held_up(scope, receive, send)
        elif identity is not None:
            self._name(scope, identity)
            await self._app(scope, receive, send)
        else:
            await self._refusal(scope, key)(scope, receive, send)

    def _refusal(self, scope: Scope, key: bytes) -> Response:
        headers = {"WWW-Authenticate": "Bearer"}
        remedy = "send Authorization: Bearer <token>; fleetctl reads it from controller.token in its state folder"
        if not key:
            problem = Problem(error="a token is needed for this", remedy=remedy)
            return JSONResponse(problem.model_dump(), HTTPStatus.UNAUTHORIZED, headers)
        client = scope.get("client")
        wait_s = self._bad_tokens.count(str(client[0]) if client is not None else "unknown")
        if wait_s:
            problem = Problem(
                error="too many wrong tokens from this address", remedy=f"wait {wait_s:.0f} s", exit_code=3
            )
            headers = {"Retry-After": str(int(wait_s) + 1)}
            return JSONResponse(problem.model_dump(), HTTPStatus.TOO_MANY_REQUESTS, headers)
        problem = Problem(
            error=self._tokens.why_refused(key), remedy=f"{remedy}; an admin makes one: fleetctl token create"
        )
        return JSONResponse(problem.model_dump(), HTTPStatus.UNAUTHORIZED, headers)

    def _may_pass_unnamed(self, scope: Scope) -> bool:
        return scope["path"] in OPEN_PATHS or (scope["method"] in ("GET", "HEAD") and is_local(scope))

    def _name(self, scope: Scope, identity: Identity) -> None:
        CALLER.set(identity.via)
        scope.setdefault("state", {})["identity"] = identity


def identity_of(request: Request) -> Identity:
    """Who asks, as the gate found."""
    identity = request.state.identity
    assert isinstance(identity, Identity)
    return identity


def bearer_of(scope: Scope) -> bytes:
    """The token of the request's `Authorization: Bearer` header; empty when there is none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = bytes(value).partition(b" ")
            return token.strip() if kind.lower() == b"bearer" else b""
    return b""


def is_local(scope: Scope) -> bool:
    """Whether the request comes from this machine."""
    client = scope.get("client")
    if client is None:
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False
