"""What makes the prefix cache find less, and the KV cache too small: each made by traffic, tenants or a revision."""

from __future__ import annotations

from functools import partial

from fleetctl.first_night.fault import GRADUAL_S, HITS_ALERTS, QUEUE_ALERTS, Expectation, Fault, few_seats, pool_fault
from fleetctl.first_night.injection import (
    another_tenant,
    commanded,
    traffic_beside,
    traffic_of,
    undone,
    users_apart,
    usual_traffic,
)

_HITS_FELL = (*HITS_ALERTS, *QUEUE_ALERTS)
_SIZE = ("scale-pool", "shed-load", "lower-seats")
_CACHE_FULL = (*QUEUE_ALERTS, "LLMKVCacheSaturated", "LLMPreemptions", *HITS_ALERTS)
_LONG_BEGINNINGS = {"system_prompt_tokens": 1200}  # computed anew, they are felt
_WARM_S = 150.0  # in the first minute nothing is cached yet, and that is past too
_quiet_or_slow = partial(Expectation, is_quiet_unless_felt=True, named_from_s=60.0, onset_within_s=GRADUAL_S)

CACHE_FAULTS: tuple[Fault, ...] = (
    pool_fault(
        "prefix-by-upgrade",
        "a rollout to a revision whose blocks are so large that half of each beginning is shared no more",
        commanded("rollout start default --set block-size=512,num-kv-blocks=32 --steps 100% --no-gate"),
        _quiet_or_slow(
            alerts=_HITS_FELL, causes=("prefix_by_upgrade",), named_from_s=120.0, optional_pages=("rollback-pool",)
        ),
        undone("rollout rollback default"),
        hold_s=180.0,
        baseline_s=_WARM_S,
        traffic={"num_system_prompts": 3, "system_prompt_tokens": 1000},
    ),
    pool_fault(
        "salt-each",
        "half of the requests come from another tenant, whose cache salt is the name of each user",
        users_apart,
        _quiet_or_slow(alerts=_HITS_FELL, causes=("prefix_salt",)),
        usual_traffic,
        baseline_s=_WARM_S,
        traffic=_LONG_BEGINNINGS,
        has_tenants=True,
    ),
    pool_fault(
        "other-traffic",
        "a second use of the fleet begins, whose prompts share nothing",
        traffic_beside(
            rate_per_s=3.0, num_system_prompts=0, prompt_tokens_median=1264, prompt_sigma=0.1, max_prompt_tokens=1500
        ),
        _quiet_or_slow(alerts=_HITS_FELL, causes=("traffic_mix",)),
        usual_traffic,
        baseline_s=_WARM_S,
        traffic=_LONG_BEGINNINGS,
    ),
    pool_fault(
        "cache-too-small",
        "three times the requests, on nodes whose KV cache holds six of them",
        traffic_of(rate_per_s=4.0),
        _quiet_or_slow(
            alerts=_CACHE_FULL,
            causes=("kv_pressure", "overload"),
            optional_pages=_SIZE,
            late="there is more work than the fleet can do",
        ),
        usual_traffic,
        # Long answers: two requests at once before it and seven after, however quick the machine; and afterwards room
        # enough that the queue of those minutes is worked off in two.
        rate_per_s=1.3,
        traffic={"output_tokens_median": 200, "output_sigma": 0.3},
        node_options={"num_kv_blocks": 200, "max_model_len": 1024},
        watch_s=600.0,  # a ticket looks back minutes
    ),
    few_seats(
        "tenant-flood",
        "a second tenant begins to send eight times what all sent before",
        another_tenant(rate_per_s=8.0),
        _quiet_or_slow(
            alerts=QUEUE_ALERTS,
            causes=("tenant_flood",),
            optional_pages=_SIZE,
            late="there is more work than the fleet can do",
        ),
        usual_traffic,
        has_tenants=True,
        hold_s=90.0,
    ),
)
