"""What people change: revisions, tenants, the size of a pool, and a database that somebody else holds."""

from __future__ import annotations

import signal

from fleetctl.first_night.fault import PAST_S, QUEUE_ALERTS, Expectation, Fault, pool_fault
from fleetctl.first_night.injection import (
    deployed,
    disk_free,
    disk_full,
    go_on,
    restarted_slowly,
    signal_to_all,
    tenants_written,
    undone,
    usual_tenants,
)

CHANGE_FAULTS: tuple[Fault, ...] = (
    pool_fault(
        "deploy-slow",
        "a rollout to a revision whose steps take four times as long",
        deployed("rollout start default --set max-num-queued-reqs=1000 --steps 100% --no-gate", slower=4.0),
        Expectation(
            alerts=("LLMTTFTRegression", "LLMNodeSlow", "LLMTTFTHurts", "LLMPoolTTFTRegression", "LLMNodeGray"),
            is_quiet_unless_felt=True,
            causes=("bad_deploy",),
            named_from_s=60.0,
            optional_pages=("rollback-pool",),
            onset_within_s=75.0,  # the last node is exchanged a minute after the first
        ),
        undone("rollout rollback default"),
    ),
    pool_fault(
        "deploy-failing",
        "the first node of a new revision ends four of five requests with an error",
        deployed(
            "rollout start default --set max-num-queued-reqs=1000 --steps 34%,100% --by-hand --no-gate",
            num_new=1,
            failing_share=0.8,
        ),
        Expectation(
            alerts=("LLMErrorRate", "LLMWrongOutput", "LLMGatewayNodeEjected"),
            causes=("bad_deploy_errors",),
            named_from_s=60.0,
            optional_pages=("rollback-pool",),
            onset_within_s=90.0,  # failing from its first request, it has no past: the alert's own word counts
        ),
        undone("rollout rollback default"),
        hold_s=360.0,  # the gateway leaves it out after a minute and a half, and tells of it two minutes later
        rate_per_s=3.0,
    ),
    Fault(
        "controller-disk",
        "the controller's disk is full",
        disk_full("controller"),
        Expectation(
            alerts=("LLMControllerStorageFull",),
            causes=("controller_storage",),
            named_from_s=30.0,
        ),
        disk_free("controller"),
        place="pool",
        page_within_s=60.0,
        hold_s=65.0,
    ),
    Fault(
        "gateway-disk",
        "the gateway's disk is full",
        disk_full("gateway"),
        Expectation(
            alerts=("LLMGatewayStateNotStored",),
            causes=("gateway_storage",),
            named_from_s=60.0,
        ),
        disk_free("gateway"),
        place="pool",
        page_within_s=100.0,
        hold_s=125.0,
        watch_s=780.0,  # the alert looks back ten minutes
    ),
    Fault(
        "nodes-cut-off",
        "SIGSTOP of all API processes, as where the network between gateway and nodes is gone",
        signal_to_all(signal.SIGSTOP),
        Expectation(
            alerts=("LLMNodeDown", "LLMOverload", "LLMGatewayFailOpen", "LLMRequestsLost", "LLMRequestsLostNow"),
            causes=("downstream",),
            named_from_s=60.0,
            onset_within_s=75.0,
            loss="no node answers",
            late="no node answers",
        ),
        go_on,
        place="pool",
        baseline_s=PAST_S,
        hold_s=125.0,
    ),
    Fault(
        "restart-loads-long",
        "an operator restarts a node that takes a minute to load, and the two others are full",
        restarted_slowly("node-2", 60.0),
        Expectation(
            alerts=QUEUE_ALERTS,
            causes=("maintenance", "cold_start"),
            named_from_s=30.0,
            optional_pages=("scale-pool", "shed-load"),
            onset_within_s=75.0,
            late="there is more work than two nodes can do",
        ),
        baseline_s=PAST_S,
        page_within_s=120.0,
        rate_per_s=2.2,  # two nodes are full with it; three have room to work the queue off
        traffic={"output_tokens_median": 150, "output_sigma": 0.3},
        node_options={"max_num_seqs": 4},
    ),
    Fault(
        "tenants-file-broken",
        "somebody saves a tenants file with a mistake in it",
        tenants_written("tenants: [what is this"),
        Expectation(
            alerts=("LLMGatewayTenantsStale",),
            causes=("gateway_settings",),
        ),
        usual_tenants,
        place="pool",
        page_within_s=100.0,
        has_tenants=True,
    ),
    pool_fault(
        "tenant-limit",
        "a tenant's limit is set to a third of what it sends",
        tenants_written(requests_per_min=40),
        Expectation(
            causes=("gateway_limit",),
            named_from_s=60.0,
        ),
        usual_tenants,
        has_tenants=True,
    ),
)
