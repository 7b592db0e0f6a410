"""A fleet of pods on a real Kubernetes API, as our manifests describe it: a node goes bad, and is replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleetctl.first_night.fault import Expectation
from fleetctl.first_night.responder import Responder
from fleetctl.first_night.traffic import DrillTraffic
from tests.fixtures.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes.pod_fleet import ENGINE, MODEL, PodFleet, pod_fleet

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]

PACE = 10.0  # a fake step takes 2 ms: nothing would be in flight when a node goes bad
SLOWDOWN = 10.0
BASELINE_REQUESTS = 30


async def eventually(condition: Callable[[], object], what: str, timeout_s: float = 100.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.3)


@asynccontextmanager
async def users(fleet: PodFleet) -> AsyncIterator[DrillTraffic]:
    """Those of the first night, on nodes whose steps take some time."""
    traffic = DrillTraffic(fleet.gateway_url, MODEL, rate_per_s=2.0, seed=1)
    pacing = asyncio.create_task(fleet.keep_pace(PACE))
    sending = asyncio.create_task(traffic.send_until_stopped())
    try:
        yield traffic
        traffic.stop_sending()
        await sending
    finally:
        pacing.cancel()
        sending.cancel()
        await asyncio.gather(pacing, sending, return_exceptions=True)


SLOW = Expectation(alerts=("LLMNodeSlow", "LLMTTFTRegression"), causes=("slow_node",), pages=("replace-node",))


@pytest.mark.anyio
async def test_a_slow_pod_is_paged_named_and_replaced_and_nobody_loses_a_request(
    cluster: Cluster, tmp_path: Path
) -> None:
    with pod_fleet(cluster, tmp_path) as fleet:
        await eventually(lambda: _all_serve(fleet), "three pods are ready nodes and the gateway knows them")
        bad, *others = await fleet.ready_nodes()
        assert cluster.pod_names() == sorted([bad, *others])
        async with fleet.client() as client:
            async with users(fleet) as traffic:
                await eventually(lambda: len(traffic.seen) > BASELINE_REQUESTS, "normal traffic")
                responder = Responder(client, time.time(), SLOW.alerts)
                sizes: set[int] = set()
                fleet.set_faults(bad, slow_steps=PACE * SLOWDOWN)

                async def is_over() -> bool:
                    await responder.look()
                    sizes.add(len(cluster.pod_names()))
                    return bool(responder.incidents) and not responder.is_open

                await eventually(is_over, "the incident is over", 110)
            account = await traffic.account(0.0)
            (incident, *more) = await responder.seen_incidents(traffic, SLOW)
            kinds = [entry.kind for entry in (await client.incident(incident.id)).timeline]
        assert more == []
        assert "alert.fired" not in kinds[kinds.index("node.stopped") :], "of a node that was taken out"
        assert incident.cause == "slow_node"
        assert [(run.runbook, run.status) for run in incident.runs] == [("replace-node", "succeeded")]
        assert incident.postmortem is not None
        assert incident.false == ()
        assert (account.lost, account.refused) == (0, 0), account.reasons
        assert min(sizes) == 3  # one more first, then one less
        after = await fleet.ready_nodes()
        assert len(after) == 3
        assert bad not in after
        assert set(others) <= set(after)
        assert bad not in cluster.pod_names()
        assert cluster.get("Deployment", ENGINE)["spec"]["replicas"] == 3


async def _all_serve(fleet: PodFleet) -> bool:
    return len(await fleet.ready_nodes()) == 3 and len(fleet.routed_nodes()) == 3
