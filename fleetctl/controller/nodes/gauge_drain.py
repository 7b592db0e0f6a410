"""The drain of a node whose engine has no drain of its own: nothing new is sent there, what it holds is waited for, and
at the deadline gateways let it go on elsewhere.

What it holds is the word of its own gauges, scraped after the last request could have been sent, and of the gateways.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fleetctl.controller.nodes.gateways import Gateways
from fleetctl.controller.nodes.node_answers import NoAnswerError
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.controller.nodes.node_row import NodeRow, RouteIntent, get_node
from fleetctl.controller.nodes.routing import GatewayWatch, Routing
from fleetctl.controller.records import Records
from fleetctl.engines.kind import EngineKind
from runbooks.ports import PermanentError, Receipt, TemporaryError

POLL_S = 0.2
HeldSince = Callable[[str, float], int | None]
"""Requests that a node holds, measured at or after a time; None: no such measurement yet."""


@dataclass(frozen=True, slots=True)
class GaugeDrain:
    """One for all such drains. Called again after a crash it goes on waiting: a cordoned node is cordoned."""

    records: Records
    client: NodeClient
    gateways: Gateways
    gateway: GatewayWatch
    routing: Routing
    held_since: HeldSince
    grace_s: float

    async def drain(self, row: NodeRow, kind: EngineKind, deadline_s: float) -> Receipt:
        """Returns once it holds nothing. Raises TemporaryError when it still does after the deadline and the grace, or
        when nobody says what it holds."""
        clock, name = self.records.clock, row.name
        version = await self.routing.change(name, route=RouteIntent.CORDONED)
        said = await self.gateway.follow(version)
        began, moved = clock.now(), False
        receipt: Receipt = {"node": name, "table_version": version, "gateway": said}
        while True:
            held = await self.held(name, kind, began)
            if held == 0:
                break
            waited_s = clock.now() - began
            if waited_s > deadline_s and not moved:
                moved = True
                version = await self.routing.change(name, route=RouteIntent.LEAVING)
                await self.gateway.follow(version)
            if waited_s > deadline_s + self.grace_s:
                await self._cordon_again(name)
                left = "nobody says how many requests it holds" if held is None else f"it still holds {held} requests"
                raise TemporaryError(f"{name}: {left} {self.grace_s:.0f} s after its deadline")
            await clock.sleep(POLL_S)
            await self._check_wanted(name)
        if moved:
            await self._cordon_again(name)
        how = "what was left at the deadline went on elsewhere" if moved else "it finished what it held"
        return {**receipt, "state": "drained", "note": how}

    async def held(self, name: str, kind: EngineKind, since: float) -> int | None:
        """By its own gauges and the gateways, whichever is more; None while one of them says nothing."""
        own = self.held_since(name, since) if kind.tells_load else 0
        sent = await self._open_at_gateways(name)
        return None if own is None or sent is None else max(own, sent)

    async def _open_at_gateways(self, name: str) -> int | None:
        total = 0
        for url in self.gateways.urls:
            try:
                report = await self.client.gateway_report(url)
            except NoAnswerError:
                # One that is gone carries nothing; one that hangs may. The engine's own word settles it.
                continue
            total += report.inflight.get(name, 0)
        return total

    async def _cordon_again(self, name: str) -> None:
        standing = {"wanted": True, "route": RouteIntent.LEAVING}
        await self.routing.change(name, only_if=standing, route=RouteIntent.CORDONED)

    async def _check_wanted(self, name: str) -> None:
        row = await self.records.database.read(lambda c: get_node(c, name))
        if row is None or not row.wanted:
            raise PermanentError(f"{name} is not in the fleet any more")
