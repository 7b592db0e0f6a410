"""What people ask of a fleet of pods through the controller, on a real API: done, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.kit.errors import RefusedError
from fleetctl.wire import RunStatus
from tests.fixtures.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes.controlled import controlled
from tests.fixtures.kubernetes.manifests import budget

pytestmark = [pytest.mark.anyio, pytest.mark.waits]

LABELS = {"fleetctl.dev/model": "demo", "fleetctl.dev/pool": "chat"}


async def test_a_machine_is_cordoned_where_the_settings_allow_it(cluster: Cluster, tmp_path: Path) -> None:
    cluster.deploy(replicas=1, labels=LABELS)
    async with controlled(cluster, tmp_path, may_cordon_hosts=True) as fleet:
        (name,) = await fleet.until_ready(1)
        host = (await fleet.client.node(name)).facts["host"]
        path = f"/api/v1/nodes/{host}"
        planned = await fleet.act(f"host cordon {host}", dry_run=True)
        assert f"keeps new nodes from machine {host}" in str(planned.model_dump())
        assert "unschedulable" not in cluster.api.get(path)["spec"]
        try:
            done = await fleet.act(f"host cordon {host}")
            assert done.status is RunStatus.SUCCEEDED
            assert cluster.api.get(path)["spec"]["unschedulable"] is True
            assert await fleet.ready_nodes() == [name], "what runs there goes on"
        finally:
            await fleet.act(f"host uncordon {host}")
        assert "unschedulable" not in cluster.api.get(path)["spec"]


async def test_a_machine_that_the_settings_leave_alone_is_refused_before_anything_is_asked(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.deploy(replicas=1, labels=LABELS)
    async with controlled(cluster, tmp_path) as fleet:
        (name,) = await fleet.until_ready(1)
        host = (await fleet.client.node(name)).facts["host"]
        with pytest.raises(RefusedError, match="may_cordon_hosts is not set"):
            await fleet.act(f"host cordon {host}")


@pytest.mark.parametrize("verb", ["node stop", "restart"])
async def test_what_a_budget_forbids_says_its_name_and_leaves_the_node_as_it_was(
    cluster: Cluster, tmp_path: Path, verb: str
) -> None:
    cluster.deploy(replicas=3, labels=LABELS)
    cluster.create(budget("all-three", "engine", 3))
    async with controlled(cluster, tmp_path) as fleet:
        names = await fleet.until_ready(3)
        failed = await fleet.act(f"{verb} {names[0]}")
        assert failed.status is RunStatus.FAILED
        assert "all-three" in failed.error
        assert await fleet.ready_nodes() == names
        routes = (await fleet.client.routing()).routes
        assert {route.state.value for route in routes} == {"active"}
        (pool,) = await fleet.client.pools()
        assert pool.wanted == 3
        assert cluster.pod_names() == names
