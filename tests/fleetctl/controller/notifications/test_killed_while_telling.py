"""A controller killed with SIGKILL after it wrote a notification, before or while it sends it, or replaced by its
standby: it is told, once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.kit.reserved_port import reserve_port
from tests.fixtures.controller import stop_all
from tests.fixtures.controller_process import LEASE_S, ControllerProcess, eventually
from tests.fixtures.postgres import PostgresCluster
from tests.fixtures.receivers import HttpReceiver, http_receiver

pytestmark = pytest.mark.waits

FIRING = {
    "version": "4",
    "groupKey": "g",
    "status": "firing",
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "HighTTFT", "severity": "page", "pool": "chat"},
            "annotations": {"summary": "TTFT is high"},
            "startsAt": "2026-11-20T21:26:25Z",
            "endsAt": "0001-01-01T00:00:00Z",
        }
    ],
}


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stop_all(tmp_path)


@pytest.fixture
def http() -> Iterator[HttpReceiver]:
    with http_receiver() as receiver:
        yield receiver


def controller(state_dir: Path, url: str, name: str = "one", **settings: Any) -> ControllerProcess:
    receivers = [{"name": "hook", "kind": "webhook", "url": url}]
    return ControllerProcess(
        name, state_dir, nodes=0, start_nodes=False, receivers=receivers, wait_for_cause_s=0, retry_s=0.2, **settings
    )


def notifications(process: ControllerProcess) -> list[dict[str, Any]]:
    """Of the incident that `open_incident` opened: a takeover has one of its own."""
    return [one for one in process.get("/v1/notifications") or [] if "TTFT is high" in one["subject"]]


def open_incident(process: ControllerProcess) -> None:
    eventually(lambda: process.leads, "it leads")
    answer = process.ask("POST", "/webhooks/alertmanager", json=FIRING)
    assert answer is not None
    assert answer.status_code == 200


def ends_once(process: ControllerProcess) -> dict[str, Any]:
    """The one notification, delivered, with one line on the timeline."""
    eventually(lambda: [one["state"] for one in notifications(process)] == ["delivered"], "it is told")
    told = notifications(process)[0]
    events = process.get("/v1/events?after=0")
    kinds = Counter(entry["kind"] for entry in events if entry["incident_id"] == told["incident_id"])
    assert {kind: n for kind, n in kinds.items() if kind.startswith("notification.")} == {"notification.delivered": 1}
    return told


def test_what_was_written_and_not_sent_is_sent_once_by_the_next_one(state_dir: Path) -> None:
    process = controller(state_dir, f"http://127.0.0.1:{reserve_port()}/hook")  # nobody is there
    try:
        open_incident(process)
        eventually(lambda: [one["state"] for one in notifications(process)] == ["waiting"], "it is written")
        process.signal(signal.SIGKILL)
        process.process.wait(10)
    finally:
        process.stop()
    with http_receiver() as http:
        process = controller(state_dir, f"{http.url}/hook")
        try:
            told = ends_once(process)
        finally:
            process.stop()
        assert [body["key"] for body in http.bodies] == [told["id"]]


def test_what_was_sent_and_not_noted_is_sent_again_under_the_same_key_and_ends_once(
    state_dir: Path, http: HttpReceiver
) -> None:
    http.may_answer.clear()
    process = controller(state_dir, f"{http.url}/hook")
    try:
        open_incident(process)
        eventually(lambda: http.heard, "it is being sent")
        process.signal(signal.SIGKILL)
        process.process.wait(10)
    finally:
        process.stop()
    http.may_answer.set()
    process = controller(state_dir, f"{http.url}/hook")
    try:
        told = ends_once(process)
    finally:
        process.stop()
    assert told["attempts"] == 2
    assert {headers["idempotency-key"] for _, headers, _ in http.heard} == {told["id"]}


def test_a_leader_that_stood_still_while_sending_and_its_standby_tell_under_one_key_and_it_ends_once(
    state_dir: Path, http: HttpReceiver, postgres_cluster: PostgresCluster
) -> None:
    database = {"database_url": postgres_cluster.new_url(), "lease_s": LEASE_S}
    http.may_answer.clear()
    first = controller(state_dir, f"{http.url}/hook", "first", **database)
    try:
        open_incident(first)
        eventually(lambda: http.heard, "it is being sent")
        first.signal(signal.SIGSTOP)
        http.may_answer.set()
        second = controller(state_dir, f"{http.url}/hook", "second", **database)
        try:
            eventually(lambda: second.leads, "the other one takes over")
            told = ends_once(second)
            first.signal(signal.SIGCONT)
            eventually(lambda: first.get("/health/live") is not None and not first.leads, "the revived one stands by")
            assert ends_once(second) == told
        finally:
            second.stop()
    finally:
        first.stop()
    keys = [body["key"] for body in http.bodies if body["incident"] == told["incident_id"]]
    assert set(keys) == {told["id"]}
    assert len(keys) == told["attempts"] == 2
