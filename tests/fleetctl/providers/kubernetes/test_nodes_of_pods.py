"""Nodes that are pods, on a real API server with its real controllers: found, started, stopped, restarted."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError
from fleetctl.providers.kubernetes.provider import KubernetesProvider
from fleetctl.providers.spec import NodeSpec
from tests.fixtures.fleet import wait_until
from tests.fixtures.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes.manifests import budget, leader_worker_set_kind, pod_template

pytestmark = pytest.mark.waits


def test_pods_are_nodes_with_what_their_labels_and_machines_say(cluster: Cluster) -> None:
    cluster.deploy(labels={"fleetctl.dev/model": "demo", "fleetctl.dev/pool": "chat"})
    provider = cluster.provider()
    names = cluster.await_running(provider, 2)
    assert names == cluster.pod_names()
    spec = next(one for one in provider.specs() if one.name == names[0])
    assert (spec.pool, spec.model, spec.engine, spec.provider) == ("chat", "demo", "fleetctl", "kubernetes")
    assert spec.zone in ("zone-a", "zone-b")
    assert spec.facts["sku"] == "NVIDIA-H100-80GB-HBM3"
    assert spec.revision in names[0]  # a Deployment's pod has its ReplicaSet's hash in its name
    assert spec.options == {"namespace": cluster.namespace, "workload": "deployment/engine"}


def test_a_pod_names_the_key_that_it_wants_and_the_settings_that_of_all_others(cluster: Cluster) -> None:
    cluster.deploy("keyed", replicas=1, labels={"fleetctl.dev/api-key": "chat"})
    cluster.deploy("plain", replicas=1)
    by_name = {one.name: one.api_key for one in _once_seen(cluster.provider(), 2)}
    assert sorted(by_name.values()) == ["", "chat"]
    assert {one.api_key for one in _once_seen(cluster.provider(api_key="all"), 2)} == {"all", "chat"}


def _once_seen(provider: KubernetesProvider, count: int) -> list[NodeSpec]:
    wait_until(lambda: len(provider.specs()) == count)
    return provider.specs()


def test_a_start_is_one_replica_more_and_the_new_pod_has_the_nodes_name(cluster: Cluster) -> None:
    cluster.deploy()
    provider = cluster.provider()
    before = cluster.await_running(provider, 2)
    like = next(one for one in provider.specs() if one.name == before[0])
    provider.ensure_started(like.named("fresh"))
    names = cluster.await_running(provider, 3)
    assert names == sorted([*before, "fresh"])
    assert cluster.get("Deployment", "engine")["spec"]["replicas"] == 3
    provider.ensure_started(like.named("fresh"))
    cluster.provider().ensure_started(like.named("fresh"))
    assert cluster.get("Deployment", "engine")["spec"]["replicas"] == 3


def test_a_stop_takes_this_very_pod_and_nothing_comes_instead(cluster: Cluster) -> None:
    cluster.deploy(replicas=3)
    provider = cluster.provider()
    names = cluster.await_running(provider, 3)
    provider.cordon(names[1])
    provider.stop(names[1], 5.0)
    provider.stop(names[1], 5.0)
    assert not provider.observe(names[1]).running
    assert cluster.get("Deployment", "engine")["spec"]["replicas"] == 2
    assert cluster.pod_names() == [names[0], names[2]]


def test_a_budget_that_forbids_it_is_named_and_nothing_is_changed(cluster: Cluster) -> None:
    cluster.deploy(gate=False)
    cluster.create(budget("at-least-two", "engine", 2))
    provider = cluster.provider()
    names = cluster.await_running(provider, 2)
    with pytest.raises(RefusedError, match="at-least-two"):
        provider.stop(names[0], 5.0)
    with pytest.raises(RefusedError, match="at-least-two"):
        provider.restart(names[0], 5.0)
    assert cluster.get("Deployment", "engine")["spec"]["replicas"] == 2
    assert cluster.pod_names() == names


class KilledHereError(Exception):
    """Stands for the end of the process."""


def _killed_after_patch(provider: KubernetesProvider, plural: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's process ends right after its next patch of such an object: no answer is ever read."""
    real: Callable[..., object] = provider.cluster.patch

    def patch(kind: str, *arguments: object) -> object:
        found = real(kind, *arguments)
        if kind == plural:
            raise KilledHereError
        return found

    monkeypatch.setattr(provider.cluster, "patch", patch)


def test_a_start_that_was_killed_after_its_patch_surges_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.deploy()
    provider = cluster.provider()
    spec = _like(provider, cluster.await_running(provider, 2)[0], "fresh")
    _killed_after_patch(provider, "deployments", monkeypatch)
    with pytest.raises(KilledHereError):
        provider.ensure_started(spec)
    later = cluster.provider()
    later.ensure_started(spec)
    assert cluster.get("Deployment", "engine")["spec"]["replicas"] == 3
    assert "fresh" in cluster.await_running(later, 3)


def test_a_stop_that_was_killed_after_its_patch_shrinks_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.deploy(replicas=3)
    provider = cluster.provider()
    name = cluster.await_running(provider, 3)[0]
    _killed_after_patch(provider, "deployments", monkeypatch)
    with pytest.raises(KilledHereError):
        provider.stop(name, 5.0)
    later = cluster.provider()
    later.stop(name, 5.0)
    assert cluster.get("Deployment", "engine")["spec"]["replicas"] == 2
    wait_until(lambda: len(cluster.pods()) == 2)
    annotations = cluster.get("Deployment", "engine")["metadata"]["annotations"]
    assert not [key for key in annotations if key.startswith(("start.", "stop."))]


def test_a_restarted_pod_is_the_same_node_with_another_identity(cluster: Cluster) -> None:
    cluster.deploy()
    provider = cluster.provider()
    names = cluster.await_running(provider, 2)
    before = provider.observe(names[0])
    provider.restart(names[0], 5.0)
    assert cluster.await_running(provider, 2) == names
    after = provider.observe(names[0])
    assert after.instance not in (None, before.instance)
    assert cluster.get("Deployment", "engine")["spec"]["replicas"] == 2
    assert names[0] not in cluster.pod_names()


def test_a_container_that_ends_is_told_with_how_and_comes_back_as_another_instance(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    provider = cluster.provider()
    name = cluster.await_running(provider, 1)[0]
    before = provider.observe(name).instance
    process = cluster.kubelet.worker(cluster.namespace, name).process
    assert process is not None
    process.signal(signal.SIGKILL)
    wait_until(lambda: not provider.observe(name).running)
    seen = provider.observe(name)
    assert (seen.instance, seen.exit_status, seen.comes_back) == (None, -9, True)
    assert "SIGKILL" in seen.trouble
    wait_until(lambda: provider.observe(name).instance not in (None, before))


def test_a_stateful_sets_highest_pod_alone_can_be_stopped_and_any_be_restarted(cluster: Cluster) -> None:
    cluster.deploy("web", kind="StatefulSet")
    provider = cluster.provider()
    assert cluster.await_running(provider, 2) == ["web-0", "web-1"]
    with pytest.raises(RefusedError, match=r"web-1; web-0 can be restarted"):
        provider.stop("web-0", 5.0)
    provider.ensure_started(_like(provider, "web-0", "third"))
    assert cluster.await_running(provider, 3) == ["third", "web-0", "web-1"]
    assert cluster.pod_names() == ["web-0", "web-1", "web-2"]
    before = provider.observe("web-0").instance
    provider.restart("web-0", 5.0)
    cluster.await_running(provider, 3)
    assert provider.observe("web-0").instance not in (None, before)
    provider.stop("third", 5.0)
    assert cluster.pod_names() == ["web-0", "web-1"]


def test_what_holds_a_pod_back_is_said_in_kubernetes_own_words(cluster: Cluster) -> None:
    cluster.deploy("pulled", replicas=1, image="missing:1")
    cluster.deploy("large", replicas=1, gpus=101)
    cluster.deploy("broken", replicas=1, command=["sh", "-c", "echo killed: out of memory; exit 137"])
    provider = cluster.provider()

    def trouble(app: str) -> str:
        names = [name for name in cluster.pod_names() if name.startswith(app)]
        return " ".join(provider.observe(name).trouble for name in names)

    wait_until(lambda: "ImagePullBackOff" in trouble("pulled"))
    wait_until(lambda: "Unschedulable: 0/2 nodes are available" in trouble("large"))
    wait_until(lambda: "CrashLoopBackOff" in trouble("broken"))
    assert "OOMKilled (killed by SIGKILL)" in trouble("broken")

    def kinds(app: str) -> set[str]:
        seen = [provider.observe(name).reasons or () for name in cluster.pod_names() if name.startswith(app)]
        return {one.kind.value for reasons in seen for one in reasons}

    wait_until(lambda: kinds("large") == {"unscheduled"})
    assert kinds("pulled") == {"image"}
    assert kinds("broken") >= {"memory"}
    name = next(name for name in cluster.pod_names() if name.startswith("broken"))
    assert provider.read_logs(name, lines=5).lines[-1] == "killed: out of memory"


def test_what_is_wrong_with_the_machine_is_said_of_each_of_its_nodes(cluster: Cluster) -> None:
    cluster.deploy()
    provider = cluster.provider(may_cordon_hosts=True)
    name = cluster.await_running(provider, 2)[0]
    host = next(one for one in provider.specs() if one.name == name).facts["host"]
    try:
        cluster.kubelet.set_condition(host, "GpuXid", "True", message="XID 79 on GPU 3")
        wait_until(lambda: provider.observe(name).trouble == f"Kubernetes node {host}: GpuXid (XID 79 on GPU 3)")
        assert [(one.word, one.kind.value) for one in provider.observe(name).machine_problems or ()] == [
            ("GpuXid", "gpu")
        ]
        cluster.kubelet.set_condition(host, "Ready", "Unknown", message="Kubelet stopped posting node status.")
        wait_until(lambda: "Ready is unknown" in provider.observe(name).trouble)
        assert provider.cordon_host(name) == host
        assert cluster.api.get(f"/api/v1/nodes/{host}")["spec"]["unschedulable"] is True
        provider.cordon_host(name, cordoned=False)
        assert "unschedulable" not in cluster.api.get(f"/api/v1/nodes/{host}")["spec"]
    finally:
        cluster.kubelet.set_condition(host, "GpuXid", "False")
        cluster.kubelet.set_condition(host, "Ready", "True")
    with pytest.raises(RefusedError, match="is left as it is"):
        cluster.provider().cordon_host(name)


def test_a_cordoned_pod_is_not_ready_for_kubernetes_where_it_has_the_gate(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    cluster.deploy("plain", replicas=1, gate=False)
    provider = cluster.provider()
    with_gate, without = cluster.await_running(provider, 2)

    def is_ready(name: str) -> bool:
        conditions = cluster.get("Pod", name)["status"]["conditions"]
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    for name in (with_gate, without):
        provider.cordon(name)
        assert cluster.get("Pod", name)["metadata"]["labels"]["fleetctl.dev/cordoned"] == "true"
    wait_until(lambda: not is_ready(with_gate))
    assert is_ready(without)
    provider.uncordon(with_gate)
    wait_until(lambda: is_ready(with_gate))
    assert "fleetctl.dev/cordoned" not in cluster.get("Pod", with_gate)["metadata"]["labels"]


def test_a_deployment_is_rolled_back_to_the_revision_before(cluster: Cluster) -> None:
    cluster.deploy(replicas=1, gate=False)
    provider = cluster.provider()
    cluster.await_running(provider, 1)
    first = provider.specs()[0].revision
    template = pod_template("engine", token_file=cluster.token_file, image="small-node:2", gate=False)
    cluster.api.patch(cluster.path("Deployment", "engine"), {"spec": {"template": template}})
    wait_until(lambda: [one.revision for one in provider.specs()] not in ([first], []))
    wait_until(lambda: len(provider.specs()) == 1)
    name = provider.specs()[0].name
    assert [(one.number, one.images, one.is_current) for one in provider.revisions(name)] == [
        (1, ("small-node",), False),
        (2, ("small-node:2",), True),
    ]
    assert provider.roll_back(name).hash == first
    wait_until(lambda: [one.revision for one in provider.specs()] == [first])


def test_a_stateful_set_is_rolled_back_by_number(cluster: Cluster) -> None:
    cluster.deploy("web", kind="StatefulSet", replicas=1)
    provider = cluster.provider()
    cluster.await_running(provider, 1)
    template = pod_template("web", token_file=cluster.token_file, image="small-node:2")
    cluster.api.patch(cluster.path("StatefulSet", "web"), {"spec": {"template": template}})
    wait_until(lambda: len(provider.revisions("web-0")) == 2)
    with pytest.raises(BadInputError, match="revision 7 is not kept; it has 1, 2"):
        provider.roll_back("web-0", 7)
    assert provider.roll_back("web-0", 1).images == ("small-node",)
    wait_until(
        lambda: cluster.get("StatefulSet", "web")["spec"]["template"]["spec"]["containers"][0]["image"] == "small-node"
    )


def test_logs_go_on_after_the_cursor(cluster: Cluster) -> None:
    cluster.deploy(
        replicas=1, command=["sh", "-c", "for i in 1 2 3 4 5; do echo line $i; done; exec sleep 600"], gate=False
    )
    provider = cluster.provider()
    wait_until(lambda: bool(provider.list_instances()))
    name = provider.list_instances()[0].name
    wait_until(lambda: len(provider.read_logs(name, lines=9).lines) == 5)
    last = provider.read_logs(name, lines=2)
    assert last.lines == ("line 4", "line 5")
    assert provider.read_logs(name, lines=9, after=last.cursor).lines == ()
    first = provider.read_logs(name, lines=2, after="nonsense")
    assert first.lines == ("line 1", "line 2")
    assert provider.read_logs(name, lines=2, after=first.cursor).lines == ("line 3", "line 4")


def test_a_group_of_a_leader_worker_set_is_a_node_and_its_workers_are_none(cluster: Cluster) -> None:
    cluster.know_leader_worker_sets(leader_worker_set_kind())
    cluster.create(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "llama"},
            "spec": {"replicas": 2},
        }
    )
    for group in (0, 1):
        for worker in (0, 1):
            labels = {
                "leaderworkerset.sigs.k8s.io/name": "llama",
                "leaderworkerset.sigs.k8s.io/group-index": str(group),
                "leaderworkerset.sigs.k8s.io/worker-index": str(worker),
            }
            pod = pod_template("llama", token_file=cluster.token_file, labels=labels)
            pod["metadata"]["name"] = f"llama-{group}" + (f"-{worker}" if worker else "")
            cluster.create({"apiVersion": "v1", "kind": "Pod", **pod})
    provider = cluster.provider()
    wait_until(lambda: sorted(one.name for one in provider.list_instances()) == ["llama-0", "llama-1"])
    spec = _like(provider, "llama-0", "third")
    assert spec.options["workload"] == "leaderworkerset/llama"
    with pytest.raises(RefusedError, match="highest group, llama-1"):
        provider.stop("llama-0", 1.0)
    with pytest.raises(FleetctlError, match="made no pod for third"):  # no controller of this kind is here
        provider.ensure_started(spec)
    assert cluster.get("LeaderWorkerSet", "llama")["spec"]["replicas"] == 3
    assert provider.observe("third").trouble == "leaderworkerset/llama has made no pod for it yet"
    provider.stop("third", 1.0)
    assert cluster.get("LeaderWorkerSet", "llama")["spec"]["replicas"] == 2


def test_a_pod_that_does_not_end_is_ended_by_force_after_its_grace(cluster: Cluster) -> None:
    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
    cluster.deploy(replicas=1, command=stubborn, gate=False, grace_s=300)
    provider = cluster.provider()
    wait_until(lambda: any(one.instance for one in provider.list_instances()))
    name = provider.list_instances()[0].name
    process = cluster.kubelet.worker(cluster.namespace, name).process
    provider.stop(name, 0.5)
    assert process is not None
    assert process.exit_status() == -9
    assert not provider.observe(name).running


def test_a_pool_with_no_workload_or_two_is_no_place_to_start_a_node(cluster: Cluster) -> None:
    cluster.deploy("one", replicas=1, labels={"fleetctl.dev/pool": "chat"})
    cluster.deploy("two", replicas=1, labels={"fleetctl.dev/pool": "chat"})
    provider = cluster.provider()
    cluster.await_running(provider, 2)
    with pytest.raises(BadInputError, match="pool chat has several workloads"):
        provider.ensure_started(NodeSpec("fresh", pool="chat"))
    with pytest.raises(BadInputError, match="pool other has no workload"):
        provider.ensure_started(NodeSpec("fresh", pool="other"))


def _like(provider: KubernetesProvider, name: str, fresh: str) -> NodeSpec:
    return next(one for one in provider.specs() if one.name == name).named(fresh)
