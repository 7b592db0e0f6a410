"""Further causes, each made on real nodes: settings, deploys, traffic, clients and the gateway."""

from __future__ import annotations

import signal
from dataclasses import replace

from fleetctl.first_night.fault import (
    GRADUAL_S,
    HITS_ALERTS,
    NAMED_FROM_S,
    PAST_S,
    QUEUE_ALERTS,
    Expectation,
    Fault,
    few_seats,
    pool_fault,
)
from fleetctl.first_night.injection import (
    commanded,
    impatient,
    signal_to_all,
    slowed,
    switch_off,
    switch_on,
    traffic_of,
    undone,
    usual_traffic,
)
from fleetctl.first_night.target_fleet import NODES, VICTIM
from fleetctl.first_night.traffic import TRAFFIC

_MORE_WORK = "there is more work than the fleet can do"
_REPLACE = ("replace-node", "restart-node")
_SIZE = ("scale-pool", "shed-load")

CAUSE_FAULTS: tuple[Fault, ...] = (
    pool_fault(
        "limit-lowered",
        "every node may compute one request at once, where it did sixteen",
        commanded(*(f"limits {node} --max-num-seqs 1" for node in NODES)),
        Expectation(
            alerts=QUEUE_ALERTS,
            causes=("limit_lowered",),
            named_from_s=NAMED_FROM_S,
            optional_pages=_SIZE,
            onset_within_s=GRADUAL_S,
            late=_MORE_WORK,
        ),
        undone(*(f"limits {node} --before" for node in NODES)),
        rate_per_s=3.0,
    ),
    pool_fault(
        "caching-off",
        "a rollout switches prefix caching off",
        commanded("rollout start default --set enable-prefix-caching=false --steps 100% --no-gate"),
        Expectation(
            alerts=(*HITS_ALERTS, *QUEUE_ALERTS),
            is_quiet_unless_felt=True,
            causes=("caching_off",),
            named_from_s=120.0,
            optional_pages=("rollback-pool",),
            onset_within_s=75.0,  # the last node is exchanged a minute after the first
        ),
        undone("rollout rollback default"),
        hold_s=180.0,
    ),
    pool_fault(
        "template-changed",
        "prompts begin with something of their own, as after a change of template",
        traffic_of(num_system_prompts=0, prompt_tokens_median=448, prompt_sigma=0.1),
        Expectation(
            alerts=(*HITS_ALERTS, *QUEUE_ALERTS),
            is_quiet_unless_felt=True,
            causes=("prefix_cache_broken",),
            named_from_s=NAMED_FROM_S,
            optional_pages=("prefix-cache-broken",),
        ),
        usual_traffic,
    ),
    pool_fault(
        "long-prompts",
        "all prompts are three times as long as before",
        traffic_of(prompt_tokens_median=1400, prompt_sigma=0.2, max_prompt_tokens=2500),
        Expectation(
            alerts=("LLMPromptMixChanged", *QUEUE_ALERTS),
            is_quiet_unless_felt=True,
            causes=("long_prompts",),
            named_from_s=NAMED_FROM_S,
            onset_within_s=GRADUAL_S,
        ),
        usual_traffic,
    ),
    pool_fault(
        "runaway-answers",
        "answers run to their limit, eight times as long as before",
        traffic_of(output_tokens_median=400, output_sigma=0.0),
        Expectation(
            alerts=(*QUEUE_ALERTS, "LLMKVCacheSaturated", "LLMPreemptions"),
            is_quiet_unless_felt=True,
            causes=("runaway_generations",),
            named_from_s=NAMED_FROM_S,
            optional_pages=_SIZE,
            late=_MORE_WORK,
            onset_within_s=GRADUAL_S,
        ),
        usual_traffic,
    ),
    pool_fault(
        "clients-hang-up",
        "a client whose timeout is too short closes every second stream after half a second",
        impatient(replace(TRAFFIC, rate_per_s=2.0, output_tokens_median=200, output_sigma=0.0), patience_s=0.5),
        Expectation(
            alerts=("LLMClientsHangUp",),
            is_quiet_unless_felt=True,
            causes=("client_disconnects",),
            named_from_s=NAMED_FROM_S,
        ),
        usual_traffic,
    ),
    few_seats(
        "retry-storm",
        "users of a full fleet hang up after three seconds and ask again, up to five times",
        impatient(replace(TRAFFIC, rate_per_s=5.0), patience_s=3.0, tries=6),
        Expectation(
            alerts=(*QUEUE_ALERTS, "LLMClientsHangUp"),
            causes=("retry_storm",),
            named_from_s=NAMED_FROM_S,
            optional_pages=_SIZE,
            late=_MORE_WORK,
            onset_within_s=GRADUAL_S,
        ),
        usual_traffic,
    ),
    pool_fault(
        "too-long-requests",
        "a client sends prompts that no node takes",
        impatient(
            replace(
                TRAFFIC,
                rate_per_s=1.5,
                prompt_tokens_median=6000,
                prompt_sigma=0.0,
                max_prompt_tokens=6000,
                num_system_prompts=0,
            ),
            patience_s=30.0,
        ),
        Expectation(
            alerts=(),
            causes=("oversized_request",),
            named_from_s=NAMED_FROM_S,
        ),
        usual_traffic,
    ),
    pool_fault(
        "shed-order",
        "an order to shed at the gateway, forgotten by who gave it",
        commanded("shed --below critical --share 50% --for 15m"),
        Expectation(
            alerts=(),
            causes=("gateway_limit",),
            named_from_s=NAMED_FROM_S,
        ),
        undone("shed remove"),
    ),
    few_seats(
        "seats-full",
        "eight times the usual requests, on nodes of two seats and a cache that is nearly empty",
        traffic_of(rate_per_s=8.0),
        Expectation(
            alerts=QUEUE_ALERTS,
            causes=("seats_full", "overload"),
            named_from_s=NAMED_FROM_S,
            optional_pages=_SIZE,
            late=_MORE_WORK,
            onset_within_s=GRADUAL_S,
        ),
        usual_traffic,
        hold_s=90.0,
    ),
    Fault(
        "straggler",
        "one node's steps take 1.8 times as long",
        slowed(VICTIM, factor=1.8),
        Expectation(
            alerts=("LLMNodeGray", "LLMNodeSlow"),
            is_quiet_unless_felt=True,  # a ticket takes longer than the drill
            causes=("straggler", "slow_node"),
            named_from_s=120.0,
            optional_pages=_REPLACE,
            onset_within_s=75.0,
        ),
        switch_off("slow_steps"),
        baseline_s=PAST_S,
        hold_s=240.0,
    ),
    Fault(
        "all-nodes-killed",
        "SIGKILL of all API processes at the same moment",
        signal_to_all(signal.SIGKILL),
        Expectation(
            alerts=("LLMNodeDown",),
            causes=("correlated_failure",),
            named_from_s=30.0,
            loss="no node is left that could take them",
            late="no node is left that could take them",
        ),
        undone(*(f"restart {node}" for node in NODES)),
        place="pool",
        page_within_s=90.0,
    ),
    Fault(
        "quality-drop",
        "all nodes compute wrong numbers, as after a wrong quantisation",
        switch_on(*NODES, wrong_numbers=True),
        Expectation(
            alerts=("LLMWrongOutput",),
            causes=("quality_drop",),
            named_from_s=120.0,
            onset_within_s=75.0,
            optional_pages=("quality-drop",),
            loss="no node is left that answers right",
            late="no node is left that answers right",
        ),
        switch_off("wrong_numbers"),
        place="pool",
        hold_s=150.0,
    ),
    Fault(
        "renamed-metrics",
        "a node's own series have other names, as after an upgrade",
        switch_on(VICTIM, metrics_renamed=("vllm:",)),
        Expectation(
            alerts=("LLMSignalLost",),
            causes=("signals_missing",),
            named_from_s=120.0,
            optional_pages=("mend-signals",),
        ),
        switch_off("metrics_renamed"),
        page_within_s=210.0,
    ),
    Fault(
        "never-ready",
        "a rollout to a revision whose nodes end while they start",
        commanded("rollout start default --set block-size=0 --steps 34%,100% --no-gate"),
        Expectation(
            alerts=("LLMPoolStartsFail", "LLMNodeStartFailed"),
            is_quiet_unless_felt=True,  # after three failures the rollout goes back by itself, and no node is missing
            causes=("bad_deploy_never_ready",),
            named_from_s=30.0,
            optional_pages=("rollback-pool",),
        ),
        undone("rollout rollback default"),
        place="pool",
        page_within_s=65.0,  # it is over by then
    ),
)
