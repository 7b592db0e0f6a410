"""What people ask of a fleet of pods through the controller, on a real API: done, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.kit.errors import BadInputError, RefusedError
from fleetctl.providers.kubernetes.end_terms import EndBudgets
from fleetctl.providers.provider import EndTerms
from fleetctl.wire.rollout import Rollout
from fleetctl.wire.run import RunRequest, RunStatus
from tests.fixtures.controller import until
from tests.fixtures.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes.controlled import Controlled, controlled
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
        planned = await fleet.act(f"{verb} {names[0]}", dry_run=True)
        assert planned.error.startswith("would be refused: PodDisruptionBudget all-three forbids the end of")
        with pytest.raises(RefusedError, match="PodDisruptionBudget all-three forbids the end of"):
            await fleet.act(f"{verb} {names[0]}")
        assert await fleet.ready_nodes() == names
        routes = (await fleet.client.routing()).routes
        assert {route.state.value for route in routes} == {"active"}
        (pool,) = await fleet.client.pools()
        assert pool.wanted == 3
        assert cluster.pod_names() == names


async def test_a_smaller_pool_is_refused_by_the_budget_and_a_replacement_that_starts_a_node_first_is_not(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.deploy(replicas=3, labels=LABELS)
    cluster.create(budget("all-three", "engine", 3))
    async with controlled(cluster, tmp_path) as fleet:
        names = await fleet.until_ready(3)

        async def is_counted() -> bool:
            status = cluster.get("PodDisruptionBudget", "all-three").get("status", {})
            return bool(status.get("currentHealthy") == 3)

        await until(is_counted, "the budget has counted its pods")
        smaller = await fleet.act("scale chat --to 2", dry_run=True)
        assert "all-three" in smaller.error
        inputs = {"node": names[0], "replacement": "fresh", "pool": "chat"}
        request = RunRequest(runbook="replace-node", inputs=inputs, reason="test", requested_by="test", dry_run=True)
        assert (await fleet.client.start_run(request)).error == ""


async def test_a_budget_that_cannot_be_listed_still_forbids_at_the_step(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_seen(self: EndBudgets, nodes: object) -> dict[str, EndTerms]:
        return {}

    monkeypatch.setattr(EndBudgets, "terms", none_seen)
    cluster.deploy(replicas=3, labels=LABELS)
    cluster.create(budget("all-three", "engine", 3))
    async with controlled(cluster, tmp_path) as fleet:
        names = await fleet.until_ready(3)
        failed = await fleet.act(f"restart {names[0]}")
        assert failed.status is RunStatus.FAILED
        assert "all-three" in failed.error
        assert await fleet.ready_nodes() == names


def image(cluster: Cluster) -> str:
    found = cluster.get("Deployment", "engine")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert isinstance(found, str)
    return found


async def test_a_deployment_is_rolled_out_paused_resumed_and_rolled_back_by_the_verbs_of_any_pool(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.deploy(replicas=2, labels=LABELS)
    async with controlled(cluster, tmp_path) as fleet:
        await fleet.until_ready(2)
        (before,) = await fleet.client.rollouts("chat")
        assert (before.state, before.id) == ("done", "deployment-engine")
        planned = await fleet.act("rollout start chat --set image=small-node:2", dry_run=True)
        assert "by the workload's own strategy" in str(planned.model_dump())
        assert image(cluster) == "small-node"

        bad = await fleet.act("rollout start chat --set image=missing:2")  # its pods never get ready
        assert bad.status is RunStatus.SUCCEEDED, bad.error
        assert image(cluster) == "missing:2"
        await until_rollout(fleet, "promoting", "missing:2")
        assert (await fleet.act("rollout pause chat")).status is RunStatus.SUCCEEDED
        (held,) = await fleet.client.rollouts("chat")
        assert (held.state, held.needs_person) == ("paused", True)
        assert (await fleet.act("rollout resume chat")).status is RunStatus.SUCCEEDED
        back = await fleet.act("rollout rollback chat")
        assert back.status is RunStatus.SUCCEEDED, back.error
        assert image(cluster) == "small-node"
        await until_rollout(fleet, "done", "small-node")

        await fleet.act("rollout start chat --set image=small-node:2")
        after = await until_rollout(fleet, "done", "small-node:2")
        assert after.to_revision != before.to_revision
        await fleet.until_ready(2)
        assert {node.revision for node in await fleet.client.nodes() if node.phase == "ready"} == {after.to_revision}


async def until_rollout(fleet: Controlled, state: str, image: str) -> Rollout:
    async def look() -> bool:
        (now,) = await fleet.client.rollouts("chat")
        return (now.state, now.reason) == (state, f"image {image}")

    await until(look, f"{image} is {state}", 90)
    (now,) = await fleet.client.rollouts("chat")
    return now


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("rollout promote web", "has no steps"),
        ("rollout canary web --share 10%", "has no steps"),
        ("rollout pause web", "only a Deployment can"),
    ],
)
async def test_what_a_workload_can_not_do_is_refused_with_the_reason(
    cluster: Cluster, tmp_path: Path, command: str, words: str
) -> None:
    cluster.deploy("web", kind="StatefulSet", replicas=1, labels={"fleetctl.dev/model": "demo"})
    async with controlled(cluster, tmp_path) as fleet:
        await fleet.until_ready(1)
        with pytest.raises(RefusedError, match=words):
            await fleet.act(command)


async def test_what_only_our_own_rollouts_have_is_no_option_of_a_workloads(cluster: Cluster, tmp_path: Path) -> None:
    cluster.deploy(replicas=1, labels=LABELS)
    async with controlled(cluster, tmp_path) as fleet:
        await fleet.until_ready(1)
        for command, words in (
            ("rollout start chat --set image=small-node:2 --steps 5%", "--steps can't be given"),
            ("rollout start chat --set max-num-seqs=8", "takes image=IMAGE"),
            ("rollout rollback chat", "no earlier revision"),
            ("rollout rollback chat --to 5f5f", "deployment/engine keeps no revision 5f5f"),
        ):
            with pytest.raises(BadInputError, match=words):
                await fleet.act(command)
