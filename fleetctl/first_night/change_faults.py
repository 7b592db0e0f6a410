"""What people change: revisions, tenants, the size of a pool, and a database that somebody else holds."""

from __future__ import annotations

from fleetctl.first_night.fault import Expectation, Fault, pool_fault
from fleetctl.first_night.injection import (
    deployed_slow,
    tenants_written,
    undone,
    usual_tenants,
)

CHANGE_FAULTS: tuple[Fault, ...] = (
    pool_fault(
        "deploy-slow",
        "a rollout to a revision whose steps take four times as long",
        deployed_slow("rollout start default --set max-num-queued-reqs=1000 --steps 100% --no-gate", factor=4.0),
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
