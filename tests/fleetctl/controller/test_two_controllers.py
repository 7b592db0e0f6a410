"""Two controller processes on one PostgreSQL database: the leader is killed, or stopped and revived."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fleetctl.client import ControllerClient
from fleetctl.kit.tls import NO_TLS
from fleetctl.providers.process import ProcessTable
from tests.fixtures.controller import NODE_TOKEN, TOKEN, stop_all
from tests.fixtures.controller_process import LEASE_S, ControllerProcess, eventually
from tests.fixtures.postgres import PostgresCluster

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(240)]


class Pair:
    def __init__(self, state_dir: Path, database_url: str) -> None:
        self.state_dir = state_dir
        settings = {"database_url": database_url, "lease_s": LEASE_S, "nodes": 3, "capacity_floor_ratio": 0.3}
        self.first = ControllerProcess("first", state_dir, **settings)
        eventually(lambda: self.first.leads, "the first one leads")
        self.second = ControllerProcess("second", state_dir, **settings)
        eventually(lambda: self.standbys() == [self.second.url], "the second one is its standby")
        eventually(lambda: self.status().get("nodes_ready") == 3, "the fleet is ready")

    def status(self) -> dict:
        """The first one's; nothing while it does not answer."""
        return self.first.get("/v1/status") or {}

    def standbys(self) -> list[str]:
        return self.status().get("leadership", {}).get("standbys", [])

    def node_url(self, name: str) -> str:
        url = ProcessTable(self.state_dir / "run").observe(name).url
        assert url is not None
        return url

    def stop(self) -> None:
        self.first.stop()
        self.second.stop()
        stop_all(self.state_dir)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres_cluster: PostgresCluster) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"), postgres_cluster.new_url())
    try:
        yield made
    finally:
        made.stop()


def test_a_client_that_is_sent_to_a_standby_follows_to_the_one_that_leads(pair: Pair) -> None:
    refused = pair.second.ask("POST", "/v1/freezes", json={"reason": "x"})
    assert refused is not None
    assert (refused.status_code, refused.headers["location"]) == (307, f"{pair.first.url}/v1/freezes")
    assert refused.json()["remedy"] == f"fleetctl --controller {pair.first.url}"

    async def ask() -> None:
        async with ControllerClient(pair.second.url, TOKEN) as client:
            assert (await client.status()).leadership.url == pair.first.url
            assert client.url == pair.first.url
        async with ControllerClient("http://127.0.0.1:9", TOKEN, others=[pair.second.url]) as client:
            assert len(await client.nodes()) == 3

    asyncio.run(ask())


def test_the_standby_takes_over_in_the_middle_of_a_run_and_ends_it_once(pair: Pair) -> None:
    first, second = pair.first, pair.second
    take_over_in_mid_run(pair, first, second, "node-1", signal.SIGSTOP)
    late = revived_answer(first, "uncordon node-3")
    assert late.status_code in (307, 503), late.text
    eventually(lambda: refuses(first), "the revived one is a standby")
    take_over_in_mid_run(pair, second, first, "node-2", signal.SIGKILL)
    kinds = [event["kind"] for event in first.get("/v1/events?after=0")]
    assert kinds.count("controller.took_over") == 2
    audit = [row["what"] for row in first.get("/v1/audit")]
    assert audit.count("run.requested") == audit.count("run.succeeded") == 2, audit
    assert first.get("/v1/audit/verification")["intact"]
    assert first.get("/v1/status")["epoch"] == 3


def take_over_in_mid_run(
    pair: Pair, leader: ControllerProcess, successor: ControllerProcess, name: str, number: signal.Signals
) -> None:
    httpx.post(f"{pair.node_url(name)}/test", verify=NO_TLS, json={"held": 2}, trust_env=False).raise_for_status()
    asked = leader.ask("POST", "/v1/actions", json={"command": f"drain {name} --deadline 12s", "requested_by": "ann"})
    assert asked is not None
    assert asked.status_code == 201
    run_id = asked.json()["id"]
    eventually(lambda: drains(pair, name)["state"] == "draining", "it drains")
    leader.signal(number)
    eventually(lambda: successor.leads, "the other one takes over")
    run = eventually(lambda: ended(successor, run_id), "the run ends")
    assert run["status"] == "succeeded", run
    assert drains(pair, name)["drains"] == 1
    assert drains(pair, name)["receipt"]["moved"] == 2
    events = [event for event in successor.get("/v1/events?after=0") if event["run_id"] == run_id]
    assert [event["kind"] for event in events].count("run.succeeded") == 1


def revived_answer(controller: ControllerProcess, command: str) -> httpx.Response:
    """To a change that was asked for while it stood still: it lies in its socket when it wakes up."""
    controller.signal(signal.SIGCONT)
    return eventually(
        lambda: controller.ask("POST", "/v1/actions", json={"command": command, "requested_by": "late"}), "it answers"
    )


def refuses(controller: ControllerProcess) -> bool:
    answer = controller.ask("GET", "/v1/status")
    return answer is not None and answer.status_code == 307


def ended(controller: ControllerProcess, run_id: str) -> dict | None:
    run = controller.get(f"/v1/runs/{run_id}")
    return run if run is not None and run["status"] in ("succeeded", "failed", "undone", "refused") else None


def drains(pair: Pair, name: str) -> dict:
    headers = {"Authorization": f"Bearer {NODE_TOKEN}"}
    return httpx.get(f"{pair.node_url(name)}/admin/drain", verify=NO_TLS, headers=headers, trust_env=False).json()
