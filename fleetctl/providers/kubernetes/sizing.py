"""One node more or less: the workload's size changes by one, once, whoever is killed in between."""

from __future__ import annotations

import time
from collections.abc import Callable

from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError
from fleetctl.providers.kubernetes.cluster import ApiRefusedError, Cluster, Object
from fleetctl.providers.kubernetes.disruption import ask_leave, await_end, evict
from fleetctl.providers.kubernetes.estate import Estate
from fleetctl.providers.kubernetes.pod import COST_ANNOTATION, NAME_LABEL, Pod
from fleetctl.providers.kubernetes.removal import LOWEST_COST, why_another_goes
from fleetctl.providers.kubernetes.serving import set_serving
from fleetctl.providers.kubernetes.workload import (
    ORDINAL_KINDS,
    Workload,
    name_patch,
    read_workload,
    shrink_patch,
    stopped_patch,
    surge_patch,
)
from fleetctl.providers.spec import NodeSpec

CONFLICT = 409
TRIES = 8
POD_WAIT_S = 15.0  # until the workload's controller has made the pod that it was asked for
FIRST_WAIT_S = 10.0  # until a pod that shall go counts as not ready, where it has our readiness gate


class Sizing:
    """Implements start, stop and restart of one node. Threading: any thread. Raises FleetctlError."""

    def __init__(self, cluster: Cluster, estate: Estate) -> None:
        self._cluster, self._estate = cluster, estate

    def start(self, spec: NodeSpec) -> None:
        """One replica more, unless the mark says that it was asked for; then the new pod gets the node's name."""
        workload = self._workload_for(spec)
        if _comes_back(workload, spec.name):
            self._await_pod(workload, spec.name)
            return
        if spec.name not in workload.starts:
            self._change(
                workload,
                lambda now: None if spec.name in now.starts else surge_patch(now, spec.name, self._pods(now)),
            )
        self._label(workload, spec.name)

    def stop(self, name: str, pod: Pod, grace_s: float) -> None:
        """One replica less, at the cost of this very pod. Raises RefusedError when Kubernetes would not do that."""
        workload = self._estate.roster().workloads.get(pod.uid)
        if workload is None:
            if not pod.terminating:
                evict(self._cluster, pod, grace_s)
            await_end(self._cluster, self._estate, pod, grace_s)
            return
        if workload.stops.get(name) != pod.uid and not pod.terminating:
            ask_leave(self._cluster, pod)
            self._make_first(workload, pod)
            self._change(
                workload, lambda now: None if now.stops.get(name) == pod.uid else shrink_patch(now, name, pod.uid)
            )
        await_end(self._cluster, self._estate, pod, grace_s)
        self._change(workload, lambda now: stopped_patch(now, name) if name in (*now.starts, *now.stops) else None)

    def stop_pending(self, name: str, workload: Workload) -> None:
        """One replica less: the pod of this start never came."""
        self._change(workload, lambda now: shrink_patch(now, name, None) if name in now.starts else None)

    def forget(self, name: str) -> None:
        """Take the marks away of a node that is gone: of a stop that was cut off, of a start that somebody undid."""
        for workload in self._estate.own_workloads():
            if name in (*workload.starts, *workload.stops):
                self._change(
                    workload, lambda now: stopped_patch(now, name) if name in (*now.starts, *now.stops) else None
                )

    def restart(self, name: str, pod: Pod, grace_s: float) -> None:
        """Delete the pod; what its workload makes instead is the same node. Returns once the old one is gone."""
        workload = self._estate.roster().workloads.get(pod.uid)
        if workload is None:
            raise RefusedError(f"{name}: nothing would start pod {pod.namespace}/{pod.name} again: no workload owns it")
        if not pod.terminating:
            if workload.kind not in ORDINAL_KINDS:  # their pods come back under their own names
                self._change(workload, lambda now: name_patch(now, name, self._pods(now)))
            evict(self._cluster, pod, grace_s)
        await_end(self._cluster, self._estate, pod, grace_s)
        self._await_pod(workload, name)

    def _change(self, workload: Workload, make: Callable[[Workload], Object | None]) -> None:
        """Patch the workload as it is now; somebody else's change in between means: read again. None: it is done."""
        for _ in range(TRIES):
            now = self.read(workload)
            change = make(now)
            if change is None:
                return
            try:
                found = self._cluster.patch(now.plural, now.namespace, now.name, change)
            except ApiRefusedError as error:
                if error.code != CONFLICT:
                    raise
                continue
            self._estate.note(now.plural, found)
            return
        raise FleetctlError(f"{workload.ref} changes all the time: it was not patched in {TRIES} tries")

    def read(self, workload: Workload) -> Workload:
        """As the server has it now."""
        found = self._cluster.find(workload.plural, workload.namespace, workload.name)
        if found is None or found["metadata"]["uid"] != workload.uid:
            raise FleetctlError(f"{workload.ref} in {workload.namespace} is gone")
        return read_workload(workload.kind, found)

    def _pods(self, workload: Workload) -> list[Pod]:
        return list(self._estate.roster().pods_of.get(workload.uid, ()))

    def _workload_for(self, spec: NodeSpec) -> Workload:
        found = self._estate.workloads_for(spec)
        if len(found) == 1:
            return found[0]
        names = ", ".join(f"{one.namespace}: {one.ref}" for one in found)
        raise BadInputError(
            f"{spec.name}: pool {spec.pool} has {'several workloads' if found else 'no workload'} in Kubernetes"
            + (f" ({names})" if found else ""),
            remedy="say --like NODE, or options.namespace and options.workload, e.g. deployment/engine",
        )

    def _await_pod(self, workload: Workload, name: str) -> Pod:
        """The node's pod, once the workload's controller has made it."""
        deadline = time.monotonic() + POD_WAIT_S
        while True:
            seen = self._estate.pods_seen(workload.namespace)
            pod = self._estate.roster().nodes.get(name)
            if pod is not None and pod.active:
                return pod
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise FleetctlError(
                    f"{workload.ref} made no pod for {name} in {POD_WAIT_S:.0f} s{self._estate.why_no_pod(workload)}",
                    remedy=f"kubectl describe -n {workload.namespace} {workload.ref}",
                )
            self._estate.wait_change(workload.namespace, seen, min(left_s, 0.5))

    def _label(self, workload: Workload, name: str) -> None:
        """Write the name on the pod that the mark is for: it stays so whatever becomes of others."""
        for _ in range(TRIES):
            pod = self._await_pod(workload, name)
            if pod.labels.get(NAME_LABEL) == name:
                return
            change = {"metadata": {"uid": pod.uid, "resourceVersion": pod.version, "labels": {NAME_LABEL: name}}}
            seen = self._estate.pods_seen(pod.namespace)
            try:
                self._estate.note("pods", self._cluster.patch("pods", pod.namespace, pod.name, change))
                return
            except ApiRefusedError as error:
                if error.code not in (CONFLICT, 404):
                    raise
            self._estate.wait_change(pod.namespace, seen, 0.5)
        raise FleetctlError(f"pod {pod.name} changes all the time: it was not labelled in {TRIES} tries")

    def _make_first(self, workload: Workload, pod: Pod) -> None:
        """See to it that this pod is the one that a smaller workload loses. Raises RefusedError when it is not."""
        if workload.kind not in ORDINAL_KINDS:
            cost = {"metadata": {"annotations": {COST_ANNOTATION: str(LOWEST_COST)}}}
            self._estate.note("pods", self._cluster.patch("pods", pod.namespace, pod.name, cost))
            set_serving(self._cluster, self._estate, pod, False)
        deadline = time.monotonic() + (FIRST_WAIT_S if pod.has_gate else 1.0)
        while True:
            seen = self._estate.pods_seen(pod.namespace)
            standing = self._estate.pod(pod.namespace, pod.name, pod.uid)
            if standing is None:
                return
            now = self.read(workload)
            why = why_another_goes(now, standing, self._pods(now), knows_cost=self._cluster.knows_deletion_cost is True)
            if why is None:
                return
            if time.monotonic() >= deadline:
                raise RefusedError(why, remedy="nothing was changed but its cordon: see docs/providers.md")
            self._estate.wait_change(pod.namespace, seen, 0.5)


def _comes_back(workload: Workload, name: str) -> bool:
    """Whether it is the own name of a pod that the workload has anyway, and makes again when it is gone."""
    own = {f"{workload.name}-{number}" for number in range(workload.first_ordinal, workload.next_ordinal)}
    return workload.kind in ORDINAL_KINDS and name in own | {f"{workload.namespace}-{one}" for one in own}
