"""Which pod is which node: judged from the pods and their workloads' marks, the same by whoever looks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleetctl.providers.kubernetes.pod import NAME_LABEL, Pod
from fleetctl.providers.kubernetes.workload import WORKER_INDEX, Workload
from fleetctl.providers.spec import NODE_NAME


@dataclass(frozen=True, slots=True)
class Roster:
    """Every node by its name, and what each pod's workload is. `pending`: nodes whose pod has not come yet."""

    nodes: Mapping[str, Pod]
    workloads: Mapping[str, Workload]  # by a pod's uid
    pods_of: Mapping[str, Sequence[Pod]]  # by a workload's uid
    pending: Mapping[str, Workload]


def call_roll(
    pods: Iterable[Pod],
    workloads: Iterable[Workload],
    workload_of: Callable[[Pod], Workload | None],
    *,
    with_namespace: bool,
) -> Roster:
    """A pod is the node that its label names, else the one that its workload's mark waits for, else its own name's.

    A name whose pod is being deleted waits for the pod after it, which until then is no node of another name.
    `with_namespace`: pods of several namespaces may have one name, so theirs begins with the namespace.
    """
    leaders = sorted(
        (one for one in pods if one.labels.get(WORKER_INDEX, "0") == "0"), key=lambda one: (one.created_at, one.name)
    )
    owners = {pod.uid: found for pod in leaders if (found := workload_of(pod)) is not None}
    pods_of: dict[str, list[Pod]] = defaultdict(list)
    for pod in leaders:
        if pod.uid in owners:
            pods_of[owners[pod.uid].uid].append(pod)
    nodes: dict[str, Pod] = {}
    taken: set[str] = set()

    def give(name: str, pod: Pod) -> None:
        nodes[name] = pod
        taken.add(pod.uid)

    for pod in leaders:
        label = pod.labels.get(NAME_LABEL)
        if label is None or not NODE_NAME.match(label) or pod.phase == "Failed":
            continue
        standing = nodes.get(label)
        if standing is None:
            give(label, pod)
        elif standing.terminating and not pod.terminating:
            taken.add(pod.uid)  # labelled already; it is the node once the other one is gone
    pending: dict[str, Workload] = {}
    for workload in workloads:
        # Of one that somebody made smaller since, a mark waits for nothing.
        awaited = workload.replicas - sum(pod.active for pod in pods_of[workload.uid])
        for name, mark in sorted(workload.starts.items()):
            standing = nodes.get(name)
            if standing is not None and not standing.terminating:
                continue
            fits = (one for one in pods_of[workload.uid] if one.uid not in taken and one.active and mark.may_be(one))
            successor = next(fits, None)
            if successor is None and standing is None:
                if awaited > 0:
                    pending[name] = workload
                    awaited -= 1
            elif successor is not None and standing is None:
                give(name, successor)
            elif successor is not None:
                taken.add(successor.uid)
    for pod in leaders:
        if pod.uid not in taken:
            name = _own_name(pod, with_namespace=with_namespace)
            if name not in nodes:
                give(name, pod)
    return Roster(nodes, owners, pods_of, pending)


def _own_name(pod: Pod, *, with_namespace: bool) -> str:
    whole = f"{pod.namespace}-{pod.name}" if with_namespace else pod.name
    return whole.replace(".", "-")[-63:].strip("-")
