"""What the soak does to the fleet: one thing at a time, mended before the next, so that some node can always go on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import httpx

from fleetctl.first_night.target_fleet import TargetFleet
from fleetctl.gateway.workers.launch import SupervisorState, workers_folder
from fleetctl.gateway_soak.gateway_downtimes import GatewayDowntimes
from fleetctl.kit.errors import FleetctlError
from fleetctl.kit.tls import NO_TLS
from fleetctl.providers.local_gateway import GATEWAY
from fleetctl.wire.node import NodePhase

STOPPED_S = 8.0
SLOWED_S = 5.0
SLOWDOWN = 4.0
MEND_LIMIT_S = 180.0
MAX_PROBLEMS = 5
LOOK_TIMEOUT_S = 5.0
POLL_S = 0.2
ADDED = "added"


class Disturber:
    """Disturbs nodes and gateways until it is cancelled; counts what it did."""

    unit = "disturbances"

    def __init__(self, fleet: TargetFleet, gateways: Mapping[str, str], *, seed: int, pause_s: float) -> None:
        """`gateways`: URLs by name. Only of two one is killed: with one, its requests in flight are lost by design."""
        self._fleet = fleet
        self._gateways = gateways
        self._rng = random.Random(seed)
        self._pause_s = pause_s
        self._num_added = 0
        self.downtimes = GatewayDowntimes()
        self.doing = "nothing yet"  # and to which node, for who watches
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []
        self._problems_in_a_row = 0

    async def disturb_until_cancelled(self) -> None:
        """All kinds in random order, each at a random node and mended; then in another order."""
        kinds: list[Callable[[str], Awaitable[None]]] = [
            self.kill_node,
            self.kill_core,
            self.stop_node,
            self.stop_core,
            self.drain_node,
            self.slow_node,
            self.add_node,
            self.reload_gateway,
        ]
        if len(self._gateways) > 1:
            kinds += [self.kill_gateway, self.kill_worker]
        while not self.has_given_up:
            for kind in self._rng.sample(kinds, len(kinds)):
                node = self._rng.choice(self._nodes())
                self.doing = f"{kind.__name__} {node}"
                try:
                    await kind(node)
                    await self.wait_until_whole()
                    self.downtimes.note_all_back()
                    self.done[kind.__name__] += 1
                    self.note_mended()
                except (FleetctlError, OSError) as error:
                    self.note_problem(error)
                await asyncio.sleep(self._pause_s)

    async def wait_until_whole(self) -> None:
        """Until every node and gateway serves. Raises FleetctlError when that takes too long."""
        deadline = time.monotonic() + MEND_LIMIT_S
        async with httpx.AsyncClient(timeout=LOOK_TIMEOUT_S, trust_env=False, verify=NO_TLS) as http:
            while not await self._is_whole(http):
                if time.monotonic() > deadline:
                    raise FleetctlError(f"the fleet was not whole within {MEND_LIMIT_S:.0f} s")
                await asyncio.sleep(POLL_S)

    @property
    def has_given_up(self) -> bool:
        """Whether it stopped, because the fleet does not mend."""
        return self._problems_in_a_row >= MAX_PROBLEMS

    def note_problem(self, error: Exception) -> None:
        """What was being done did not go as it should."""
        self.problems.append(f"{self.doing}: {error}"[:200])
        self._problems_in_a_row += 1

    def note_mended(self) -> None:
        """What was being done is over, and the fleet is whole again."""
        self._problems_in_a_row = 0

    @property
    def num_done(self) -> int:
        """Disturbances that were mended."""
        return sum(self.done.values())

    async def kill_node(self, node: str) -> None:
        """SIGKILL of its API process, with which its core ends; started again a moment later."""
        await self._kill_process(node)
        await asyncio.sleep(1.0)
        self._fleet.stack.table.start_again(node)

    async def kill_core(self, node: str) -> None:
        """SIGKILL of its engine core alone; the node starts another one."""
        await self._signal_core(node, signal.SIGKILL)

    async def stop_core(self, node: str) -> None:
        """SIGSTOP of its engine core: the node finds it stuck, ends it and starts another one."""
        await self._signal_core(node, signal.SIGSTOP)

    async def stop_node(self, node: str) -> None:
        """SIGSTOP of its API process: it takes connections and answers nothing."""
        self._fleet.send_signal(node, signal.SIGSTOP)
        try:
            await asyncio.sleep(STOPPED_S)
        finally:
            self._fleet.send_signal(node, signal.SIGCONT)

    async def drain_node(self, node: str) -> None:
        """What an operator does before a restart."""
        await self._fleet.act(f"drain {node} --deadline 1s", timeout_s=MEND_LIMIT_S)
        await self._fleet.act(f"uncordon {node}", timeout_s=MEND_LIMIT_S)

    async def slow_node(self, node: str) -> None:
        """Each of its steps takes several times as long."""
        await self._fleet.set_faults(node, slow_steps=SLOWDOWN * self._fleet.pace)
        try:
            await asyncio.sleep(SLOWED_S)
        finally:
            await self._fleet.clear_faults(node, "slow_steps")

    async def add_node(self, node: str) -> None:
        """One more node like this one, for a while, and away again in good order."""
        self._num_added += 1
        name = f"{ADDED}-{self._num_added}"
        for command in (f"node start {name} --like {node}", f"drain {name} --deadline 1s", f"node stop {name}"):
            await self._fleet.act(command, timeout_s=MEND_LIMIT_S)
            await asyncio.sleep(self._pause_s)

    async def reload_gateway(self, _: str) -> None:
        """New workers in place of the old ones, which end what they have."""
        name, before = self._any_gateway()
        os.kill(before.pid, signal.SIGHUP)
        await self._until(lambda: self._supervisor(name).reloads > before.reloads, f"{name} is reloaded")
        if (problem := self._supervisor(name).reload_error) is not None:
            raise FleetctlError(f"{name} was not reloaded: {problem}")

    async def kill_worker(self, _: str) -> None:
        """SIGKILL of one worker of a gateway; its supervisor starts another one."""
        name, state = self._any_gateway()
        self.downtimes.note_killed(self._gateways[name])
        os.kill(self._rng.choice(state.workers).pid, signal.SIGKILL)
        await self._until(lambda: self._supervisor(name).deaths > state.deaths, f"{name} lost the worker")

    async def kill_gateway(self, _: str) -> None:
        """SIGKILL of one of two with its workers; the controller starts its own again, we the other one."""
        name = self._rng.choice(list(self._gateways))
        self.downtimes.note_killed(self._gateways[name])
        await self._kill_process(name)
        if name != GATEWAY:
            await asyncio.sleep(1.0)
            self._fleet.stack.table.start_again(name)

    async def _kill_process(self, name: str) -> None:
        """SIGKILL, and wait for its end. The controller may have started a gateway again before anybody looks."""
        killed = self._fleet.instance_of(name)
        self._fleet.send_signal(name, signal.SIGKILL)
        await self._until(lambda: self._fleet.instance_of(name) != killed, f"{name} is gone")

    def _nodes(self) -> list[str]:
        return [name for name in self._fleet.nodes() if not name.startswith(ADDED)]

    async def _signal_core(self, node: str, number: signal.Signals) -> None:
        before = self._fleet.core_pid(node)
        self._fleet.signal_core(node, number)
        await self._until(lambda: self._fleet.core_pid(node) not in (None, before), f"{node} has another core")

    def _any_gateway(self) -> tuple[str, SupervisorState]:
        name = self._rng.choice(list(self._gateways))
        return name, self._supervisor(name)

    def _supervisor(self, name: str) -> SupervisorState:
        port = httpx.URL(self._gateways[name]).port
        assert port is not None
        folder = workers_folder(self._fleet.stack.settings.run_dir / GATEWAY, port)
        state = SupervisorState.read(folder)
        if state is None:
            raise FleetctlError(f"{folder}: no state of {name}")
        return state

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + MEND_LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise FleetctlError(f"not so within {MEND_LIMIT_S:.0f} s: {what}")
            await asyncio.sleep(POLL_S)

    async def _is_whole(self, http: httpx.AsyncClient) -> bool:
        """Whether every node and gateway serves, by its own word and the controller's: two at once are another test."""
        try:
            nodes = [node for node in await self._fleet.client.nodes() if node.phase is not NodePhase.STOPPED]
        except FleetctlError:
            return False
        if any(node.phase is not NodePhase.READY for node in nodes):
            return False
        urls = [f"{self._fleet.stack.table.observe(name).url}/health/ready" for name in self._nodes()]
        urls += [f"{url}/health" for url in self._gateways.values()]
        try:
            return all([(await http.get(url)).status_code == httpx.codes.OK for url in urls])
        except httpx.HTTPError:
            return False
