"""How often one caller may ask: a bucket for what it reads and a smaller one for what it changes.

A script that asks in a loop by mistake would take the time of the one loop that also judges the fleet. Each token has
its own buckets, and so has each address that sends none: nobody is held up by another one's requests.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from http import HTTPStatus

import structlog
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from fleetctl.controller.access.identity import Identity
from fleetctl.controller.access.tokens import LOCAL
from fleetctl.controller.records import Records
from fleetctl.settings.controller import RateLimitSettings
from fleetctl.wire.base import Problem

log = structlog.get_logger()

MAX_CALLERS = 2000  # whose buckets are kept; whoever asked longest ago has full ones by then
LOG_EVERY_S = 60.0
BURST_S = 10.0  # what was not used in so long may come at once
# Gateways ask for the table as long as they serve, and whoever watches the process for its health: never held up by
# what else their machine's programs ask.
FREE_PATHS = frozenset({"/health/live", "/health/leader", "/metrics", "/v1/routing", "/v1/routing/signals"})


class RateLimit:
    """A token bucket: `per_s` on average, and up to `burst` at once after a quiet time."""

    __slots__ = ("_at", "_capacity", "_left", "_per_s")

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._capacity = max(1.0, burst)
        self._left = self._capacity
        self._at: float | None = None

    def wait_s(self, now: float) -> float:
        """0 and one taken, or the seconds after which there is one again."""
        if self._at is not None:
            passed = max(0.0, now - self._at)  # a clock that was set back gives nothing and takes nothing
            self._left = min(self._capacity, self._left + passed * self._per_s)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._per_s


class RateLimits:
    """The buckets of every caller."""

    def __init__(self, settings: RateLimitSettings, records: Records) -> None:
        self._settings = settings
        self._records = records
        self._buckets: OrderedDict[tuple[str, str], RateLimit] = OrderedDict()
        self._log_again_at = 0.0

    def refusal(self, scope: Scope, identity: Identity | None) -> Response | None:
        """429 for a caller that asks too often. `identity`: None, of one that no token names."""
        if scope["path"] in FREE_PATHS:
            return None
        kind = "reads" if scope["method"] in ("GET", "HEAD", "OPTIONS") else "changes"
        per_s = self._settings.reads_per_s if kind == "reads" else self._settings.changes_per_s
        client = scope.get("client")
        if identity is None or identity.via == LOCAL.via:
            by, caller = "address", str(client[0]) if client is not None else "unknown"
        else:
            by, caller = "token", identity.name
        wait_s = self._bucket(kind, f"{by} {caller}", per_s).wait_s(self._records.clock.now())
        if not wait_s:
            return None
        self._note(kind, by, caller)
        seconds = math.ceil(wait_s)
        problem = Problem(
            error=f"{caller} asks too often: more than {per_s:g} {kind} a second",
            remedy=f"ask again in {seconds} s; who needs more raises controller.rate_limits.{kind}_per_s",
            exit_code=3,
        )
        return JSONResponse(problem.model_dump(), HTTPStatus.TOO_MANY_REQUESTS, {"Retry-After": str(seconds)})

    def _bucket(self, kind: str, caller: str, per_s: float) -> RateLimit:
        key = kind, caller
        bucket = self._buckets.pop(key, None) or RateLimit(per_s, per_s * BURST_S)
        self._buckets[key] = bucket
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        return bucket

    def _note(self, kind: str, by: str, caller: str) -> None:
        self._records.metrics.rate_limited.labels(kind=kind, by=by).inc()
        now = self._records.clock.now()
        if now >= self._log_again_at:
            self._log_again_at = now + LOG_EVERY_S
            log.warning("http.rate_limited", kind=kind, by=by, caller=caller)
