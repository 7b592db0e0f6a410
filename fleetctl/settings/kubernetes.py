"""Settings of nodes that are pods: which cluster, which pods, and which labels say what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from fleetctl.settings.hosts import HostsSettings
from fleetctl.settings.section import Section

Labels = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=317)], ...], Field(max_length=10)]


class KubernetesSettings(Section):
    """Pods as nodes. `{}` is enough in a pod with a service account: its own namespace, pods with an engine label."""

    kubeconfig: Path | None = Field(
        default=None,
        description="File that says how to reach the cluster.",
        json_schema_extra={"default": "the pod's service account, else $KUBECONFIG, else ~/.kube/config"},
    )
    context: str | None = Field(
        default=None, max_length=500, description="Context of that file; without it the file's current one."
    )
    namespaces: tuple[Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")], ...] = Field(
        default=(),
        max_length=50,
        description="Namespaces whose pods are looked at.",
        json_schema_extra={"default": "the service account's, or the context's"},
    )
    selector: str = Field(
        default="fleetctl.dev/engine",
        min_length=1,
        max_length=2000,
        description="Label selector, in Kubernetes' notation: the pods that are nodes.",
    )
    pool_labels: Labels = Field(
        default=("fleetctl.dev/pool",),
        description="Labels or annotations of a pod that name its pool, the first one wins; else its workload's name.",
        json_schema_extra={"default": "fleetctl.dev/pool"},
    )
    model_labels: Labels = Field(
        default=("fleetctl.dev/model",),
        description="Labels or annotations of a pod that name its model.",
        json_schema_extra={"default": "fleetctl.dev/model"},
    )
    engine_labels: Labels = Field(
        default=("fleetctl.dev/engine",),
        description="Labels or annotations of a pod that name its engine's kind.",
        json_schema_extra={"default": "fleetctl.dev/engine"},
    )
    api_key_labels: Labels = Field(
        default=("fleetctl.dev/api-key",),
        description="Labels or annotations of a pod that name its key of `fleet.api_keys`; else `api_key`.",
        json_schema_extra={"default": "fleetctl.dev/api-key"},
    )
    api_key: str = Field(
        default="", max_length=100, description="Key of `fleet.api_keys` that pods want which name none themselves."
    )
    zone_labels: Labels = Field(
        default=("topology.kubernetes.io/zone",),
        description="Labels of the Kubernetes node that name the zone.",
        json_schema_extra={"default": "topology.kubernetes.io/zone"},
    )
    sku_labels: Labels = Field(
        default=("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"),
        description="Labels of the Kubernetes node that name its GPU.",
        json_schema_extra={"default": "nvidia.com/gpu.product, cloud.google.com/gke-accelerator"},
    )
    stale_after_s: float = Field(
        default=10.0, ge=1, le=300, description="Without a word from the API for so long, nothing is known of the pods."
    )
    may_cordon_hosts: bool = Field(
        default=False, description="Whether a Kubernetes node may be made unschedulable, as for a broken GPU."
    )


class ProviderSettings(Section):
    """Where nodes come from, beside this machine."""

    kubernetes: KubernetesSettings | None = Field(default=None, description="Pods of a cluster as nodes; absent: none.")
    cost_per_node_hour: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(
        default_factory=dict,
        max_length=200,
        description="What a node costs in an hour, in your currency, by its SKU, or by the name of its GPU.",
    )
    hosts: HostsSettings | None = Field(
        default=None, description="Units of hosts as nodes, run by ssh and systemctl, or by commands of yours."
    )
