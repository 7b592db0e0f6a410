"""A pod's own word on whether it gets requests: a label for people and selectors, a condition for Services."""

from __future__ import annotations

from fleetctl.providers.kubernetes.cluster import Cluster
from fleetctl.providers.kubernetes.estate import Estate
from fleetctl.providers.kubernetes.pod import CORDONED_LABEL, SERVING_GATE, Pod


def set_serving(cluster: Cluster, estate: Estate, pod: Pod, serving: bool) -> None:
    """Label the pod as cordoned, or no longer; where it declares our readiness gate, say so to Kubernetes too.

    With the gate at False it is not Ready: no Service sends it requests.
    """
    is_labelled = pod.labels.get(CORDONED_LABEL) == "true"
    if is_labelled is serving:
        label = {"metadata": {"labels": {CORDONED_LABEL: None if serving else "true"}}}
        estate.note("pods", cluster.patch("pods", pod.namespace, pod.name, label))
    if pod.has_gate and pod.serving is not serving:
        condition = {"type": SERVING_GATE, "status": "True" if serving else "False", "reason": "Fleetctl"}
        change = {"status": {"conditions": [condition]}}
        estate.note("pods", cluster.patch_status(pod.namespace, pod.name, change))
