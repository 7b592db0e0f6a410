"""The API server hangs, dies, forgets old versions or forbids: what could not be looked at is never told as gone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fleetctl.kit.errors import FleetctlError, UnreachableError
from tests.fixtures.fleet import wait_until
from tests.fixtures.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes.control_plane import ControlPlane, write_kubeconfig
from tests.fixtures.kubernetes.kubelet import Kubelet

pytestmark = pytest.mark.waits
ACCESS = Path(__file__).parents[4] / "fleetctl/deploy/kustomize/fleet-access"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """One of the test's own: it is hurt."""
    made = ControlPlane.start(tmp_path / "plane")
    yield made
    made.stop()


@pytest.fixture
def kubelet(plane: ControlPlane) -> Iterator[Kubelet]:
    made = Kubelet(plane, plane.folder / "kubelet")
    yield made
    made.stop()


@pytest.mark.parametrize("process", ["kube-apiserver", "etcd"])
def test_a_hung_control_plane_is_not_taken_for_nodes_that_do_not_run(
    cluster: Cluster, plane: ControlPlane, process: str
) -> None:
    cluster.deploy()
    provider = cluster.provider(stale_after_s=4.0)
    names = cluster.await_running(provider, 2)
    plane.signal(process, signal.SIGSTOP)
    try:
        wait_until(lambda: _is_blind(lambda: provider.observe(names[0])))
        for look in (provider.list_instances, provider.specs, lambda: provider.stop(names[0], 1.0)):
            with pytest.raises(UnreachableError, match="could not look"):
                look()
    finally:
        plane.signal(process, signal.SIGCONT)
    wait_until(lambda: not _is_blind(lambda: provider.observe(names[0])))
    assert sorted(one.name for one in provider.list_instances()) == names


def test_after_a_restart_of_the_api_server_that_forgot_old_versions_everything_is_listed_anew(
    cluster: Cluster, plane: ControlPlane
) -> None:
    cluster.deploy()
    provider = cluster.provider(stale_after_s=4.0)
    names = cluster.await_running(provider, 2)
    before = provider.estate.lists
    plane.signal("kube-apiserver", signal.SIGKILL)
    wait_until(lambda: _is_blind(lambda: provider.observe(names[0])))
    # Its watch cache begins now: 410 Gone for each watch that goes on from before the newest write, maybe a pod's.
    plane.start_again("kube-apiserver")
    wait_until(lambda: not _is_blind(lambda: provider.observe(names[0])))
    wait_until(lambda: provider.estate.lists > before)
    assert sorted(one.name for one in provider.list_instances()) == names
    provider.ensure_started(next(one for one in provider.specs() if one.name == names[0]).named("fresh"))
    assert "fresh" in cluster.await_running(provider, 3)


def test_the_role_that_we_ship_is_enough_and_without_it_the_missing_right_is_named(cluster: Cluster) -> None:
    cluster.deploy(replicas=3)
    account, namespace = "fleetctl-controller", cluster.namespace
    cluster.create({"kind": "ServiceAccount", "metadata": {"name": account}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.api.create(f"{cluster.path('ServiceAccount', account)}/token", request)["status"]["token"]
    kubeconfig = write_kubeconfig(cluster.plane.folder / "account.kubeconfig", cluster.plane.url, token, namespace)
    with pytest.raises(FleetctlError, match="does not allow us to list") as refused:
        cluster.provider(kubeconfig=kubeconfig).list_instances()
    assert "fleet-access" in str(refused.value.remedy)

    for found in _documents():
        if found["kind"] in ("Role", "RoleBinding"):
            found["metadata"]["namespace"] = namespace
            for subject in found.get("subjects", ()):
                subject["namespace"] = namespace
            cluster.create(found)
    provider = cluster.provider(kubeconfig=kubeconfig)
    wait_until(lambda: not _is_blind(provider.list_instances))
    names = cluster.await_running(provider, 3)
    provider.ensure_started(next(one for one in provider.specs() if one.name == names[0]).named("fresh"))
    cluster.await_running(provider, 4)
    provider.restart(names[1], 5.0)
    cluster.await_running(provider, 4)
    provider.stop(names[0], 5.0)
    assert provider.read_logs(names[1], lines=1).lines == ()
    assert [one.number for one in provider.revisions("fresh")] == [1]
    assert provider.specs()[0].zone == ""  # Kubernetes nodes are not ours to see with this Role alone
    assert provider.estate.hosts_unseen() is not None


def _is_blind(look: object) -> bool:
    assert callable(look)
    try:
        look()
    except FleetctlError:
        return True
    return False


def _documents() -> list[dict[str, object]]:
    files = sorted(ACCESS.rglob("*.yaml"))
    return [one for file in files for one in yaml.safe_load_all(file.read_text()) if one]
