"""A pod as a node: where it answers, which run of its container this is, and what its status says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleetctl.providers.kubernetes.cluster import Object

NAME_LABEL = "fleetctl.dev/node"
CORDONED_LABEL = "fleetctl.dev/cordoned"
PORT_ANNOTATION = "fleetctl.dev/port"
CONTAINER_ANNOTATION = "fleetctl.dev/container"
SERVING_GATE = "fleetctl.dev/serving"
COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
HASH_LABELS = ("pod-template-hash", "controller-revision-hash")  # what Kubernetes calls a revision
PORT_NAMES = ("http", "api")
ENDED = ("Succeeded", "Failed")
# Waiting for these, a container ended before and will be started again.
BACK_OFF = "CrashLoopBackOff"


@dataclass(frozen=True, slots=True)
class Owner:
    """What made an object, by its owner reference."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Container:
    """The container that serves, as its status says. None: not known, or it does not apply."""

    name: str
    restarts: int = 0
    started: bool = False  # this run of it began
    ready: bool = False  # by its own probe, whatever gates its pod has
    waiting: str | None = None  # the reason it waits
    waiting_message: str = ""
    ended: str | None = None  # the reason it ended, e.g. OOMKilled: of this run, or of the run before
    exit_status: int | None = None  # as ObservedInstance has it
    is_over: bool = False  # this run ended, and the next one did not begin


@dataclass(frozen=True, slots=True)
class Pod:
    """What is read of one pod."""

    name: str
    namespace: str
    uid: str
    version: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    owner: Owner | None
    host: str | None  # the Kubernetes node that it is bound to
    phase: str
    ip: str | None
    port: int | None
    container: Container
    ready: bool
    terminating: bool
    has_gate: bool  # it declares our readiness gate
    serving: bool | None  # what the gate's condition says
    unscheduled: str  # why no Kubernetes node takes it; empty when one did, or nobody tried
    disrupted: str  # why Kubernetes takes it away, in its word: Evicted, PreemptionByScheduler, ...; empty: it does not
    created_at: float

    @property
    def active(self) -> bool:
        """Whether its workload counts it: not being deleted, and not over."""
        return not self.terminating and self.phase not in ENDED

    @property
    def running(self) -> bool:
        """Whether there is a node: also one that waits for its place, its image or its start."""
        return self.phase not in ENDED and not self.container.is_over

    @property
    def instance(self) -> str | None:
        """Never used again: each run of the container has another one. None before the first one began."""
        begun = self.container.started or self.container.restarts
        return f"{self.uid}/{self.container.restarts}" if self.running and begun else None

    @property
    def url(self) -> str | None:
        """Where it answers; None before it has an address."""
        if not self.ip or self.port is None or not self.running:
            return None
        return f"http://[{self.ip}]:{self.port}" if ":" in self.ip else f"http://{self.ip}:{self.port}"

    @property
    def ordinal(self) -> int | None:
        """Of a StatefulSet's pod."""
        tail = self.name.rpartition("-")[2]
        return int(tail) if self.owner is not None and self.owner.kind == "StatefulSet" and tail.isdecimal() else None


def read_pod(found: Object) -> Pod:
    """A pod object of the API. Whatever a status does not say yet is unknown."""
    meta, spec, status = found["metadata"], found["spec"], found.get("status") or {}
    annotations = meta.get("annotations") or {}
    serving = _serving_container(spec, annotations)
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    scheduled, ready = conditions.get("PodScheduled", {}), conditions.get("Ready", {})
    gate = conditions.get(SERVING_GATE)
    return Pod(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        version=meta.get("resourceVersion", ""),
        labels=meta.get("labels") or {},
        annotations=annotations,
        owner=controller_of(found),
        host=spec.get("nodeName"),
        phase=status.get("phase", "Pending"),
        ip=status.get("podIP"),
        port=_port(serving, annotations),
        container=_container(serving["name"], status),
        ready=ready.get("status") == "True",
        terminating="deletionTimestamp" in meta,
        has_gate=any(one["conditionType"] == SERVING_GATE for one in spec.get("readinessGates") or ()),
        serving=None if gate is None else gate["status"] == "True",
        unscheduled=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        disrupted=_disrupted(conditions.get("DisruptionTarget", {}), status),
        created_at=seconds_of(meta["creationTimestamp"]),
    )


def controller_of(found: Object) -> Owner | None:
    """The one owner that controls an object; None when nobody does."""
    for one in found["metadata"].get("ownerReferences") or ():
        if one.get("controller"):
            return Owner(one["kind"], one["name"], one["uid"])
    return None


def seconds_of(stamp: str) -> float:
    """A time of the API as Unix seconds."""
    return datetime.fromisoformat(stamp).timestamp()


def _disrupted(target: Object, status: Object) -> str:
    word: str = target.get("reason", "") if target.get("status") == "True" else status.get("reason", "")
    return word


def _serving_container(spec: Object, annotations: Mapping[str, str]) -> Object:
    containers: list[Object] = spec["containers"]
    named = annotations.get(CONTAINER_ANNOTATION)
    by_port = (one for one in containers if any(port.get("name") in PORT_NAMES for port in one.get("ports") or ()))
    by_name = (one for one in containers if one["name"] == named)
    return next(by_name, None) or next(by_port, None) or containers[0]


def _port(container: Object, annotations: Mapping[str, str]) -> int | None:
    said = annotations.get(PORT_ANNOTATION)
    if said is not None:
        return int(said) if said.isdecimal() else None
    ports = [one for one in container.get("ports") or () if one.get("protocol", "TCP") == "TCP"]
    named = [one["containerPort"] for name in PORT_NAMES for one in ports if one.get("name") == name]
    return named[0] if named else (ports[0]["containerPort"] if len(ports) == 1 else None)


def _container(name: str, status: Object) -> Container:
    said: dict[str, Any] = next((one for one in status.get("containerStatuses") or () if one["name"] == name), {})
    state, last = said.get("state") or {}, said.get("lastState") or {}
    waiting = state.get("waiting") or {}
    end = state.get("terminated") or last.get("terminated") or {}
    return Container(
        name=name,
        restarts=said.get("restartCount", 0),
        started="running" in state,
        ready=bool(said.get("ready")),
        waiting=waiting.get("reason"),
        waiting_message=waiting.get("message", ""),
        ended=end.get("reason"),
        exit_status=_exit_status(end),
        is_over="terminated" in state or waiting.get("reason") == BACK_OFF,
    )


def _exit_status(end: Object) -> int | None:
    """Minus the signal, whether the runtime names it or hides it in the code."""
    if not end:
        return None
    if end.get("signal"):
        return -int(end["signal"])
    code = int(end.get("exitCode", 0))
    return 128 - code if 128 < code <= 192 else code
