"""The faults that a person on call meets first: processes, cores, numbers and bursts."""

from __future__ import annotations

import signal

from fleetctl.first_night.fault import HITS_ALERTS, Expectation, Fault
from fleetctl.first_night.injection import (
    burst,
    kill_core_often,
    killed,
    make_idle,
    signal_to_core,
    signal_to_process,
    slow_step,
    start_again,
    stop_idle_core,
    stopped_for_a_while,
    switch_off,
    switch_on,
    wait_until_pending,
)
from fleetctl.first_night.target_fleet import NODES, VICTIM

ENGINE_SERIES = ("vllm:",)  # beginnings of the names of a node's own series

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

NIGHT_FAULTS: tuple[Fault, ...] = (
    Fault("slow-step", "every step of a node takes ten times as long", slow_step, _SLOW, switch_off("slow_steps")),
    Fault("sigkill-api", "SIGKILL of a node's API process", signal_to_process(signal.SIGKILL), _NODE_GONE, start_again),
    Fault(
        "sigkill-api-pending",
        "SIGKILL of a slow node's API process, its alert of slowness pending",
        signal_to_process(signal.SIGKILL),
        _NODE_GONE,
        start_again,
        prepare=wait_until_pending,
    ),
    Fault("sigstop-api", "SIGSTOP of a node's API process", signal_to_process(signal.SIGSTOP), _NODE_GONE, start_again),
    Fault(
        "sigkill-core",
        "SIGKILL of a node's core, once",
        signal_to_core(signal.SIGKILL),
        Expectation(),
        page_within_s=60.0,
    ),
    Fault(
        "sigkill-core-often",
        "SIGKILL of a node's core, eight times in two minutes",
        kill_core_often,
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
        stop_idle_core,
        _CORE_HUNG,
        start_again,
        prepare=make_idle,
    ),
    Fault("hung-core", "SIGSTOP of a node's core under load", signal_to_core(signal.SIGSTOP), _CORE_HUNG, start_again),
    Fault(
        "wrong-numbers",
        "a node computes wrong numbers",
        switch_on(VICTIM, wrong_numbers=True),
        Expectation(
            alerts=("LLMWrongOutput",),
            pages=("replace-lying-node",),
            causes=("wrong_output", "gpu_fault", "node_down"),
            onset_within_s=75.0,  # a golden prompt is asked each minute
        ),
        switch_off("wrong_numbers"),
        page_within_s=180.0,
        remark="answers are counted, not compared: until the node was out, its users got wrong text with status 200",
    ),
    Fault(
        "frozen-metrics",
        "a node's metrics stand still",
        switch_on(VICTIM, metrics_frozen=True),
        Expectation(
            alerts=("LLMSignalFrozen",),
            causes=("signals_frozen",),
            named_from_s=120.0,  # its last numbers are believed for a minute
            optional_pages=("mend-signals",),
        ),
        switch_off("metrics_frozen"),
        page_within_s=330.0,
        watch_s=480.0,
    ),
    Fault(
        "missing-metrics",
        "a node's own series are gone from its metrics",
        switch_on(VICTIM, metrics_missing=ENGINE_SERIES),
        Expectation(
            alerts=("LLMSignalLost",),
            causes=("signals_missing",),
            named_from_s=120.0,
            optional_pages=("mend-signals",),
        ),
        switch_off("metrics_missing"),
        page_within_s=210.0,
    ),
    Fault(
        "nan-metrics",
        "a node's own series are NaN",
        switch_on(VICTIM, metrics_nan=ENGINE_SERIES),
        Expectation(
            alerts=("LLMSignalLost", "LLMSignalFrozen"),
            causes=("signals_missing",),
            named_from_s=120.0,
            optional_pages=("mend-signals",),
        ),
        switch_off("metrics_nan"),
        page_within_s=330.0,
        watch_s=480.0,
    ),
    Fault(
        "oom",
        "three steps of a node run out of memory",
        switch_on(VICTIM, oom_next=3),
        Expectation(
            alerts=("LLMOutOfMemory",),
            causes=("out_of_memory",),
            named_from_s=30.0,
            optional_pages=("stop-oom-loop", *_REPLACE),
        ),
        page_within_s=60.0,
        watch_s=420.0,
    ),
    Fault(
        "long-requests",
        "256 long requests at once",
        burst(256, 600, 200),
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
        switch_on(VICTIM, slow_tokenizer=1.0),
        Expectation(alerts=("LLMTTFTRegression",), causes=("frontend_bound",), optional_pages=_REPLACE),
        switch_off("slow_tokenizer"),
        baseline_s=90.0,  # the API process is compared with its own past, of 60 s at the least
    ),
    Fault(
        "kv-leak",
        "a node loses four KV blocks at each step",
        switch_on(VICTIM, kv_leak=4),
        Expectation(
            alerts=("LLMCoreDied", "LLMWrongOutput", "LLMKVCacheSaturated"),
            causes=("core_crash", "kv_pressure", "kv_leak", "wrong_output"),
            onset_within_s=75.0,  # blocks are lost for a while before anything shows
            optional_pages=_REPLACE,
        ),
        switch_off("kv_leak"),
        page_within_s=420.0,
        watch_s=600.0,
    ),
    Fault(
        "prefix-lost",
        "no prompt finds its prefix on any node",
        switch_on(*NODES, prefix_cache_off=True),
        Expectation(alerts=HITS_ALERTS, causes=("prefix_cache_broken",)),
        switch_off("prefix_cache_off"),
        baseline_s=700.0,
        page_within_s=420.0,
        watch_s=900.0,
    ),
    Fault(
        "huge-prompts",
        "60 prompts of 3,500 tokens at once",
        burst(60, 3500, 16),
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
        killed("controller"),
        Expectation(),
        page_within_s=75.0,
    ),
    Fault(
        "sigstop-controller",
        "SIGSTOP of the controller for 20 s",
        stopped_for_a_while("controller"),
        Expectation(),
        page_within_s=75.0,
    ),
    Fault(
        "sigkill-gateway",
        "SIGKILL of the gateway, which the controller starts again",
        signal_to_process(signal.SIGKILL, "gateway"),
        Expectation(alerts=("LLMGatewayDied",), causes=("gateway_crash", "gateway_down"), loss=_IN_FLIGHT),
        page_within_s=75.0,
        watch_s=720.0,  # the alert looks back ten minutes
    ),
    Fault(
        "sigstop-gateway",
        "SIGSTOP of the gateway for 20 s",
        stopped_for_a_while("gateway"),
        Expectation(alerts=("LLMGatewayDown",), causes=("gateway_down",), optional_pages=("restart-gateway",)),
        page_within_s=75.0,
    ),
)
