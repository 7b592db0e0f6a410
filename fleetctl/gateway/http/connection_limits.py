"""How many connections clients may hold, and for how long in each state: judged for all of them by one sweep."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import structlog

from fleetctl.gateway.http.body_budget import BodyBudget
from fleetctl.settings.gateway_http import GatewayHttpSettings

log = structlog.get_logger()

SWEEP_S = 0.5
LINGER_S = 2.0  # after a refusal: what the client still sends is read away, so that it sees the answer
LOG_EVERY_S = 60.0


class Limited(Protocol):
    """A connection, as far as limits on it go."""

    address: str

    def expire_head(self) -> None:
        """Its head took too long."""

    def abort(self) -> None:
        """Close at once."""

    def close_unused(self) -> None:
        """Close unless a request has begun."""

    def expire_slow(self) -> None:
        """It did not read what was sent for too long."""


class ConnectionLimits:
    """The open connections of one process, by state, oldest first. Threading: event loop only."""

    def __init__(
        self, settings: GatewayHttpSettings, max_connections: int, *, count: Callable[[str], None] = lambda reason: None
    ) -> None:
        """`count` hears the reason of each connection that is ended by a limit."""
        self.settings = settings
        self.max_connections = max_connections
        self.bodies = BodyBudget(
            settings.max_receiving_bytes,
            clock=time.monotonic,
            on_full=lambda: self.note("bodies_full"),
        )
        self.is_draining = False
        self._keeps_idle = True  # while draining
        self.emptied = asyncio.Event()  # draining, and the last connection has ended
        self._count = count
        self._open: set[Limited] = set()
        self._by_address: Counter[str] = Counter()
        # Loop time since when a connection is in a state. Dictionaries keep their order: the first is the oldest.
        self._heads: dict[Limited, float] = {}
        self._heads_by_address: dict[str, dict[Limited, None]] = {}
        self._idle: dict[Limited, float] = {}
        self._slow: dict[Limited, float] = {}
        self._lingering: dict[Limited, float] = {}
        self._log_again_s = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Limited) -> str | None:
        """Take a new connection in: None, or the reason why there is no room.

        When all places are taken, the client that is longest at its head has to go, or the one idle for longest.
        """
        address = connection.address
        if self._by_address[address] >= self.settings.max_connections_per_address:
            self.note("address_full")
            return "too many connections from this address"
        if len(self._open) >= self.max_connections:
            oldest = next(iter(self._heads), None) or next(iter(self._idle), None)
            self.note("full")
            if oldest is None:
                return "too many connections"
            self.leave(oldest)
            oldest.abort()
        heads = self._heads_by_address.get(address)
        if heads is not None and len(heads) >= self.settings.max_half_open_per_address:
            self.note("half_open")
            oldest = next(iter(heads))
            self.leave(oldest)
            oldest.abort()
        self._open.add(connection)
        self._by_address[address] += 1
        return None

    def begin_head(self, connection: Limited, now: float) -> None:
        """It is expected to send a head now."""
        self._idle.pop(connection, None)
        self._heads[connection] = now
        self._heads_by_address.setdefault(connection.address, {})[connection] = None

    def end_head(self, connection: Limited) -> None:
        """Its head is there."""
        if self._heads.pop(connection, None) is not None:
            heads = self._heads_by_address[connection.address]
            del heads[connection]
            if not heads:
                del self._heads_by_address[connection.address]

    def begin_idle(self, connection: Limited, now: float) -> None:
        """It has its answer and may send another request, unless its answer began before a drain that keeps none."""
        self._idle[connection] = now
        if self.is_draining and not self._keeps_idle:
            connection.close_unused()

    def end_idle(self, connection: Limited) -> None:
        """It sends again."""
        self._idle.pop(connection, None)

    def begin_slow(self, connection: Limited, now: float) -> None:
        """Its buffer is full."""
        self._slow[connection] = now

    def end_slow(self, connection: Limited) -> None:
        """There is room again."""
        self._slow.pop(connection, None)

    def linger(self, connection: Limited, now: float) -> None:
        """It was refused, and may not have read that yet."""
        self._idle.pop(connection, None)
        self.end_head(connection)
        self._lingering[connection] = now

    def leave(self, connection: Limited) -> None:
        """It is closed."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]
        self.end_head(connection)
        for state in (self._idle, self._slow, self._lingering):
            state.pop(connection, None)
        if self.is_draining and not self._open:
            self.emptied.set()

    def sweep(self, now: float) -> None:
        """End what has been in its state for too long."""
        settings = self.settings
        for connection in _expired(self._heads, now - settings.head_limit_s):
            self.note("head_timeout")
            self.end_head(connection)
            connection.expire_head()
        for connection in _expired(self._idle, now - settings.idle_limit_s):
            self._idle.pop(connection, None)
            connection.abort()
        for connection in _expired(self._slow, now - settings.slow_client_limit_s):
            self.note("slow_client")
            self._slow.pop(connection, None)
            connection.expire_slow()
        for connection in _expired(self._lingering, now - LINGER_S):
            self._lingering.pop(connection, None)
            connection.abort()

    async def sweep_forever(self) -> None:
        """Sweep until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep(loop.time())

    def begin_drain(self, *, keeps_idle: bool) -> None:
        """From now on each connection ends with its next answer. Those without a request end now, or wait for one."""
        self.is_draining = True
        self._keeps_idle = keeps_idle
        if not self._open:
            self.emptied.set()
        if not keeps_idle:
            for connection in [*self._idle, *self._heads]:
                connection.close_unused()

    def abort_all(self) -> None:
        """Close everything at once."""
        for connection in list(self._open):
            connection.abort()

    def note(self, reason: str) -> None:
        """Count an ended connection; a flood gives one log line a minute."""
        self._count(reason)
        now = asyncio.get_running_loop().time()
        if now >= self._log_again_s:
            self._log_again_s = now + LOG_EVERY_S
            log.warning(
                "http.connection_ended",
                reason=reason,
                open=len(self._open),
                half_open=len(self._heads),
                idle=len(self._idle),
            )


def _expired(state: dict[Limited, float], until: float) -> list[Limited]:
    expired = []
    for connection, since in state.items():
        if since > until:
            break
        expired.append(connection)
    return expired
