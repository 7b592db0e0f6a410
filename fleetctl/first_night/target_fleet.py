"""The fleet that a fault is injected into: its processes, its nodes' fault switches, and its users."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fleetctl.client import ControllerClient
from fleetctl.drill_fleet import change_faults
from fleetctl.first_night.fake_driver import FakeDriver
from fleetctl.first_night.tenants import Tenants
from fleetctl.first_night.traffic import DrillTraffic
from fleetctl.kit.errors import FleetctlError, UnreachableError
from fleetctl.providers.local import NODE_KIND
from fleetctl.providers.local_gateway import GATEWAY
from fleetctl.providers.process import children_of
from fleetctl.stack import Stack
from fleetctl.wire.alert import Alert, AlertState
from fleetctl.wire.node import NodePhase
from fleetctl.wire.run import ActionRequest, RunStatus

VICTIM = "node-2"  # of faults that are about one node
NODES = ("node-1", "node-2", "node-3")
POOL = "default"
CORE_WORDS = ("engine", "core")  # in a core's command line
PACE_EVERY_S = 3.0
POLL_S = 0.2
CLIENT_TIMEOUT_S = 30.0  # of a busy machine
FAKE_PACE = 10.0  # a fake step takes 2 ms: nothing would be in flight when a fault comes
ACT_TIMEOUT_S = 30.0
NONE: Mapping[str, Any] = MappingProxyType({})
OPERATOR = "first-night"  # who asks and approves, in the fleet's own records


class TargetFleet:
    """What faults are made of. Every method acts on this fleet's own processes alone."""

    def __init__(
        self,
        stack: Stack,
        client: ControllerClient,
        traffic: DrillTraffic,
        pace: float = 1.0,
        driver: FakeDriver | None = None,
        tenants: Tenants | None = None,
        node_faults: Mapping[str, Any] = NONE,
    ) -> None:
        """`pace`: how many times as long as by itself a healthy node's step takes. `driver`: of its nodes' GPUs.

        `node_faults`: of healthy nodes, beside the pace: what their model costs.
        """
        self._node_faults = dict(node_faults)
        self._beside: asyncio.Task[None] | None = None
        self.pace = pace
        self._driver = driver
        self._tenants = tenants
        self.stack = stack
        self.client = client
        self.traffic = traffic

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Signal one process by its name (controller, node-2), and none of its children; of a gateway, its workers too.

        Raises FleetctlError when it does not run.
        """
        if name.startswith(GATEWAY):  # each process of the table leads a group of its own
            with suppress(ProcessLookupError):
                os.killpg(self._pid(name), number)
        else:
            _send(self._pid(name), number)

    def signal_core(self, node: str, number: signal.Signals) -> None:
        """Signal the node's core process. Raises FleetctlError when the node has none."""
        if (pid := self.core_pid(node)) is None:
            raise FleetctlError(f"{node} has no core process")
        _send(pid, number)

    def limit_files(self, name: str, size: int | None) -> None:
        """The process can write no file beyond this size; None: it can again. Of a gateway, its workers too."""
        soft = resource.RLIM_INFINITY if size is None else size
        pid = self._pid(name)
        for one in (pid, *(children_of(pid) if name.startswith(GATEWAY) else ())):
            resource.prlimit(one, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))

    def core_pid(self, node: str) -> int | None:
        """The pid of the node's core process; None while it has none."""
        for child in children_of(self._pid(node)):
            words = _command_line(child)
            if any(words[at : at + 2] == list(CORE_WORDS) for at in range(len(words))):
                return child
        return None

    def nodes(self) -> list[str]:
        """Names of the nodes that were started here, running or not."""
        table = self.stack.table
        return [name for name in table.names() if table.spec(name).get("kind") == NODE_KIND]

    def is_running(self, name: str) -> bool:
        """Whether the process lives, stopped ones included."""
        return self.stack.table.observe(name).running

    def instance_of(self, name: str) -> str | None:
        """Which process runs under this name: another one after a restart, None while none does."""
        return self.stack.table.observe(name).instance

    async def set_faults(self, node: str, **faults: Any) -> None:
        """Turn faults of a node on, or off with None. Raises FleetctlError when the node refuses or is silent."""
        await change_faults(self.stack, node, faults)

    def change_gpu(self, node: str, changes: dict[str, int]) -> None:
        """From now on the node's GPU is a healthy one with these changes. Raises FleetctlError where it has none."""
        if self._driver is None:
            raise FleetctlError(f"{node} has no GPU")
        self._driver.answer(node, changes)

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on with this beside all else, in place of what did so before, until `end_beside`."""
        self.end_beside()
        self._beside = asyncio.create_task(work)

    def end_beside(self) -> None:
        """What goes on beside ends."""
        if self._beside is not None:
            self._beside.cancel()
            self._beside = None

    @property
    def tenants(self) -> Tenants:
        """Raises FleetctlError where its gateway wants no keys."""
        if self._tenants is None:
            raise FleetctlError("this fleet has no tenants")
        return self._tenants

    async def keep_pace(self) -> None:
        """Until cancelled: every node's steps take `pace` times as long, also after it or its core was started anew."""
        while True:
            for name in filter(self.is_running, self.nodes()):
                with suppress(FleetctlError):
                    if (await change_faults(self.stack, name)).get("slow_steps") is None:
                        await self.set_faults(name, slow_steps=self.pace, **self._node_faults)
            await asyncio.sleep(PACE_EVERY_S)

    async def clear_faults(self, node: str, *names: str) -> None:
        """Turn faults off on a node that may be gone."""
        with suppress(FleetctlError):
            await self.set_faults(node, **dict.fromkeys(names))

    async def act(self, command: str, timeout_s: float = ACT_TIMEOUT_S) -> None:
        """Carry out one fleetctl command, as an operator would. Raises FleetctlError when it is refused or fails."""
        run = await self.client.act(ActionRequest(command=command, reason="first night", requested_by=OPERATOR))
        deadline = time.monotonic() + timeout_s
        while not run.status.is_terminal and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
            run = await self.client.get_run(run.id)
        if run.status is not RunStatus.SUCCEEDED:
            raise FleetctlError(f"{command}: {run.status.value} {run.error}")

    async def start_missing(self) -> None:
        """`fleetctl up` again: start what does not run, and wait until all is ready."""
        await self.stack.up(lambda _: None)

    async def alerts_of(self, node: str) -> list[Alert]:
        """The node's alerts that are pending or firing; none while the controller does not answer."""
        try:
            alerts = await self.client.alerts()
        except UnreachableError:
            return []
        standing = (AlertState.PENDING, AlertState.FIRING)
        return [alert for alert in alerts if alert.labels.get("node") == node and alert.state in standing]

    async def ready_nodes(self) -> int:
        """Nodes that are ready, as the controller sees them; -1 when it does not answer."""
        try:
            return sum(node.phase is NodePhase.READY for node in await self.client.nodes())
        except FleetctlError:
            return -1

    def _pid(self, name: str) -> int:
        pid = self.stack.table.observe(name).pid
        if pid is None:
            raise FleetctlError(f"{name} does not run")
        return pid


def clear_state(stack: Stack) -> None:
    """Stop what an interrupted run left in the fleet's own state folder, and remove the folder."""
    stack.down(lambda _: None)
    shutil.rmtree(stack.settings.state_dir, ignore_errors=True)


@asynccontextmanager
async def open_target_fleet(
    stack: Stack,
    *,
    runner: str,
    rate_per_s: float = 1.0,
    seed: int = 0,
    has_gpus: bool = False,
    traffic_kind: Mapping[str, Any] = NONE,
    node_faults: Mapping[str, Any] = NONE,
) -> AsyncIterator[TargetFleet]:
    """The fleet, started, and stopped on the way out; fake nodes take longer steps.

    `rate_per_s`, `seed`, `traffic_kind`: of its users. `node_faults`: of healthy nodes, beside the pace.

    Raises FleetctlError when it does not come up.
    """
    settings = stack.settings
    tenants = Tenants(settings.gateway.tenants_file) if settings.gateway.tenants_file is not None else None
    driver = FakeDriver(settings.state_dir / "driver") if has_gpus else None
    try:
        with driver.installed() if driver is not None else nullcontext():
            view = await stack.up(lambda _: None)
        async with ControllerClient(view.controller_url, settings.controller_token(), CLIENT_TIMEOUT_S) as client:
            key = tenants.key if tenants is not None else None
            traffic = DrillTraffic(
                view.gateway_url, settings.fleet.model, rate_per_s=rate_per_s, seed=seed, api_key=key, kind=traffic_kind
            )
            pace = FAKE_PACE if runner == "fake" else 1.0
            fleet = TargetFleet(stack, client, traffic, pace, driver, tenants, node_faults)
            pacing = asyncio.create_task(fleet.keep_pace()) if fleet.pace > 1.0 or node_faults else None
            try:
                yield fleet
            finally:
                fleet.end_beside()
                if pacing is not None and not pacing.cancel():
                    pacing.result()  # it ended by itself: the drill was on nodes that cost nothing
    finally:
        await asyncio.shield(asyncio.to_thread(stack.down, lambda _: None))


async def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came to hold in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []
