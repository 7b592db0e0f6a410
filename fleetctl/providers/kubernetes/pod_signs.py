"""What is wrong with a pod, as signs that questions can ask for: of its status, and of its newest warnings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fleetctl.providers.kubernetes.pod import Pod
from fleetctl.providers.kubernetes.pod_reason import Event
from fleetctl.providers.provider import Sign, SignKind

FRESH_EVENT_S = 300.0  # Kubernetes keeps events for an hour: an older one may be of what is mended since
MAX_MESSAGE_CHARS = 300

_KINDS = {
    SignKind.MEMORY: {"OOMKilled", "OOMKilling", "SystemOOM"},
    SignKind.IMAGE: {
        *("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"),
        "ImageInspectError",
    },
    SignKind.CONFIG: {
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"),
        *("ContainerCannotRun", "PostStartHookError", "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"),
    },
    SignKind.UNSCHEDULED: {
        *("Unschedulable", "FailedScheduling", "SchedulingGated"),
        *("UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity", "NodePorts"),  # its kubelet refuses it
    },
    SignKind.CRASH: {"CrashLoopBackOff", "BackOff"},
    SignKind.EVICTED: {
        *("Evicted", "Preempted", "Preempting", "PreemptionByScheduler", "DeletionByTaintManager"),
        *("TaintManagerEviction", "EvictionByEvictionAPI", "TerminationByKubelet", "NodeShutdown", "Terminated"),
    },
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words}
_REFUSED_FOR_LACK = "OutOf"  # of a kubelet, with what it lacks: OutOfcpu, OutOfnvidia.com/gpu
_ORDINARY_END = ("", "Error", "Completed")
_ORDINARY_WAIT = ("ContainerCreating", "PodInitializing")


def is_in_trouble(pod: Pod) -> bool:
    """Whether it does not get on, so that its events are worth a request."""
    return not (pod.phase == "Running" and pod.container.ready)


def pod_signs(pod: Pod, events: Sequence[Event] | None, now: float) -> tuple[Sign, ...] | None:
    """Each word once. None: its events could not be read, and its status alone tells nothing."""
    found = {sign.word: sign for sign in (*_of_events(pod, events or (), now), *_of_status(pod))}
    if events is None and not found:
        return None
    return tuple(sorted(found.values()))


def _of_status(pod: Pod) -> Iterator[Sign]:
    container = pod.container
    if pod.disrupted:
        yield _sign(pod.disrupted)
    if pod.unscheduled:
        yield _sign("Unschedulable", pod.unscheduled)
    if container.waiting and container.waiting not in _ORDINARY_WAIT:
        yield _sign(container.waiting, container.waiting_message)
    # How an earlier run ended is news until this one is ready.
    if (container.ended or "") not in _ORDINARY_END and not container.ready:
        yield _sign(container.ended or "")


def _of_events(pod: Pod, events: Iterable[Event], now: float) -> Iterator[Sign]:
    if not is_in_trouble(pod):
        return
    for event in sorted(events, key=lambda one: one.at):
        if event.warning and now - event.at <= FRESH_EVENT_S:
            if event.reason == "FailedScheduling" and pod.host is not None:
                continue  # it has its machine by now
            yield _sign(event.reason, event.message)


def _sign(word: str, message: str = "") -> Sign:
    kind = _KIND_OF.get(word, SignKind.UNSCHEDULED if word.startswith(_REFUSED_FOR_LACK) else SignKind.OTHER)
    if word == "Unhealthy" and message.startswith("Liveness"):  # of a readiness probe it is a part of every start
        kind = SignKind.LIVENESS
    return Sign(word, kind, message[:MAX_MESSAGE_CHARS])
