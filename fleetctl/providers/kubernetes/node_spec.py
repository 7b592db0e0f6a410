"""What a pod is as a node: pool, model, engine, zone and revision, by labels, with settings for which."""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.providers.found import API_KEY
from fleetctl.providers.kubernetes.host import Host
from fleetctl.providers.kubernetes.options import KubernetesOptions
from fleetctl.providers.kubernetes.pod import HASH_LABELS, Pod
from fleetctl.providers.kubernetes.workload import Workload
from fleetctl.providers.providers import KUBERNETES
from fleetctl.providers.spec import NodeSpec


def spec_of(name: str, pod: Pod, workload: Workload | None, host: Host | None, options: KubernetesOptions) -> NodeSpec:
    """The node as it is seen. Its options say where it lives, so that a node like it is started there."""
    where = {"pod": pod.name} if workload is None else {"workload": workload.ref}
    return NodeSpec(
        name=name,
        pool=pool_of(pod, workload, options.pool_labels),
        model=_said(pod, options.model_labels) or "",
        engine=_said(pod, options.engine_labels) or "",
        zone=(host.label(options.zone_labels) if host is not None else None) or "",
        revision=next((pod.labels[key] for key in HASH_LABELS if key in pod.labels), ""),
        provider=KUBERNETES,
        facts=_facts(pod, host, options),
        options={"namespace": pod.namespace, **where},
    )


def pool_of(pod: Pod, workload: Workload | None, names: Sequence[str]) -> str:
    """By its labels, else its workload's name."""
    return _said(pod, names) or (workload.name if workload is not None else pod.name)


def _facts(pod: Pod, host: Host | None, options: KubernetesOptions) -> dict[str, str]:
    sku = host.label(options.sku_labels) if host is not None else None
    api_key = _said(pod, options.api_key_labels) or options.api_key
    known = {"pod": pod.name, "host": pod.host, "sku": sku, API_KEY: api_key}
    return {key: value for key, value in known.items() if value}


def _said(pod: Pod, names: Sequence[str]) -> str | None:
    found = (pod.labels.get(name) or pod.annotations.get(name) for name in names)
    return next((one for one in found if one), None)
