"""Asking Kubernetes whether a pod may go, and making it go: always by eviction, so that budgets are honoured."""

from __future__ import annotations

import time

import structlog

from fleetctl.kit.errors import FleetctlError, RefusedError
from fleetctl.providers.kubernetes.cluster import ApiRefusedError, Cluster
from fleetctl.providers.kubernetes.estate import Estate
from fleetctl.providers.kubernetes.pod import Pod

log = structlog.get_logger()

TOO_MANY = 429  # what the eviction API answers when a PodDisruptionBudget forbids it
FORCED_GRACE_S = 1  # Kubernetes' shortest: the kubelet kills at once, and says when the process is gone
FORCE_WAIT_S = 15.0
_LOOK_S = 1.0  # while waiting, that the API still tells us is looked at this often


def ask_leave(cluster: Cluster, pod: Pod) -> None:
    """Nothing when the pod may be evicted. Raises RefusedError naming the PodDisruptionBudget that forbids it."""
    _evict(cluster, pod, None, dry_run=True)


def evict(cluster: Cluster, pod: Pod, grace_s: float | None) -> None:
    """Delete the pod with this grace, or its own. Raises RefusedError naming the budget that forbids it."""
    _evict(cluster, pod, grace_s, dry_run=False)


def await_end(cluster: Cluster, estate: Estate, pod: Pod, grace_s: float) -> None:
    """Return once the pod is gone; `grace_s` after now it is ended by force. Raises FleetctlError when it stays."""
    if _is_gone(estate, pod, grace_s):
        return
    log.warning("kubernetes.forced", pod=pod.name, namespace=pod.namespace, after_s=grace_s)
    evict(cluster, pod, FORCED_GRACE_S)  # of a pod that is being deleted no budget is asked
    if _is_gone(estate, pod, FORCE_WAIT_S):
        return
    host = estate.host(pod.host)
    silent = host is not None and host.ready is not True
    why = (
        f"Kubernetes node {pod.host} does not say that its processes ended" if silent else "its kubelet did not end it"
    )
    raise FleetctlError(
        f"pod {pod.namespace}/{pod.name} is still there {grace_s + FORCE_WAIT_S:.0f} s after its deletion: {why}",
        remedy=f"when its machine is off for certain: kubectl delete pod -n {pod.namespace} {pod.name} --force",
    )


def _evict(cluster: Cluster, pod: Pod, grace_s: float | None, *, dry_run: bool) -> None:
    try:
        cluster.evict(pod.namespace, pod.name, uid=pod.uid, grace_s=grace_s, dry_run=dry_run)
    except ApiRefusedError as error:
        if error.code != TOO_MANY:
            raise
        raise RefusedError(
            f"a PodDisruptionBudget forbids the end of {pod.namespace}/{pod.name}: {error.message}",
            remedy=f"kubectl get pdb -n {pod.namespace}; start a node more first, or wait until the others are ready",
        ) from error


def _is_gone(estate: Estate, pod: Pod, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while True:
        seen = estate.pods_seen(pod.namespace)
        if estate.pod(pod.namespace, pod.name, pod.uid) is None:
            return True
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        estate.wait_change(pod.namespace, seen, min(left_s, _LOOK_S))
