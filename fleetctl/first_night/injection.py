"""What is done to the fleet: signals, switches and bursts, as actions that a fault is made of."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

from fleetctl.first_night.fault import FaultAction
from fleetctl.first_night.target_fleet import NODES, VICTIM, TargetFleet, wait_for
from fleetctl.kit.errors import FleetctlError
from fleetctl.load.generated_shapes import TrafficKind

SLOWDOWN = 10.0
AWAY_S = 20.0  # controller and gateway: how long they are stopped or gone
ROLLOUT_TIMEOUT_S = 180.0
LOOK_S = 0.3
HEARD_S = 5.0  # a node waits for events of its driver, and hears of each one at once
REPLAYS_FOR_S = 3600.0
KILLS, KILLS_WITHIN_S = 8, 110.0


async def slow_step(fleet: TargetFleet) -> None:
    await fleet.set_faults(VICTIM, slow_steps=SLOWDOWN * fleet.pace)


async def wait_until_pending(fleet: TargetFleet) -> None:
    await slow_step(fleet)
    for _ in range(150):
        if await fleet.alerts_of(VICTIM):
            return
        await asyncio.sleep(0.2)
    raise FleetctlError(f"no alert of {VICTIM} became pending")


def signal_to_process(number: signal.Signals, name: str = VICTIM) -> FaultAction:
    """Signals one process, and does nothing more."""

    async def inject(fleet: TargetFleet) -> None:
        fleet.send_signal(name, number)

    return inject


def signal_to_core(number: signal.Signals) -> FaultAction:
    async def inject(fleet: TargetFleet) -> None:
        fleet.signal_core(VICTIM, number)

    return inject


async def kill_core_often(fleet: TargetFleet) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    for count in range(KILLS):
        await asyncio.sleep(max(0.0, began + count * KILLS_WITHIN_S / (KILLS - 1) - loop.time()))
        if await wait_for(lambda: fleet.is_running(VICTIM) and fleet.core_pid(VICTIM) is not None, 10.0):
            fleet.signal_core(VICTIM, signal.SIGKILL)


async def make_idle(fleet: TargetFleet) -> None:
    await fleet.act(f"cordon {VICTIM}")
    for _ in range(300):
        node = await fleet.client.node(VICTIM)
        if node.running.value == 0 and node.waiting.value == 0:
            return
        await asyncio.sleep(0.2)
    raise FleetctlError(f"{VICTIM} did not become idle")


async def stop_idle_core(fleet: TargetFleet) -> None:
    fleet.signal_core(VICTIM, signal.SIGSTOP)
    await fleet.act(f"uncordon {VICTIM}")


def switch_on(*nodes: str, **faults: object) -> FaultAction:
    async def inject(fleet: TargetFleet) -> None:
        for node in nodes:
            await fleet.set_faults(node, **faults)

    return inject


def switch_off(*names: str) -> FaultAction:
    async def clear(fleet: TargetFleet) -> None:
        for node in NODES:
            if fleet.is_running(node):
                await fleet.clear_faults(node, *names)

    return clear


def burst(count: int, prompt_tokens: int, output_tokens: int) -> FaultAction:
    async def inject(fleet: TargetFleet) -> None:
        fleet.traffic.send_burst(count, prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    return inject


def stopped_for_a_while(name: str) -> FaultAction:
    async def inject(fleet: TargetFleet) -> None:
        fleet.send_signal(name, signal.SIGSTOP)
        try:
            await asyncio.sleep(AWAY_S)
        finally:
            fleet.send_signal(name, signal.SIGCONT)

    return inject


def killed(name: str) -> FaultAction:
    async def inject(fleet: TargetFleet) -> None:
        fleet.send_signal(name, signal.SIGKILL)
        await asyncio.sleep(AWAY_S)
        await fleet.start_missing()

    return inject


async def start_again(fleet: TargetFleet) -> None:
    """What a person does for a node whose process is gone or stands still, and nobody replaced."""
    if fleet.is_running(VICTIM):
        fleet.send_signal(VICTIM, signal.SIGCONT)
        if fleet.core_pid(VICTIM) is not None:
            fleet.signal_core(VICTIM, signal.SIGCONT)


def slowed(*nodes: str, factor: float) -> FaultAction:
    """Each step of these nodes takes so many times as long as a healthy one."""

    async def inject(fleet: TargetFleet) -> None:
        for node in nodes:
            await fleet.set_faults(node, slow_steps=factor * fleet.pace)

    return inject


def commanded(*commands: str) -> FaultAction:
    """An operator carries these out, one after the other."""

    async def inject(fleet: TargetFleet) -> None:
        for command in commands:
            await fleet.act(command, ROLLOUT_TIMEOUT_S)

    return inject


def undone(*commands: str) -> FaultAction:
    """An operator takes it back; what a page has taken back already is refused, and that is right."""

    async def clear(fleet: TargetFleet) -> None:
        for command in commands:
            with suppress(FleetctlError):
                await fleet.act(command, ROLLOUT_TIMEOUT_S)

    return clear


def traffic_of(**changes: object) -> FaultAction:
    """The users send something else from now on."""

    async def inject(fleet: TargetFleet) -> None:
        fleet.traffic.change_kind(**changes)

    return inject


def impatient(kind: TrafficKind, *, patience_s: float, tries: int = 1) -> FaultAction:
    """More users come, who hang up after so long."""

    async def inject(fleet: TargetFleet) -> None:
        fleet.traffic.send_impatient(kind, patience_s=patience_s, tries=tries)

    return inject


async def usual_traffic(fleet: TargetFleet) -> None:
    """The users send what they always sent."""
    fleet.traffic.end_flows()


def signal_to_all(number: signal.Signals) -> FaultAction:
    """Signals the API process of every node at the same moment."""

    async def inject(fleet: TargetFleet) -> None:
        for node in NODES:
            if fleet.is_running(node):
                fleet.send_signal(node, number)

    return inject


def gpu_of(node: str, **changes: int) -> FaultAction:
    """The driver of a node says this of its card; see `FakeDriver.answer`."""

    async def inject(fleet: TargetFleet) -> None:
        fleet.end_beside()
        fleet.change_gpu(node, changes)

    return inject


def both(*actions: FaultAction) -> FaultAction:
    """One after the other."""

    async def inject(fleet: TargetFleet) -> None:
        for action in actions:
            await action(fleet)

    return inject


def deployed(command: str, *, num_new: int = len(NODES), slower: float = 1.0, **faults: object) -> FaultAction:
    """An operator rolls out a revision, and each of its nodes computes so much slower, or with these faults."""

    async def inject(fleet: TargetFleet) -> None:
        await fleet.act(command, ROLLOUT_TIMEOUT_S)
        loop = asyncio.get_running_loop()
        until, spoilt = loop.time() + ROLLOUT_TIMEOUT_S, set[str]()
        while loop.time() < until and len(spoilt) < num_new:
            for node in set(fleet.nodes()) - set(NODES) - spoilt:
                with suppress(FleetctlError):  # it does not answer yet
                    await fleet.set_faults(node, slow_steps=slower * fleet.pace, **faults)
                    spoilt.add(node)
            await asyncio.sleep(LOOK_S)

    return inject


def disk_full(name: str) -> FaultAction:
    """No file of a process can grow from now on."""

    async def inject(fleet: TargetFleet) -> None:
        fleet.limit_files(name, 0)

    return inject


def disk_free(name: str) -> FaultAction:
    """Its files may grow again."""

    async def clear(fleet: TargetFleet) -> None:
        fleet.limit_files(name, None)

    return clear


def restarted_slowly(node: str, loads_s: float) -> FaultAction:
    """An operator restarts a node, whose core stands still for so long while it loads."""

    async def inject(fleet: TargetFleet) -> None:
        await fleet.act(f"drain {node}", ROLLOUT_TIMEOUT_S)  # a node that holds requests is not restarted
        before = fleet.instance_of(node)
        restarting = asyncio.create_task(fleet.act(f"restart {node}", loads_s + ROLLOUT_TIMEOUT_S))
        is_new = await wait_for(
            lambda: fleet.instance_of(node) not in (None, before) and fleet.core_pid(node) is not None,
            ROLLOUT_TIMEOUT_S,
        )
        if is_new:
            fleet.signal_core(node, signal.SIGSTOP)
            await asyncio.sleep(loads_s)
            fleet.signal_core(node, signal.SIGCONT)
        await restarting
        with suppress(FleetctlError):  # it may have come back to routing by itself
            await fleet.act(f"uncordon {node}")

    return inject


async def go_on(fleet: TargetFleet) -> None:
    """The processes of all nodes that stand still go on."""
    for node in filter(fleet.is_running, fleet.nodes()):
        fleet.send_signal(node, signal.SIGCONT)


def tenants_written(text: str = "", *, requests_per_min: int | None = None) -> FaultAction:
    """Somebody saves the tenants file, with this text or with a limit for the users' own tenant."""

    async def inject(fleet: TargetFleet) -> None:
        fleet.tenants.write(text, requests_per_min=requests_per_min)

    return inject


async def usual_tenants(fleet: TargetFleet) -> None:
    """The tenants file is as it was, and only its own users send."""
    fleet.tenants.write()
    fleet.traffic.end_flows()


def traffic_beside(**changes: object) -> FaultAction:
    """Beside the users' own traffic the same tenant sends this."""

    async def inject(fleet: TargetFleet) -> None:
        fleet.traffic.send_beside(changes)

    return inject


def another_tenant(**changes: object) -> FaultAction:
    """Another tenant sends this, beside the users' own."""

    async def inject(fleet: TargetFleet) -> None:
        fleet.traffic.send_beside(changes, api_key=fleet.tenants.other_key)

    return inject


async def users_apart(fleet: TargetFleet) -> None:
    """Half of the users' requests are another tenant's from now on, and each of those keeps its cache to itself."""
    half = fleet.traffic.rate_per_s / 2
    fleet.traffic.change_kind(rate_per_s=half)
    fleet.traffic.send_beside({"rate_per_s": half}, api_key=fleet.tenants.other_key, salts_each=True)


def xids_of(node: str, code: int, *, times: int = 1) -> FaultAction:
    """The driver reports an XID so many times, and is as before."""

    async def inject(fleet: TargetFleet) -> None:
        for seq in range(1, times + 1):
            fleet.change_gpu(node, {"xid__seq": seq, "xid__code": code})
            await asyncio.sleep(HEARD_S)
        fleet.change_gpu(node, {})

    return inject


def pcie_replays(node: str) -> FaultAction:
    """The card's count of packets that were sent again grows by twenty a second."""

    async def inject(fleet: TargetFleet) -> None:
        async def count() -> None:
            for seconds in range(1, round(REPLAYS_FOR_S)):
                fleet.change_gpu(node, {"pcie_replay": 20 * seconds})
                await asyncio.sleep(1.0)

        fleet.beside(count())

    return inject
