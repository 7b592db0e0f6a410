"""How work comes and is spread, and what a step costs: each felt by users of healthy nodes."""

from __future__ import annotations

from fleetctl.first_night.fault import GRADUAL_S, QUEUE_ALERTS, Expectation, Fault, pool_fault
from fleetctl.first_night.injection import commanded, switch_off, switch_on, traffic_of, undone, usual_traffic
from fleetctl.first_night.target_fleet import NODES

_SIZE = ("scale-pool", "shed-load")
_MORE_WORK = "there is more work than the fleet can do"

LOAD_FAULTS: tuple[Fault, ...] = (
    pool_fault(
        "long-share",
        "one in five prompts is of the long kind, where it was one in twenty",
        traffic_of(long_share=0.2),
        Expectation(
            alerts=("LLMPromptMixChanged", *QUEUE_ALERTS),
            is_quiet_unless_felt=True,
            causes=("long_prompt_share",),
            named_from_s=120.0,  # the median of the prompts is known after a minute and a half
            optional_pages=("reroute-long-context",),
            onset_within_s=GRADUAL_S,
        ),
        usual_traffic,
        traffic={"long_share": 0.05, "long_prompt_tokens": 3000},
    ),
    pool_fault(
        "pinned",
        "a rule for long prompts with too low a threshold sends all requests to one node",
        commanded("reroute long-context --over 100 --share 0.33 --for 30m"),
        Expectation(
            alerts=QUEUE_ALERTS,
            causes=("routing_skew",),
            named_from_s=60.0,
            optional_pages=("even-out-routing",),
            onset_within_s=GRADUAL_S,
            late="the rule keeps them at one node",
        ),
        undone("reroute remove route/long-context"),
        traffic={"output_tokens_median": 150, "output_sigma": 0.3},
        rate_per_s=1.6,
        node_options={"max_num_seqs": 4},
    ),
    pool_fault(
        "scaled-away",
        "an operator takes two of five nodes away, and the others are full",
        commanded("scale default --to 3"),  # the floor keeps these: half of those that were wanted within the hour
        Expectation(
            alerts=QUEUE_ALERTS,
            causes=("capacity_lost",),
            named_from_s=120.0,
            optional_pages=_SIZE,
            onset_within_s=90.0,  # what leaves finishes its requests first
            late=_MORE_WORK,
        ),
        undone("scale default --to 5"),
        hold_s=180.0,
        watch_s=600.0,  # two nodes that start take the others' processor on a laptop, and tickets look back minutes
        rate_per_s=4.0,
        traffic={"output_tokens_median": 200, "output_sigma": 0.2},
        node_options={"max_num_seqs": 8},  # two of three seats are taken before it; with six a few waited by chance
        nodes=5,
    ),
    pool_fault(
        "past-the-knee",
        "two and a half times the requests, on nodes whose steps take longer with each request that they compute",
        traffic_of(rate_per_s=3.5),
        Expectation(
            alerts=(*QUEUE_ALERTS, "LLMPoolTPOTRegression"),
            is_quiet_unless_felt=True,
            causes=("collapse_knee",),
            named_from_s=60.0,
            optional_pages=_SIZE,
            onset_within_s=GRADUAL_S,
            late=_MORE_WORK,
        ),
        usual_traffic,
        # A node computes 145 tokens a second at most, half of it before the fault and a quarter more than it from then
        # on: what is computed at once grows by a request in four seconds, and nothing waits, as seats and KV blocks
        # are many.
        node_options={"max_num_seqs": 256, "num_kv_blocks": 8192},
        rate_per_s=1.4,
        traffic={"output_tokens_median": 150, "output_sigma": 0.3},
        node_faults={"row_seconds": 0.005},
    ),
    pool_fault(
        "slow-decode",
        "steps that only decode take three times as long on all nodes, as after a kernel that fell back",
        switch_on(*NODES, slow_decode=3.0),
        Expectation(
            alerts=("LLMPoolTPOTRegression", "LLMTPOTHigh"),
            is_quiet_unless_felt=True,
            causes=("decode_slow",),
            named_from_s=60.0,
            onset_within_s=GRADUAL_S,
        ),
        switch_off("slow_decode"),
    ),
    pool_fault(
        "chunking-off",
        "a rollout lets long prompts be computed in one piece",
        commanded("rollout start default --set enable-chunked-prefill=false --steps 100% --no-gate"),
        Expectation(
            alerts=("LLMPoolTPOTRegression", "LLMTPOTHigh", *QUEUE_ALERTS),
            is_quiet_unless_felt=True,
            causes=("chunking_off",),
            named_from_s=120.0,
            optional_pages=("rollback-pool",),
            onset_within_s=GRADUAL_S,
        ),
        undone("rollout rollback default"),
        hold_s=180.0,
        rate_per_s=3.0,
        traffic={"long_share": 0.3, "long_prompt_tokens": 2600, "output_tokens_median": 64},
        node_options={"max_num_batched_tokens": 8192, "num_kv_blocks": 4096},
    ),
)
