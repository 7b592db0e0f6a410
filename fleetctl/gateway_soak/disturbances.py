"""What the soak does to the fleet: one thing at a time, mended before the next, so that some node can always go on."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable

from fleetctl.first_night.target_fleet import TargetFleet
from fleetctl.kit.errors import FleetctlError
from fleetctl.wire import NodePhase

STOPPED_S = 8.0
SLOWED_S = 5.0
SLOWDOWN = 4.0
MEND_LIMIT_S = 60.0
POLL_S = 0.2
GATEWAY_NAMES = ("gateway", "gateway-2")


class Disturber:
    """Disturbs nodes, and gateways where there are two, until it is cancelled; counts what it did."""

    def __init__(self, fleet: TargetFleet, *, seed: int, num_gateways: int, pause_s: float) -> None:
        self._fleet = fleet
        self._chance = random.Random(seed)
        self._num_gateways = num_gateways
        self._pause_s = pause_s
        self._num_added = 0
        self.doing = "nothing yet"  # and to which node, for who watches
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []

    async def disturb_until_cancelled(self) -> None:
        """One disturbance after the other, each followed by a pause."""
        kinds: list[Callable[[str], Awaitable[None]]] = [
            self.kill_node,
            self.kill_core,
            self.stop_for_a_while,
            self.drain_and_return,
            self.slow_down,
            self.add_node,
        ]
        if self._num_gateways > 1:
            kinds.append(self.kill_gateway)
        while True:
            for kind in self._chance.sample(kinds, len(kinds)):
                node = self._chance.choice(self._nodes())
                self.doing = f"{kind.__name__} {node}"
                try:
                    await kind(node)
                    self.done[kind.__name__] += 1
                    await self._until_ready()
                except (FleetctlError, OSError) as error:
                    self.problems.append(f"{kind.__name__} {node}: {error}"[:200])
                await asyncio.sleep(self._pause_s)

    async def kill_node(self, node: str) -> None:
        """SIGKILL of both its processes; started again a moment later."""
        self._fleet.send_signal(node, signal.SIGKILL)
        await asyncio.sleep(1.0)
        self._fleet.stack.table.start_again(node)

    async def kill_core(self, node: str) -> None:
        """SIGKILL of its engine core alone; the node starts another one."""
        self._fleet.signal_core(node, signal.SIGKILL)

    async def stop_for_a_while(self, node: str) -> None:
        """SIGSTOP: it takes connections and answers nothing."""
        self._fleet.send_signal(node, signal.SIGSTOP)
        try:
            await asyncio.sleep(STOPPED_S)
        finally:
            self._fleet.send_signal(node, signal.SIGCONT)

    async def drain_and_return(self, node: str) -> None:
        """What an operator does before a restart."""
        await self._fleet.act(f"drain {node} --deadline 1s")
        await self._fleet.act(f"uncordon {node}")

    async def slow_down(self, node: str) -> None:
        """Each of its steps takes several times as long."""
        await self._fleet.set_faults(node, slow_steps=SLOWDOWN * self._fleet.pace)
        try:
            await asyncio.sleep(SLOWED_S)
        finally:
            await self._fleet.clear_faults(node, "slow_steps")

    async def add_node(self, node: str) -> None:
        """One more node like this one, and away again in good order."""
        self._num_added += 1
        name = f"added-{self._num_added}"
        await self._fleet.act(f"node start {name} --like {node}")
        await self._fleet.act(f"drain {name} --deadline 1s")
        await self._fleet.act(f"node stop {name}")

    async def kill_gateway(self, _: str) -> None:
        """SIGKILL of one of two; the controller starts its own again, we the other."""
        name = self._chance.choice(GATEWAY_NAMES)
        self._fleet.send_signal(name, signal.SIGKILL)
        await asyncio.sleep(1.0)
        self._fleet.stack.table.start_again(name)

    def _nodes(self) -> list[str]:
        return [name for name in self._fleet.nodes() if "added" not in name]

    async def _until_ready(self) -> None:
        """Until every node of the fleet serves again: two at once are another test."""
        for _ in range(int(MEND_LIMIT_S / POLL_S)):
            nodes = [node for node in await self._fleet.client.nodes() if node.phase is not NodePhase.STOPPED]
            if all(node.phase is NodePhase.READY for node in nodes):
                return
            await asyncio.sleep(POLL_S)
        self.problems.append(f"the fleet was not whole a minute after {self.doing}")
