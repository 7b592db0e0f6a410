"""The provider does all that it does with the rights of our manifests, on a real API server that holds it to them."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from fleetctl.kit.errors import FleetctlError
from fleetctl.providers.kubernetes.provider import KubernetesProvider
from tests.fixtures.fleet import wait_until
from tests.fixtures.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes.kube_api import KubeApi
from tests.fixtures.kubernetes.manifests import budget, pod_template
from tests.fixtures.kubernetes.rights import as_controller, controller_kubeconfig, give_cluster_wide
from tests.fixtures.manifests import kustomized

pytestmark = pytest.mark.waits


def limited(cluster: Cluster, token: str, folder: Path, **settings: object) -> KubernetesProvider:
    return cluster.provider(kubeconfig=controller_kubeconfig(cluster, folder, token=token), **settings)


def test_nodes_are_seen_cordoned_read_started_stopped_and_rolled_back(cluster: Cluster, tmp_path: Path) -> None:
    cluster.deploy(replicas=2)
    cluster.create(budget("at-least-one", "engine", 1))
    provider = limited(cluster, as_controller(cluster), tmp_path)
    names = cluster.await_running(provider, 2)  # labels and gates are patched on the way
    assert {one.zone for one in provider.specs()} <= {"zone-a", "zone-b"}  # machines are seen
    provider.read_logs(names[0], lines=5)
    like = next(one for one in provider.specs() if one.name == names[0])
    provider.ensure_started(like.named("fresh"))
    cluster.await_running(provider, 3)
    provider.cordon("fresh")
    provider.stop("fresh", 5.0)  # by eviction, which asks the budget
    assert not provider.observe("fresh").running
    provider.restart(names[1], 5.0)
    name = cluster.await_running(provider, 2)[0]
    template = pod_template("engine", token_file=cluster.token_file, image="small-node:2")
    cluster.api.patch(cluster.path("Deployment", "engine"), {"spec": {"template": template}})
    wait_until(lambda: len(provider.revisions(name)) == 2)
    assert provider.roll_back(name, 1).number >= 1


def test_what_holds_a_pod_back_is_read_and_events_are_not_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.deploy("pulled", replicas=1, image="missing:1")
    provider = limited(cluster, as_controller(cluster), tmp_path)
    wait_until(lambda: any("ImagePullBackOff" in provider.observe(name).trouble for name in cluster.pod_names()))
    provider.cluster.find_all("events", cluster.namespace)


def test_it_can_neither_delete_pods_nor_read_secrets_nor_run_commands(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    wait_until(cluster.pod_names)
    (name,) = cluster.pod_names()
    api = KubeApi(cluster.plane.url, as_controller(cluster))
    pod = cluster.path("Pod", name)
    assert api.get(pod)["metadata"]["name"] == name
    secrets = pod.replace(f"pods/{name}", "secrets")
    for ask in (lambda: api.delete(pod), lambda: api.get(secrets), lambda: api.create(f"{pod}/exec?command=id", {})):
        with pytest.raises(httpx.HTTPStatusError) as refused:
            ask()
        assert refused.value.response.status_code == 403
    api.close()


def test_a_machine_is_cordoned_only_with_the_component_that_allows_it(cluster: Cluster, tmp_path: Path) -> None:
    cluster.deploy(replicas=1)
    token = as_controller(cluster)
    provider = limited(cluster, token, tmp_path, may_cordon_hosts=True)
    (name,) = cluster.await_running(provider, 1)
    with pytest.raises(FleetctlError, match="patch nodes"):
        provider.cordon_host(name)
    added = kustomized("small", ("cordon-hosts",))
    give_cluster_wide(cluster, [one for one in added if one["metadata"]["name"] == "fleetctl-cordon-hosts"])
    host = provider.cordon_host(name)
    provider.cordon_host(name, cordoned=False)
    assert host
