"""A Kubernetes node, the machine under the pods: its zone, its GPUs, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetctl.providers.kubernetes.cluster import Object
from fleetctl.providers.provider import Sign, SignKind

# A condition whose type ends so is well when it is True (`Ready`, and what detectors of clouds set: `KernelReady`,
# `AcceleratedHardwareReady`); one of any other type is a detector's alarm, and True is its word.
_WELL_WHEN_TRUE = ("Ready", "Healthy", "Available")

# What a condition's type comes to, by parts of it, the first that fits: those of the kubelet, of node-problem-detector
# and of what clouds run beside it. A card before all else: `XIDErrors` are told by a reader of the kernel's log.
_KINDS = (
    (SignKind.GPU, ("gpu", "xid", "nvlink", "nvswitch", "nvidia", "acceleratedhardware", "dcgm", "neuron")),
    (SignKind.MAINTENANCE, ("scheduled", "maintenance", "termination")),
    (SignKind.MEMORY, ("memorypressure",)),
    (SignKind.PIDS, ("pidpressure", "fdpressure")),
    (SignKind.DISK, ("disk", "filesystem", "storage", "overlay2", "xfs", "inode")),
    (SignKind.NETWORK, ("network", "netdevice", "iblink", "dns")),
    (SignKind.RUNTIME, ("kubelet", "docker", "containerd", "containerruntime")),
    (SignKind.KERNEL, ("kernel", "deadlock", "ntp", "clock")),
)


@dataclass(frozen=True, slots=True)
class Host:
    """What is read of one Node object."""

    name: str
    labels: Mapping[str, str]
    ready: bool | None  # None: its kubelet does not report
    ready_message: str
    problems: tuple[Sign, ...]  # conditions that a kubelet or a problem detector raised

    @property
    def signs(self) -> tuple[Sign, ...]:
        """All that is wrong with it. A kubelet that is silent tells nothing new: what it said before is old."""
        if self.ready is True:
            return self.problems
        word = "NotReady" if self.ready is False else "Unknown"
        return (Sign(word, SignKind.SILENT, self.ready_message), *(() if self.ready is None else self.problems))

    def label(self, names: Sequence[str]) -> str | None:
        """The first of these labels that it has."""
        return next((self.labels[name] for name in names if self.labels.get(name)), None)


def read_host(found: Object) -> Host:
    """A Node object of the API."""
    conditions = {one["type"]: one for one in (found.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready", {"status": "Unknown"})
    problems = [
        Sign(kind, _kind_of(kind), one.get("message", ""))
        for kind, one in sorted(conditions.items())
        if kind != "Ready" and one["status"] == ("False" if kind.endswith(_WELL_WHEN_TRUE) else "True")
    ]
    return Host(
        name=found["metadata"]["name"],
        labels=found["metadata"].get("labels") or {},
        ready={"True": True, "False": False}.get(ready["status"]),
        ready_message=ready.get("message", "") if ready["status"] != "True" else "",
        problems=tuple(problems),
    )


def _kind_of(condition: str) -> SignKind:
    lowered = condition.lower()
    return next((kind for kind, parts in _KINDS if any(part in lowered for part in parts)), SignKind.OTHER)
