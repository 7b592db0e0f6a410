"""Which pod Kubernetes takes when a workload shrinks: judged before we ask, because it can't be told a name."""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.providers.kubernetes.pod import COST_ANNOTATION, Pod
from fleetctl.providers.kubernetes.workload import GROUP_INDEX, ORDINAL_KINDS, Workload

LOWEST_COST = -(2**31)  # of controller.kubernetes.io/pod-deletion-cost
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


def why_another_goes(workload: Workload, pod: Pod, pods: Sequence[Pod], *, knows_cost: bool) -> str | None:
    """Why a smaller workload would not lose this pod; None: this is the one. `pods`: all of the workload's.

    `knows_cost`: the server weighs the deletion cost (Kubernetes 1.22 and newer).
    """
    if workload.kind in ORDINAL_KINDS:
        return _why_not_last(workload, pod)
    if not workload.settled:
        return f"{workload.ref} is being rolled out: a smaller one may lose a pod of either revision"
    rank = _rank(pod, knows_cost=knows_cost)
    others = [one for one in pods if one.uid != pod.uid and one.active]
    first = [one.name for one in others if _rank(one, knows_cost=knows_cost) <= rank]
    if not first:
        return None
    remedy = (
        "" if pod.has_gate else "; declare the readiness gate fleetctl.dev/serving in its template to make it first"
    )
    return f"{workload.ref} would lose {' or '.join(sorted(first)[:3])} as well as {pod.name}{remedy}"


def number_of(pod: Pod) -> int | None:
    """A pod's ordinal, or its group's; None where pods have no numbers."""
    index = pod.labels.get(GROUP_INDEX, "")
    return int(index) if index.isdecimal() else pod.ordinal


def _why_not_last(workload: Workload, pod: Pod) -> str | None:
    number, last = number_of(pod), workload.next_ordinal - 1
    if number is None:
        return f"{pod.name} has no number in {workload.ref}"
    if number >= last:
        return None
    what = "pod" if workload.kind == "StatefulSet" else "group"
    return (
        f"{workload.ref} can only lose its highest {what}, {workload.name}-{last}; {pod.name} can be restarted "
        f"instead, which deletes its pod and lets it come back"
    )


def _rank(pod: Pod, *, knows_cost: bool) -> tuple[int, int, int, int]:
    """A ReplicaSet's own order: the lowest goes first. What it looks at after these is left to chance here."""
    cost = pod.annotations.get(COST_ANNOTATION, "0")
    number = int(cost) if cost.removeprefix("-").isdecimal() else 0
    return (pod.host is not None, _PHASES.get(pod.phase, 1), pod.ready, number if knows_cost else 0)
