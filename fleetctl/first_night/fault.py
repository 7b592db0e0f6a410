"""The faults of the night: what is done to the fleet, and what a person on call may expect of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fleetctl.first_night.target_fleet import NODES, VICTIM, TargetFleet, wait_for
from fleetctl.kit.errors import FleetctlError

FaultAction = Callable[[TargetFleet], Coroutine[Any, Any, None]]

ENGINE_SERIES = ("vllm:",)  # beginnings of the names of a node's own series
SLOWDOWN = 10.0
AWAY_S = 20.0  # controller and gateway: how long they are stopped or gone
KILLS, KILLS_WITHIN_S = 8, 110.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is right. Empty `alerts`: nobody is to be woken."""

    alerts: tuple[str, ...] = ()  # one of them fires first
    is_quiet_unless_felt: bool = False  # no alert is right too, when nobody waited 30 s for a first token
    causes: tuple[str, ...] = ()  # one of them is named; empty: none is asked for
    pages: tuple[str, ...] = ()  # one of them is proposed, and its run succeeds; empty: a person decides
    optional_pages: tuple[str, ...] = ()  # may be proposed as well, or instead of nothing
    onset_within_s: float = 30.0  # of the post-mortem's: rates look back over 20 s
    loss: str = ""  # why requests may be lost; "": another node could take every one of them
    late: str = ""  # why users may wait more than 30 s for a first token


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the night."""

    name: str
    title: str
    inject: FaultAction
    expects: Expectation
    clear: FaultAction | None = None  # ends what no page mends, as a person would; None: it ends by itself
    prepare: FaultAction | None = None  # before the injection
    baseline_s: float = 30.0  # normal traffic before it
    page_within_s: float = 150.0  # after that the fault is ended without a page
    watch_s: float = 400.0  # at most
    remark: str = ""  # what a reader of its row must know


async def _slow_step(fleet: TargetFleet) -> None:
    await fleet.set_faults(VICTIM, slow_steps=SLOWDOWN * fleet.pace)


async def _wait_until_pending(fleet: TargetFleet) -> None:
    await _slow_step(fleet)
    for _ in range(150):
        if await fleet.alerts_of(VICTIM):
            return
        await asyncio.sleep(0.2)
    raise FleetctlError(f"no alert of {VICTIM} became pending")


def _process(number: signal.Signals, name: str = VICTIM) -> FaultAction:
    """Signals one process, and does nothing more."""

    async def inject(fleet: TargetFleet) -> None:
        fleet.send_signal(name, number)

    return inject


def _core(number: signal.Signals) -> FaultAction:
    async def inject(fleet: TargetFleet) -> None:
        fleet.signal_core(VICTIM, number)

    return inject


async def _kill_core_often(fleet: TargetFleet) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    for count in range(KILLS):
        await asyncio.sleep(max(0.0, began + count * KILLS_WITHIN_S / (KILLS - 1) - loop.time()))
        if await wait_for(lambda: fleet.is_running(VICTIM) and fleet.core_pid(VICTIM) is not None, 10.0):
            fleet.signal_core(VICTIM, signal.SIGKILL)


async def _make_idle(fleet: TargetFleet) -> None:
    await fleet.act(f"cordon {VICTIM}")
    for _ in range(300):
        node = await fleet.client.node(VICTIM)
        if node.running.value == 0 and node.waiting.value == 0:
            return
        await asyncio.sleep(0.2)
    raise FleetctlError(f"{VICTIM} did not become idle")


async def _stop_idle_core(fleet: TargetFleet) -> None:
    fleet.signal_core(VICTIM, signal.SIGSTOP)
    await fleet.act(f"uncordon {VICTIM}")


def _set(*nodes: str, **faults: object) -> FaultAction:
    async def inject(fleet: TargetFleet) -> None:
        for node in nodes:
            await fleet.set_faults(node, **faults)

    return inject


def _clear(*names: str) -> FaultAction:
    async def clear(fleet: TargetFleet) -> None:
        for node in NODES:
            if fleet.is_running(node):
                await fleet.clear_faults(node, *names)

    return clear


def _burst(count: int, prompt_tokens: int, output_tokens: int) -> FaultAction:
    async def inject(fleet: TargetFleet) -> None:
        fleet.traffic.send_burst(count, prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    return inject


def _stopped_for_a_while(name: str) -> FaultAction:
    async def inject(fleet: TargetFleet) -> None:
        fleet.send_signal(name, signal.SIGSTOP)
        try:
            await asyncio.sleep(AWAY_S)
        finally:
            fleet.send_signal(name, signal.SIGCONT)

    return inject


def _killed(name: str) -> FaultAction:
    async def inject(fleet: TargetFleet) -> None:
        fleet.send_signal(name, signal.SIGKILL)
        await asyncio.sleep(AWAY_S)
        await fleet.start_missing()

    return inject


async def _start_again(fleet: TargetFleet) -> None:
    """What a person does for a node whose process is gone or stands still, and nobody replaced."""
    if fleet.is_running(VICTIM):
        fleet.send_signal(VICTIM, signal.SIGCONT)
        if fleet.core_pid(VICTIM) is not None:
            fleet.signal_core(VICTIM, signal.SIGCONT)


_NODE_GONE = Expectation(alerts=("LLMNodeDown",), causes=("node_down",), pages=("replace-node",))
_REPLACE = ("replace-node", "restart-node")
_CORE_HUNG = Expectation(alerts=("LLMCoreStuck",), causes=("core_hung", "node_down"), optional_pages=_REPLACE)
_SLOW = Expectation(
    alerts=("LLMNodeSlow", "LLMTTFTRegression"),
    causes=("slow_node",),
    pages=("replace-node",),
    late="a slow node is slow until it is replaced",
)
_IN_FLIGHT = "the gateway holds the clients' connections: what it carries ends with it"

FAULTS: tuple[Fault, ...] = (
    Fault("slow-step", "every step of a node takes ten times as long", _slow_step, _SLOW, _clear("slow_steps")),
    Fault("sigkill-api", "SIGKILL of a node's API process", _process(signal.SIGKILL), _NODE_GONE, _start_again),
    Fault(
        "sigkill-api-pending",
        "SIGKILL of a slow node's API process, its alert of slowness pending",
        _process(signal.SIGKILL),
        _NODE_GONE,
        _start_again,
        prepare=_wait_until_pending,
    ),
    Fault("sigstop-api", "SIGSTOP of a node's API process", _process(signal.SIGSTOP), _NODE_GONE, _start_again),
    Fault("sigkill-core", "SIGKILL of a node's core, once", _core(signal.SIGKILL), Expectation(), page_within_s=60.0),
    Fault(
        "sigkill-core-often",
        "SIGKILL of a node's core, eight times in two minutes",
        _kill_core_often,
        Expectation(
            alerts=("LLMCoreRestarts", "LLMCoreDown"),
            causes=("crash_loop",),
            pages=("replace-node",),
        ),
        page_within_s=200.0,
    ),
    Fault(
        "hung-core-idle",
        "SIGSTOP of a node's core while it has no request",
        _stop_idle_core,
        _CORE_HUNG,
        _start_again,
        prepare=_make_idle,
    ),
    Fault("hung-core", "SIGSTOP of a node's core under load", _core(signal.SIGSTOP), _CORE_HUNG, _start_again),
    Fault(
        "wrong-numbers",
        "a node computes wrong numbers",
        _set(VICTIM, wrong_numbers=True),
        Expectation(
            alerts=("LLMWrongOutput",),
            pages=("replace-lying-node",),
            causes=("wrong_output", "gpu_fault", "node_down"),
            onset_within_s=75.0,  # a golden prompt is asked each minute
        ),
        _clear("wrong_numbers"),
        page_within_s=180.0,
        remark="answers are counted, not compared: until the node was out, its users got wrong text with status 200",
    ),
    Fault(
        "frozen-metrics",
        "a node's metrics stand still",
        _set(VICTIM, metrics_frozen=True),
        Expectation(alerts=("LLMSignalFrozen",)),
        _clear("metrics_frozen"),
        page_within_s=330.0,
        watch_s=480.0,
    ),
    Fault(
        "missing-metrics",
        "a node's own series are gone from its metrics",
        _set(VICTIM, metrics_missing=ENGINE_SERIES),
        Expectation(alerts=("LLMSignalLost",)),
        _clear("metrics_missing"),
        page_within_s=210.0,
    ),
    Fault(
        "nan-metrics",
        "a node's own series are NaN",
        _set(VICTIM, metrics_nan=ENGINE_SERIES),
        Expectation(alerts=("LLMSignalLost", "LLMSignalFrozen")),
        _clear("metrics_nan"),
        page_within_s=330.0,
        watch_s=480.0,
    ),
    Fault(
        "oom",
        "three steps of a node run out of memory",
        _set(VICTIM, oom_next=3),
        Expectation(alerts=("LLMOutOfMemory",), optional_pages=_REPLACE),
        page_within_s=60.0,
        watch_s=420.0,
    ),
    Fault(
        "long-requests",
        "256 long requests at once",
        _burst(256, 600, 200),
        Expectation(
            alerts=("LLMQueueDepth", "LLMOverload", "LLMTTFTHigh", "LLMPoolTTFTRegression", "LLMTTFTBurnFast"),
            causes=("overload",),
            late="there is more work than the fleet can do",
        ),
        watch_s=480.0,
    ),
    Fault(
        "slow-tokenizer",
        "tokenising takes a second on one node",
        _set(VICTIM, slow_tokenizer=1.0),
        Expectation(alerts=("LLMTTFTRegression",), causes=("frontend_bound",), optional_pages=_REPLACE),
        _clear("slow_tokenizer"),
        baseline_s=90.0,  # the API process is compared with its own past, of 60 s at the least
    ),
    Fault(
        "kv-leak",
        "a node loses four KV blocks at each step",
        _set(VICTIM, kv_leak=4),
        Expectation(
            alerts=("LLMCoreDied", "LLMWrongOutput", "LLMKVCacheSaturated"),
            causes=("core_crash", "kv_pressure", "kv_leak", "wrong_output"),
            onset_within_s=75.0,  # blocks are lost for a while before anything shows
            optional_pages=_REPLACE,
        ),
        _clear("kv_leak"),
        page_within_s=420.0,
        watch_s=600.0,
    ),
    Fault(
        "prefix-lost",
        "no prompt finds its prefix on any node",
        _set(*NODES, prefix_cache_off=True),
        Expectation(alerts=("LLMPrefixHitDrop",), causes=("prefix_cache_broken",)),
        _clear("prefix_cache_off"),
        baseline_s=700.0,
        page_within_s=420.0,
        watch_s=900.0,
    ),
    Fault(
        "huge-prompts",
        "60 prompts of 3,500 tokens at once",
        _burst(60, 3500, 16),
        Expectation(
            alerts=("LLMQueueDepth", "LLMOverload", "LLMTTFTHigh", "LLMPoolTTFTRegression", "LLMTTFTBurnFast"),
            is_quiet_unless_felt=True,
            causes=("long_context_outlier", "long_prompts", "overload"),
            late="there is more work than the fleet can do",
        ),
    ),
    Fault(
        "sigkill-controller",
        "SIGKILL of the controller, started again after 20 s",
        _killed("controller"),
        Expectation(),
        page_within_s=75.0,
    ),
    Fault(
        "sigstop-controller",
        "SIGSTOP of the controller for 20 s",
        _stopped_for_a_while("controller"),
        Expectation(),
        page_within_s=75.0,
    ),
    Fault(
        "sigkill-gateway",
        "SIGKILL of the gateway, which the controller starts again",
        _process(signal.SIGKILL, "gateway"),
        Expectation(alerts=("LLMGatewayDied",), loss=_IN_FLIGHT),
        page_within_s=75.0,
        watch_s=720.0,  # the alert looks back ten minutes
    ),
    Fault(
        "sigstop-gateway",
        "SIGSTOP of the gateway for 20 s",
        _stopped_for_a_while("gateway"),
        Expectation(alerts=("LLMGatewayDown",), optional_pages=("restart-gateway",)),
        page_within_s=75.0,
    ),
)


def fault_named(name: str) -> Fault:
    """Raises KeyError when there is none."""
    return next((fault for fault in FAULTS if fault.name == name), None) or _missing(name)


def _missing(name: str) -> Fault:
    raise KeyError(name)
