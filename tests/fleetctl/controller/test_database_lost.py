"""PostgreSQL is stopped, or falls silent, under a controller: it says so, acts on nothing, and goes on by itself."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.controller import stop_all
from tests.fixtures.controller_process import ControllerProcess, eventually
from tests.fixtures.postgres import PostgresCluster, running_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(240)]


@pytest.fixture
def own_cluster() -> Iterator[PostgresCluster]:
    """One that no other test uses."""
    yield from running_cluster()


def test_a_database_that_goes_away_loses_nothing_that_was_answered(
    tmp_path: Path, own_cluster: PostgresCluster
) -> None:
    controller = ControllerProcess("one", tmp_path, database_url=own_cluster.new_url(), lease_s=1.5, nodes=1)
    answered: list[str] = []

    def freeze(reason: str) -> int | None:
        answer = controller.ask("POST", "/v1/freezes", json={"reason": reason, "for_s": 3600}, timeout=20)
        if answer is not None and answer.is_success:
            answered.append(reason)
        return None if answer is None else answer.status_code

    def status() -> dict:
        return controller.get("/v1/status") or {}

    outages = (
        (own_cluster.stop, own_cluster.start),
        (lambda: own_cluster.signal(signal.SIGSTOP), lambda: own_cluster.signal(signal.SIGCONT)),
    )
    try:
        eventually(lambda: status().get("nodes_ready") == 1, "the node is ready")
        for number, (take_away, give_back) in enumerate(outages):
            assert freeze(f"before {number}") == 201
            take_away()
            eventually(lambda: status().get("storage_error"), "it tells that nothing can be stored")
            assert freeze(f"during {number}") in (503, None)
            eventually(lambda: status().get("leadership", {}).get("is_certain") is False, "it does not act")
            nodes = controller.get("/v1/nodes")
            assert [node["phase"] for node in nodes] == ["ready"], "what is in memory is answered"
            metrics = controller.ask("GET", "/metrics")
            assert metrics is not None
            assert "controller_storage_ok 0.0" in metrics.text
            assert "controller_leader 0.0" in metrics.text
            give_back()
            eventually(lambda: not status().get("storage_error") and controller.leads, "it goes on by itself")
            eventually(lambda n=number: freeze(f"after {n}") == 201, "changes are taken again")
        stored = [one["reason"] for one in controller.get("/v1/freezes")]
        assert [reason for reason in stored if reason in answered] == answered
        assert status()["epoch"] == 1, "nobody took over: it leads as before"
        assert controller.process.poll() is None
    finally:
        controller.stop()
        stop_all(tmp_path)
