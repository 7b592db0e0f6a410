"""What is wrong with machines and pods, in the platform's words and what they come to: read from objects of the API."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.providers.kubernetes.host import read_host
from fleetctl.providers.kubernetes.pod import read_pod
from fleetctl.providers.kubernetes.pod_reason import Event, read_event
from fleetctl.providers.kubernetes.pod_signs import is_in_trouble, pod_signs

STAMP, NOW = "2026-11-01T10:00:00Z", 1_793_527_200.0 + 60


def machine(**conditions: str) -> dict[str, Any]:
    told = [{"type": kind, "status": status} for kind, status in conditions.items()]
    return {"metadata": {"name": "gpu-7"}, "spec": {}, "status": {"conditions": told}}


def machine_words(**conditions: str) -> list[tuple[str, str]]:
    return [(one.word, one.kind.value) for one in read_host(machine(**conditions)).signs]


@pytest.mark.parametrize(
    ("condition", "status", "kind"),
    [
        ("MemoryPressure", "True", "memory"),
        ("DiskPressure", "True", "disk"),
        ("PIDPressure", "True", "pids"),
        ("NetworkUnavailable", "True", "network"),
        ("KernelDeadlock", "True", "kernel"),
        ("ReadonlyFilesystem", "True", "disk"),
        ("FrequentContainerdRestart", "True", "runtime"),
        ("FrequentUnregisterNetDevice", "True", "network"),
        ("XIDErrors", "True", "gpu"),
        ("GPUMissing", "True", "gpu"),
        ("VMEventScheduled", "True", "maintenance"),
        ("KernelReady", "False", "kernel"),
        ("AcceleratedHardwareReady", "False", "gpu"),
        ("SomethingOdd", "True", "other"),
    ],
)
def test_a_condition_that_is_raised_is_a_problem_of_its_kind(condition: str, status: str, kind: str) -> None:
    assert machine_words(Ready="True", **{condition: status}) == [(condition, kind)]
    other = {"True": "False", "False": "True"}[status]
    assert machine_words(Ready="True", **{condition: other}) == [], "what is well is no problem"


def test_a_machine_that_does_not_report_tells_nothing_that_is_new() -> None:
    assert machine_words(Ready="Unknown", DiskPressure="True") == [("Unknown", "silent")]
    assert machine_words(DiskPressure="True") == [("Unknown", "silent")], "nor one that never said it was ready"
    assert machine_words(Ready="False", DiskPressure="True") == [("NotReady", "silent"), ("DiskPressure", "disk")]


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "llm", "uid": "u1", "creationTimestamp": STAMP},
        "spec": {"containers": [{"name": "main"}], "nodeName": "gpu-7"},
        "status": {"phase": "Running", **status},
    }


def container(state: dict[str, Any], *, ready: bool = False, last: dict[str, Any] | None = None) -> dict[str, Any]:
    said = {"name": "main", "ready": ready, "restartCount": int(last is not None), "state": state}
    return pod(containerStatuses=[{**said, "lastState": last} if last else said])


def event(reason: str, message: str = "", at: str = STAMP, kind: str = "Warning") -> Event:
    return read_event(
        {"reason": reason, "message": message, "lastTimestamp": at, "type": kind, "metadata": {"creationTimestamp": at}}
    )


def words(found: dict[str, Any], *events: Event) -> list[tuple[str, str]] | None:
    signs = pod_signs(read_pod(found), events, NOW)
    return None if signs is None else [(one.word, one.kind.value) for one in signs]


KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": STAMP, "startedAt": STAMP}}
RUNS: dict[str, Any] = {"running": {"startedAt": STAMP}}


def test_a_container_that_was_killed_for_memory_says_so_until_it_is_ready_again() -> None:
    assert words(container(KILLED)) == [("OOMKilled", "memory")]
    assert words(container(RUNS, last=KILLED)) == [("OOMKilled", "memory")]
    assert words(container(RUNS, last=KILLED, ready=True)) == [], "that is long over"


def test_what_a_container_waits_for_is_a_sign_unless_it_is_a_part_of_every_start() -> None:
    assert words(container({"waiting": {"reason": "ImagePullBackOff"}})) == [("ImagePullBackOff", "image")]
    assert words(container({"waiting": {"reason": "CreateContainerConfigError"}})) == [
        ("CreateContainerConfigError", "config")
    ]
    back_off = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert words(container(back_off, last=KILLED)) == [("CrashLoopBackOff", "crash"), ("OOMKilled", "memory")]
    assert words(container({"waiting": {"reason": "ContainerCreating"}})) == []


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}, None),
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, "Evicted"),
    ],
)
def test_a_pod_that_is_taken_away_says_by_whom(status: dict[str, Any], word: str | None) -> None:
    assert words(pod(**status)) == [(word or "PreemptionByScheduler", "evicted")]


def test_a_pod_that_no_machine_takes_has_the_schedulers_words() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient nvidia.com/gpu"}
    found = pod(phase="Pending", conditions=[unscheduled])
    del found["spec"]["nodeName"]
    signs = pod_signs(read_pod(found), [event("FailedScheduling", "0/2 nodes")], NOW)
    assert [str(one) for one in signs or ()] == [
        "FailedScheduling (0/2 nodes)",
        "Unschedulable (0/2 nodes: Insufficient nvidia.com/gpu)",
    ]


@pytest.mark.parametrize("word", ["UnexpectedAdmissionError", "OutOfnvidia.com/gpu", "TopologyAffinityError"])
def test_a_pod_that_its_machine_refuses_is_taken_by_none(word: str) -> None:
    refused = pod(phase="Failed", reason=word, message="Pod was rejected: Allocate failed due to device plugin")
    assert words(refused) == [(word, "unscheduled")]
    assert words(pod(phase="Failed", reason="OOMKilled"))[0][1] == "memory"


def test_warnings_of_the_last_minutes_count_while_the_pod_does_not_get_on() -> None:
    waits = container(RUNS)
    assert words(waits, event("FailedMount")) == [("FailedMount", "config")]
    assert words(waits, event("Unhealthy", "Liveness probe failed: timeout")) == [("Unhealthy", "liveness")]
    assert words(waits, event("Unhealthy", "Readiness probe failed: 503")) == [("Unhealthy", "other")]
    assert words(waits, event("FailedMount", at="2026-11-01T09:50:00Z")) == [], "it is of an earlier try"
    assert words(waits, event("FailedScheduling")) == [], "it has its machine by now"
    assert words(waits, event("Scheduled", kind="Normal")) == []
    assert words(container(RUNS, ready=True), event("FailedMount")) == []


def test_a_pod_in_trouble_whose_events_cannot_be_read_is_not_known_to_be_well() -> None:
    found = read_pod(container(RUNS))
    assert is_in_trouble(found)
    assert pod_signs(found, None, NOW) is None
    assert pod_signs(read_pod(container(KILLED)), None, NOW) is not None, "its status tells enough"
