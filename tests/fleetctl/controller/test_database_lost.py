"""PostgreSQL is stopped, or falls silent, under a controller: it says so, acts on nothing, and goes on by itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fleetctl.controller import app
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.database import StorageLostError
from tests.fixtures.controller import NoProvider, make_config, stop_all
from tests.fixtures.controller_process import ControllerProcess, eventually
from tests.fixtures.postgres import PostgresCluster, running_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(240)]


@pytest.fixture
def own_cluster() -> Iterator[PostgresCluster]:
    """One that no other test uses."""
    yield from running_cluster()


def test_a_controller_that_starts_before_its_database_waits_for_it(
    tmp_path: Path, own_cluster: PostgresCluster
) -> None:
    url = own_cluster.new_url()
    own_cluster.stop()
    controller = ControllerProcess("one", tmp_path, database_url=url, lease_s=1.5, nodes=1)
    try:
        eventually(lambda: "storage.not_opened" in controller.log.read_text(), "it says what it waits for")
        own_cluster.start()
        eventually(lambda: controller.leads, "it leads")
    finally:
        controller.stop()
        stop_all(tmp_path)


@pytest.mark.anyio
async def test_a_transaction_that_the_server_ends_while_the_controller_opens_is_tried_again(
    tmp_path: Path, postgres_cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    @asynccontextmanager
    async def ended_once(*arguments: Any) -> AsyncIterator[Controller]:
        opened.append("")
        if len(opened) == 1:
            raise StorageLostError("terminating connection due to idle-in-transaction timeout")
        async with open_controller(*arguments) as controller:
            yield controller

    monkeypatch.setattr(app, "open_controller", ended_once)
    stopping = asyncio.Event()
    config = make_config(tmp_path, nodes=0, database_url=postgres_cluster.new_url())

    await app.serve(config, lambda url: stopping.set(), provider=NoProvider(), stopping=stopping)

    assert len(opened) == 2


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
