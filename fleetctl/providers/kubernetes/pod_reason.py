"""Why a pod is not a node that serves, in words for people: Kubernetes' own terms, with what they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleetctl.providers.kubernetes.cluster import Object
from fleetctl.providers.kubernetes.host import Host
from fleetctl.providers.kubernetes.pod import Pod, seconds_of
from fleetctl.providers.provider import exit_words

# A container's reasons for waiting that are part of every start.
_ORDINARY = frozenset({"ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a pod. `at` is when it was seen last, in Unix seconds."""

    reason: str
    message: str
    count: int
    at: float
    warning: bool


def read_event(found: Object) -> Event:
    """An event object of the API."""
    series = found.get("series") or {}
    stamp = series.get("lastObservedTime") or found.get("lastTimestamp") or found.get("eventTime")
    return Event(
        reason=found.get("reason", ""),
        message=(found.get("message") or "").strip(),
        count=int(series.get("count") or found.get("count") or 1),
        at=seconds_of(stamp or found["metadata"]["creationTimestamp"]),
        warning=found.get("type") == "Warning",
    )


def pod_reason(pod: Pod, host: Host | None, events: Sequence[Event] | None = ()) -> str:
    """What keeps it from serving; empty when nothing is known to."""
    events = events or ()
    said = [one for one in (_of_pod(pod), "" if host is None else _of_host(host)) if one]
    newest = max((one for one in events if one.warning), key=lambda one: one.at, default=None)
    if newest is not None and said and newest.message not in said[0]:
        often = f" ({newest.count} times)" if newest.count > 1 else ""
        said.append(f"{newest.reason}: {newest.message}{often}")
    return "; ".join(said)


def _of_pod(pod: Pod) -> str:
    container = pod.container
    if pod.terminating:
        return "the pod is being deleted"
    if container.waiting and container.waiting not in _ORDINARY:
        before = _end(pod)
        said = f"{container.waiting}: {container.waiting_message}".rstrip(": ")
        return f"{said}; it ended before: {before}" if before else said
    if container.is_over:
        return f"its container ended: {_end(pod)}"
    if pod.unscheduled:
        return f"Unschedulable: {pod.unscheduled}"
    if pod.host is None:
        return "no Kubernetes node was chosen for it yet"
    if pod.phase == "Pending":
        return container.waiting or "its container is being made"
    if not pod.ready and container.restarts and container.ended:
        times = f"{container.restarts} restart{'' if container.restarts == 1 else 's'}"
        return f"{times}; it ended before: {_end(pod)}"
    return ""


def _end(pod: Pod) -> str:
    how = exit_words(pod.container.exit_status)
    reason = pod.container.ended if pod.container.ended not in (None, "Error", "Completed") else None
    return f"{reason} ({how})" if reason and how else reason or how


def _of_host(host: Host) -> str:
    if host.ready is not True:
        state = "unknown: its kubelet is silent" if host.ready is None else "False"
        words = f"Kubernetes node {host.name}: Ready is {state}"
        return f"{words} ({host.ready_message})" if host.ready_message else words
    if host.problems:
        return f"Kubernetes node {host.name}: {', '.join(map(str, host.problems))}"
    return ""
