"""A Kubernetes node, the machine under the pods: its zone, its GPUs, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetctl.providers.kubernetes.cluster import Object

# What a healthy machine reports as False; a condition of any other type is a detector's, and True is its alarm.
_HEALTHY_WHEN_TRUE = frozenset({"Ready"})


@dataclass(frozen=True, slots=True)
class Host:
    """What is read of one Node object."""

    name: str
    labels: Mapping[str, str]
    ready: bool | None  # None: its kubelet does not report
    ready_message: str
    problems: tuple[str, ...]  # conditions that a kubelet or a problem detector raised, with their words
    unschedulable: bool

    def label(self, names: Sequence[str]) -> str | None:
        """The first of these labels that it has."""
        return next((self.labels[name] for name in names if self.labels.get(name)), None)


def read_host(found: Object) -> Host:
    """A Node object of the API."""
    conditions = {one["type"]: one for one in (found.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready", {"status": "Unknown"})
    problems = [
        f"{kind} ({one['message']})" if one.get("message") else kind
        for kind, one in sorted(conditions.items())
        if kind not in _HEALTHY_WHEN_TRUE and one["status"] == "True"
    ]
    return Host(
        name=found["metadata"]["name"],
        labels=found["metadata"].get("labels") or {},
        ready={"True": True, "False": False}.get(ready["status"]),
        ready_message=ready.get("message", "") if ready["status"] != "True" else "",
        problems=tuple(problems),
        unschedulable=bool(found["spec"].get("unschedulable")),
    )
