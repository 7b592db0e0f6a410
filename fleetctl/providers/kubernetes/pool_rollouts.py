"""Rollouts of pools that are Deployments or StatefulSets: Kubernetes carries them out, we order them and look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from fleetctl.kit.errors import FleetctlError, RefusedError
from fleetctl.providers.kubernetes.cluster import Cluster, Object
from fleetctl.providers.kubernetes.estate import Estate
from fleetctl.providers.kubernetes.node_spec import pool_of
from fleetctl.providers.kubernetes.options import KubernetesOptions
from fleetctl.providers.kubernetes.pod import HASH_LABELS, Pod
from fleetctl.providers.kubernetes.revisions import kept_revisions, list_revisions, roll_back
from fleetctl.providers.kubernetes.workload import Workload
from fleetctl.providers.pool_rollout import KeptRevision, PoolRollout, RolloutWord

STEPWISE = ("canary", "promote")
HOLDING = ("pause", "resume")
ALL = ("start", "rollback", *STEPWISE, *HOLDING)


class PoolRollouts:
    """Threading: any thread. Raises FleetctlError."""

    def __init__(self, cluster: Cluster, estate: Estate, options: KubernetesOptions) -> None:
        self._cluster, self._estate, self._options = cluster, estate, options

    def pool_rollouts(self) -> dict[str, PoolRollout]:
        """Of every pool that has a pod."""
        return {pool: self._rollout_of(pool, list(found.values())) for pool, found in self._workloads_by_pool().items()}

    def roll_to(self, pool: str, revision: str) -> None:
        """As `kubectl rollout undo --to-revision`, by the revision's hash. Nothing when it is the current one."""
        workload = self._one(pool)
        kept = list_revisions(self._cluster, workload)
        numbers = [one.number for one in kept if one.hash == revision]
        if not numbers:
            known = ", ".join(one.hash for one in kept) or "none"
            raise RefusedError(f"{workload.ref} keeps no revision {revision}; it has {known}")
        roll_back(self._cluster, workload, numbers[-1])

    def roll_image(self, pool: str, image: str) -> None:
        """A patch of the container that serves, guarded by the object's version."""
        workload = self._one(pool)
        found = self._cluster.find(workload.plural, workload.namespace, workload.name)
        if found is None:
            raise FleetctlError(f"{workload.ref} in {workload.namespace} is gone")
        containers: Sequence[Object] = found["spec"]["template"]["spec"]["containers"]
        name = self._serving(workload, containers)
        index = next(number for number, one in enumerate(containers) if one["name"] == name)
        if containers[index]["image"] == image:
            return
        same = {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]}
        path = f"/spec/template/spec/containers/{index}/image"
        change: list[Object] = [same, {"op": "replace", "path": path, "value": image}]
        self._estate.note(
            workload.plural, self._cluster.patch_json(workload.plural, workload.namespace, workload.name, change)
        )

    def hold_rollout(self, pool: str, *, held: bool) -> None:
        """`spec.paused` of a Deployment."""
        workload = self._one(pool)
        if workload.kind != "Deployment":
            raise RefusedError(f"{workload.ref} can't be paused: only a Deployment can")
        change = {"spec": {"paused": held}}
        self._estate.note(
            workload.plural, self._cluster.patch(workload.plural, workload.namespace, workload.name, change)
        )

    def _workloads_by_pool(self) -> Mapping[str, Mapping[str, Workload]]:
        roster = self._estate.roster()
        found: dict[str, dict[str, Workload]] = defaultdict(dict)
        for pod in roster.nodes.values():
            workload = roster.workloads.get(pod.uid)
            if workload is not None and pod.active:
                found[pool_of(pod, workload, self._options.pool_labels)][workload.uid] = workload
        return found

    def _one(self, pool: str) -> Workload:
        found = list(self._workloads_by_pool().get(pool, {}).values())
        if len(found) != 1:
            names = ", ".join(sorted(one.ref for one in found)) or "none"
            raise RefusedError(f"pool {pool} has not one workload in Kubernetes: {names}")
        return found[0]

    def _rollout_of(self, pool: str, workloads: Sequence[Workload]) -> PoolRollout:
        if len(workloads) > 1:
            names = ", ".join(sorted(one.ref for one in workloads))
            return PoolRollout(pool, names, cannot=dict.fromkeys(ALL, f"pool {pool} has several workloads: {names}"))
        (workload,) = workloads
        if workload.kind not in ("Deployment", "StatefulSet"):
            why = f"Kubernetes keeps no revisions of {workload.ref}"
            return PoolRollout(pool, workload.ref, size=workload.replicas, cannot=dict.fromkeys(ALL, why))
        cannot = dict.fromkeys(STEPWISE, f"{workload.ref} exchanges its pods by its own strategy, which has no steps")
        if workload.kind != "Deployment":
            cannot |= dict.fromkeys(HOLDING, f"{workload.ref} can't be paused: only a Deployment can")
        kept = [
            KeptRevision(one.hash, one.number, one.images, one.created_at, one.is_current)
            for one in kept_revisions(self._estate.find_all, workload)
        ]
        pods = self._estate.roster().pods_of.get(workload.uid, ())
        current = next((one.id for one in kept if one.is_current), "")
        new = [pod for pod in pods if pod.active and _hash(pod) == current]
        state, why = self._state(workload, new, pods)
        return PoolRollout(
            pool,
            workload.ref,
            kept,
            state,
            why,
            size=workload.replicas,
            new=len(new),
            new_ready=sum(pod.ready for pod in new),
            cannot=cannot,
        )

    def _state(self, workload: Workload, new: Sequence[Pod], pods: Sequence[Pod]) -> tuple[RolloutWord, str]:
        found = self._estate.workload(workload)
        is_over = len(new) >= workload.replicas and len(new) == len([pod for pod in pods if pod.active])
        conditions = {one["type"]: one for one in (found.get("status") or {}).get("conditions") or ()}
        progress = conditions.get("Progressing", {})
        if found["spec"].get("paused"):  # it may have a newer template that nothing was made of yet
            return "paused", "spec.paused is set"
        if progress.get("status") == "False":
            return "failed", progress.get("message", "")
        if not is_over or not workload.settled:
            return "promoting", progress.get("message", "")
        return "done", progress.get("message", "")

    def _serving(self, workload: Workload, containers: Sequence[Object]) -> str:
        pods = self._estate.roster().pods_of.get(workload.uid, ())
        names = {pod.container.name for pod in pods}
        found = [one["name"] for one in containers if one["name"] in names]
        return str(found[0] if found else containers[0]["name"])


def _hash(pod: Pod) -> str:
    return next((pod.labels[key] for key in HASH_LABELS if key in pod.labels), "")
