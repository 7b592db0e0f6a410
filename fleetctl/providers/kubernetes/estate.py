"""All that the API tells of our pods, their workloads and machines: mirrors, and the roster judged from them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from fleetctl.kit.errors import UnreachableError
from fleetctl.providers.kubernetes.cluster import Cluster, Object
from fleetctl.providers.kubernetes.host import Host, read_host
from fleetctl.providers.kubernetes.mirror import Mirror
from fleetctl.providers.kubernetes.node_spec import pool_of
from fleetctl.providers.kubernetes.options import KubernetesOptions
from fleetctl.providers.kubernetes.pod import Owner, Pod, controller_of, read_pod
from fleetctl.providers.kubernetes.pulse import Pulse
from fleetctl.providers.kubernetes.roster import Roster, call_roll
from fleetctl.providers.kubernetes.workload import GROUP_NAME, Workload, read_workload
from fleetctl.providers.spec import NodeSpec

CLOSE_S = 10.0
_WORKLOADS = {"deployments": "Deployment", "statefulsets": "StatefulSet", "leaderworkersets": "LeaderWorkerSet"}


class Estate:
    """What is known now. Threading: any thread. Raises UnreachableError, or the API's refusal, when it may be old."""

    def __init__(self, cluster: Cluster, options: KubernetesOptions) -> None:
        """Follows the API from now on."""
        self.namespaces: Sequence[str] = options.namespaces or (cluster.namespace,)
        self._cluster, self._options = cluster, options
        stale_after_s = options.stale_after_s

        self._pulse = Pulse(cluster, self.namespaces[0], stale_after_s / 4)

        def mirror(plural: str, namespace: str, *, selector: str | None = None, optional: bool = False) -> Mirror:
            return Mirror(
                cluster,
                plural,
                namespace,
                self._pulse,
                selector=selector,
                optional=optional,
                stale_after_s=stale_after_s,
            )

        self._pods = {one: mirror("pods", one, selector=options.selector) for one in self.namespaces}
        self._workloads = {
            (plural, one): mirror(plural, one, optional=plural == "leaderworkersets")
            for plural in _WORKLOADS
            for one in self.namespaces
        }
        self._replica_sets = {one: mirror("replicasets", one) for one in self.namespaces}
        self._revisions = {one: mirror("controllerrevisions", one) for one in self.namespaces}
        self._hosts = mirror("nodes", "", optional=True)
        self._lock = threading.Lock()
        self._roster: Roster | None = None
        self._seen: tuple[int, ...] = ()
        self._read: dict[tuple[str, str], Pod] = {}

    def roster(self) -> Roster:
        """Nodes by name."""
        for one in self._followed():
            if self._roster is None:
                one.objects()  # waits for its first list
            one.check_fresh()
        with self._lock:
            seen = tuple(one.changes for one in self._followed())
            if self._roster is None or seen != self._seen:
                self._roster, self._seen = self._call_roll(), seen
            return self._roster

    def version(self) -> tuple[int, ...]:
        """Another one whenever something changes that the roster is called from."""
        self.roster()  # raises when that may be old
        return self._seen

    def pod(self, namespace: str, name: str, uid: str) -> Pod | None:
        """This very pod; None once it is gone."""
        found = self._pods[namespace].objects().get(name)
        return None if found is None or found["metadata"]["uid"] != uid else self._pod(found)

    def workloads_for(self, spec: NodeSpec) -> list[Workload]:
        """What may start such a node: the workload that its options name, else those that have its pool's pods."""
        roster = self.roster()
        known = {one.uid: one for one in (*roster.workloads.values(), *self.own_workloads())}
        ref, namespace = spec.options.get("workload"), spec.options.get("namespace")
        fits = [one for one in known.values() if namespace in (None, one.namespace)]
        if ref is not None:
            return [one for one in fits if one.ref == ref]
        started = [one for one in fits if spec.name in one.starts]
        if started:
            return started
        names = self._options.pool_labels
        pools = {uid: {pool_of(pod, one, names) for pod in roster.pods_of.get(uid, ())} for uid, one in known.items()}
        return [one for one in fits if spec.pool in pools[one.uid]] or [one for one in fits if one.name == spec.pool]

    def why_no_pod(self, workload: Workload) -> str:
        """What the workload's conditions say; empty when nothing."""
        found = self._workloads.get((workload.plural, workload.namespace))
        whole = {} if found is None else found.objects().get(workload.name, {})
        conditions = (whole.get("status") or {}).get("conditions") or ()
        said = [one["message"] for one in conditions if one["type"] == "ReplicaFailure" and one["status"] == "True"]
        return f": {said[0]}" if said else ""

    def host(self, name: str | None) -> Host | None:
        """The Kubernetes node of this name; None where it is not known."""
        try:
            found = None if name is None else self._hosts.objects().get(name)
        except UnreachableError:
            return None
        return None if found is None else read_host(found)

    def hosts_unseen(self) -> str | None:
        """Why Kubernetes nodes are not known; None: they are."""
        return self._hosts.refused

    def note(self, plural: str, found: Object) -> None:
        """What the API answered to a change of ours."""
        namespace = found["metadata"]["namespace"]
        mirror = self._pods[namespace] if plural == "pods" else self._workloads.get((plural, namespace))
        if mirror is not None:
            mirror.note(found)

    def pods_seen(self, namespace: str) -> int:
        """Grows with whatever changes of the pods there."""
        return self._pods[namespace].changes

    def wait_change(self, namespace: str, seen: int, limit_s: float) -> None:
        """Return once a pod changed since `pods_seen` was `seen`, or after `limit_s`."""
        self._pods[namespace].wait_change(seen, limit_s)

    @property
    def lists(self) -> int:
        """Whole lists that were asked for, of any kind."""
        return sum(one.lists for one in self._followed())

    def close(self) -> None:
        """Stop following; returns once no thread asks the API any more."""
        followed = [*self._followed(), self._hosts]
        for one in followed:
            one.close()
        self._cluster.end_watches()
        self._pulse.close()
        for one in followed:
            one.join(CLOSE_S)

    def _followed(self) -> Iterator[Mirror]:
        yield from self._pods.values()
        yield from self._workloads.values()
        yield from self._replica_sets.values()
        yield from self._revisions.values()

    def _call_roll(self) -> Roster:
        pods = [self._pod(found) for one in self._pods.values() for found in one.objects().values()]
        self._read = {(pod.uid, pod.version): pod for pod in pods}
        workloads = {one.uid: one for one in self.own_workloads()}
        sets = {
            found["metadata"]["uid"]: found for one in self._replica_sets.values() for found in one.objects().values()
        }
        return call_roll(
            pods,
            workloads.values(),
            lambda pod: _workload_of(pod, workloads, sets),
            with_namespace=len(self.namespaces) > 1,
        )

    def find_all(self, plural: str, namespace: str) -> list[Object]:
        """Replica sets or controller revisions of a namespace, as they were told last."""
        mirrors = self._replica_sets if plural == "replicasets" else self._revisions
        return list(mirrors[namespace].objects().values())

    def workload(self, workload: Workload) -> Object:
        """Its whole object as it was told last; empty spec and status when it is gone."""
        found = self._workloads.get((workload.plural, workload.namespace))
        objects = {} if found is None else found.objects()
        return objects.get(workload.name, {"spec": {}, "status": {}})

    def own_workloads(self) -> Iterator[Workload]:
        """Every Deployment, StatefulSet and LeaderWorkerSet in our namespaces."""
        for (plural, _), mirror in self._workloads.items():
            for found in mirror.objects().values():
                yield read_workload(_WORKLOADS[plural], found)

    def _pod(self, found: Object) -> Pod:
        """Most pods are as they were at the last look."""
        meta = found["metadata"]
        return self._read.get((meta["uid"], meta["resourceVersion"])) or read_pod(found)


def _workload_of(pod: Pod, workloads: Mapping[str, Workload], sets: Mapping[str, Object]) -> Workload | None:
    group = pod.labels.get(GROUP_NAME)
    if group is not None:  # its owner is a StatefulSet that belongs to the LeaderWorkerSet
        fits = (
            one
            for one in workloads.values()
            if (one.kind, one.namespace, one.name) == ("LeaderWorkerSet", pod.namespace, group)
        )
        return next(fits, None)
    owner: Owner | None = pod.owner
    if owner is not None and owner.kind == "ReplicaSet" and owner.uid in sets:
        above = controller_of(sets[owner.uid])
        if above is None:
            return read_workload("ReplicaSet", sets[owner.uid])
        owner = above
    return None if owner is None else workloads.get(owner.uid)
