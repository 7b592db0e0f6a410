"""What owns pods and how many: a Deployment, StatefulSet, LeaderWorkerSet or ReplicaSet, with our marks on it.

A mark is an annotation written in the same patch as the size, guarded by the object's version: whoever comes after a
crash sees that a start or a stop was done, and does not do it twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetctl.providers.kubernetes.cluster import Object
from fleetctl.providers.kubernetes.pod import Pod

START = "start.fleetctl.dev/"  # + a node's name: a pod of this workload is, or will be, that node
STOP = "stop.fleetctl.dev/"  # + a node's name: the pod whose place was taken away
PLURALS = {
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "LeaderWorkerSet": "leaderworkersets",
    "ReplicaSet": "replicasets",
}
ORDINAL_KINDS = ("StatefulSet", "LeaderWorkerSet")  # they shrink from the highest number down
GROUP_NAME = "leaderworkerset.sigs.k8s.io/name"
GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
_UID_CHARS = 8


@dataclass(frozen=True, slots=True)
class StartMark:
    """That a node was started here. Its pod is none of those that were there before."""

    known: frozenset[str]  # the first characters of their uids
    pod: str | None  # its pod's name, where that follows from its number

    def may_be(self, pod: Pod) -> bool:
        """Whether the pod came after the mark."""
        return pod.name == self.pod if self.pod is not None else pod.uid[:_UID_CHARS] not in self.known


@dataclass(frozen=True, slots=True)
class Workload:
    """What is read of one object that owns pods."""

    kind: str
    namespace: str
    name: str
    uid: str
    version: str
    replicas: int
    first_ordinal: int
    starts: Mapping[str, StartMark]  # by node name
    stops: Mapping[str, str]  # node name to the uid of its pod
    settled: bool  # its controller has seen the newest spec, and all pods are of one revision

    @property
    def plural(self) -> str:
        """Of its kind in the API's paths."""
        return PLURALS[self.kind]

    @property
    def ref(self) -> str:
        """For people and for `options.workload` of a node: `deployment/NAME`."""
        return f"{self.kind.lower()}/{self.name}"

    @property
    def next_ordinal(self) -> int:
        """The number that one more replica gets."""
        return self.first_ordinal + self.replicas


def read_workload(kind: str, found: Object) -> Workload:
    """An object of the API. Defaults are those that the API states."""
    meta, spec, status = found["metadata"], found["spec"], found.get("status") or {}
    annotations: Mapping[str, str] = meta.get("annotations") or {}
    replicas = spec.get("replicas", 1)
    seen = status.get("observedGeneration", meta.get("generation")) == meta.get("generation")
    updated = status.get("updatedReplicas", status.get("replicas", 0))
    return Workload(
        kind=kind,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        version=meta["resourceVersion"],
        replicas=replicas,
        first_ordinal=(spec.get("ordinals") or {}).get("start", 0),
        starts={key.removeprefix(START): _mark(text) for key, text in annotations.items() if key.startswith(START)},
        stops={key.removeprefix(STOP): text for key, text in annotations.items() if key.startswith(STOP)},
        settled=bool(seen) and updated >= status.get("replicas", 0),
    )


def surge_patch(workload: Workload, name: str, pods: Sequence[Pod]) -> Object:
    """One replica more, and the mark that says for which node. `pods`: all that it has now."""
    pod = f"{workload.name}-{workload.next_ordinal}" if workload.kind in ORDINAL_KINDS else None
    return _patch(workload, {START + name: _text(pods, pod), STOP + name: None}, workload.replicas + 1)


def name_patch(workload: Workload, name: str, pods: Sequence[Pod]) -> Object:
    """The mark alone: the pod that comes after one of these is that node."""
    return _patch(workload, {START + name: _text(pods, None)}, None)


def shrink_patch(workload: Workload, name: str, uid: str | None) -> Object:
    """One replica less, and the mark of the pod that goes. None: its pod never came."""
    return _patch(workload, {START + name: None, STOP + name: uid}, max(0, workload.replicas - 1))


def stopped_patch(workload: Workload, name: str) -> Object:
    """Nothing is kept of a node that is gone."""
    return _patch(workload, {START + name: None, STOP + name: None}, None)


def _patch(workload: Workload, annotations: Mapping[str, str | None], replicas: int | None) -> Object:
    size = {} if replicas is None else {"spec": {"replicas": replicas}}
    return {"metadata": {"resourceVersion": workload.version, "annotations": dict(annotations)}, **size}


def _text(pods: Sequence[Pod], pod: str | None) -> str:
    if pod is not None:
        return json.dumps({"pod": pod})
    return json.dumps({"known": sorted(one.uid[:_UID_CHARS] for one in pods)})


def _mark(text: str) -> StartMark:
    """One that a person wrote may be anything: then any pod that came later fits."""
    try:
        said = json.loads(text)
        return StartMark(frozenset(said.get("known", ())), said.get("pod"))
    except (ValueError, AttributeError, TypeError):
        return StartMark(frozenset(), None)
