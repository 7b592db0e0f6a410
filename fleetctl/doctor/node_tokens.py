"""Whether the controller may do something to our nodes: asked through it, so that it is its token and not ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fleetctl.client import ControllerClient
from fleetctl.doctor.finding import Finding, Health
from fleetctl.kit.errors import FleetctlError
from fleetctl.wire.held import HeldRequests
from fleetctl.wire.node import Node, NodePhase

OWN = "fleetctl"  # engine; others take no token of ours
ANSWERING = frozenset({NodePhase.READY, NodePhase.CORDONED, NodePhase.DRAINING, NodePhase.DRAINED})
MAX_AT_ONCE = 20
MAX_NAMED = 5
MEND = "put the nodes' token back into node.token, or restart nodes, gateway and controller with the new one"


async def check_node_tokens(client: ControllerClient, nodes: Sequence[Node]) -> list[Finding]:
    """Nodes that would refuse a drain: their probes and scrapes need no token, so nothing else tells."""
    asked = [node.name for node in nodes if node.engine == OWN and node.phase in ANSWERING]
    room = asyncio.Semaphore(MAX_AT_ONCE)

    async def held(name: str) -> HeldRequests:
        async with room:
            try:
                return await client.node_requests(name)
            except FleetctlError as error:  # gone since it was listed, or an older controller
                return HeldRequests(unknown=error.message)

    return judge_node_tokens(dict(zip(asked, await asyncio.gather(*map(held, asked)), strict=True)))


def judge_node_tokens(held: dict[str, HeldRequests]) -> list[Finding]:
    """`held`: what each node says that it holds, or why it does not say."""
    refusing = [name for name, one in held.items() if one.is_refused]
    if refusing:
        more = f" and {len(refusing) - MAX_NAMED} more" if len(refusing) > MAX_NAMED else ""
        named = ", ".join(refusing[:MAX_NAMED]) + more
        seen = f"{named}: the controller's token is refused, so that nothing can be drained, or asked what it holds"
        return [Finding("node tokens", Health.bad, seen, MEND)]
    silent = [name for name, one in held.items() if one.unknown]
    if silent:
        return [Finding("node tokens", Health.unknown, f"{silent[0]}: {held[silent[0]].unknown}", "fleetctl get nodes")]
    return [Finding("node tokens", Health.good, f"{len(held)} take the controller's")] if held else []
