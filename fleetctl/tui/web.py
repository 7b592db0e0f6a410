"""The cockpit in a browser: textual-serve on loopback, behind a token of its own.

A process of `fleetctl top` runs for each page that is open, so whoever gets in may do what this user may. The token is
in the address that is printed and goes into a cookie; other names of this machine and other pages are refused, and the
browser is told to load nothing from anywhere else.
"""

from __future__ import annotations

import hmac
import secrets
import sys
from collections.abc import Awaitable, Callable

from aiohttp import web
from textual_serve.server import Server

HOST = "127.0.0.1"
COOKIE = "fleetctl-cockpit"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebCockpit(Server):
    """Serves one command; `address` is what a person opens."""

    def __init__(self, command: str, port: int, token: str | None = None) -> None:
        super().__init__(command, host=HOST, port=port, title="fleetctl top")
        self._token = token or secrets.token_urlsafe(24)

    @property
    def address(self) -> str:
        """With the token."""
        return f"{self.public_url}/?token={self._token}"

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guard(request, handler)

        app.middlewares.append(guarded)
        return app

    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Who came by the address that was printed, and nobody else."""
        own = f"{HOST}:{self.port}"
        origin = request.headers.get("Origin", self.public_url)
        if request.host != own or origin != self.public_url:
            raise web.HTTPForbidden(text=f"open {self.public_url} with its token\n")
        if self._is_token(request.query.get("token", "")):
            moved = web.HTTPFound("/")
            moved.set_cookie(COOKIE, self._token, httponly=True, samesite="Strict")
            raise moved
        if not self._is_token(request.cookies.get(COOKIE, "")):
            raise web.HTTPUnauthorized(text="open the address that fleetctl top --web printed: it has the token\n")
        answer = await handler(request)
        if not answer.prepared:
            answer.headers["Content-Security-Policy"] = (
                "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
                f"img-src 'self' data:; connect-src 'self' ws://{own}; frame-ancestors 'none'"
            )
        return answer

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    async def on_startup(self, app: web.Application) -> None:
        """Say where it is."""
        sys.stdout.write(f"{self.address}\n")
        sys.stdout.flush()

    def initialize_logging(self) -> None:
        """Ours is set up already."""
