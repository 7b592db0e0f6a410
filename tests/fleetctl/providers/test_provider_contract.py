"""What every provider keeps, and what a controller does with any of them. A new provider is one more `World` here."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from fleetctl.controller.controller import open_controller
from fleetctl.kit.errors import FleetctlError
from fleetctl.kit.tls import NO_TLS
from fleetctl.providers.hosts.options import hosts_options
from fleetctl.providers.hosts.provider import HostsProvider
from fleetctl.providers.process import ProcessTable
from fleetctl.providers.provider import NodeProvider, ObservedInstance
from fleetctl.settings.hosts import HostsSettings
from fleetctl.wire.node import NodePhase
from fleetctl.wire.routing import RouteState
from runbooks.run import RunStatus
from tests.fixtures.controller import (
    NODE_TOKEN,
    SMALL_NODE,
    fleet_ready,
    make_config,
    make_provider,
    make_spec,
    stop_all,
)
from tests.fixtures.driven import DrivenClock, Traffic, drive
from tests.fixtures.fake_hosts import make_fake_ssh, place, settings_of
from tests.fixtures.fleet import wait_until
from tests.fixtures.hosted_provider import HostedProvider, node_host

if TYPE_CHECKING:
    from tests.fixtures.kubernetes.cluster import Cluster


POOL = "default"


@dataclass(frozen=True)
class World:
    """Where a provider's nodes live. Every `connect` gives a provider that knows nothing but that place."""

    connect: Callable[[], NodeProvider]
    end: Callable[[str], object]  # the node ends by itself, as in a crash, and nobody starts it again
    has_template: bool = False  # how its nodes start is said where they live, and their logs go with them


@pytest.fixture(params=["local", "hosted", "hosts", pytest.param("kubernetes", marks=pytest.mark.waits)])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    if request.param == "kubernetes":
        yield kubernetes_world(request.getfixturevalue("cluster"))
        return
    if request.param == "hosts":
        yield from hosts_world(tmp_path / "hosts", monkeypatch)
        return
    if request.param == "hosted":
        with node_host(tmp_path) as url:
            yield World(lambda: HostedProvider(url), lambda name: HostedProvider(url).stop(name, 0.0))
        return

    def end(name: str) -> None:
        pid = ProcessTable(tmp_path / "run").observe(name).pid
        assert pid is not None
        os.killpg(pid, signal.SIGKILL)

    try:
        yield World(lambda: make_provider(tmp_path), end)
    finally:
        stop_all(tmp_path)


def kubernetes_world(cluster: Cluster) -> World:
    """A Deployment without a pod yet. A pod that crashes is started again: it ends when somebody takes it away."""
    cluster.deploy(POOL, replicas=0)
    path, nobody = cluster.path("Deployment", POOL), {"spec": {"replicas": 0}}
    return World(cluster.serving_provider, lambda _: cluster.api.patch(path, nobody), has_template=True)


def hosts_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Two hosts behind a fake ssh, with a systemd of the tests' own."""
    monkeypatch.setenv("PATH", f"{make_fake_ssh(folder)}{os.pathsep}{os.environ['PATH']}")
    token_file = folder / "node.token"
    token_file.write_text(NODE_TOKEN)
    nodes = [
        place(name, f"host-{number % 2 + 1}") for number, name in enumerate(("node-1", "node-2", "node-2b", "node-3"))
    ]
    options = hosts_options(HostsSettings(**settings_of(nodes, SMALL_NODE, token_file)).model_dump())
    units = ProcessTable(folder / "units")

    def end(name: str) -> None:
        pid = units.observe(f"llm-{name}.service").pid
        assert pid is not None
        os.killpg(pid, signal.SIGKILL)

    try:
        yield World(lambda: HostsProvider(options), end)
    finally:
        for name in units.running():
            units.stop(name, 0.5)


def need_options(world: World) -> None:
    """Its logs have tests of their own: test_nodes_of_pods.py."""
    if world.has_template:
        pytest.skip("a pod's options are its template's, and its log goes with it")


def started(provider: NodeProvider, name: str = "node-1", *options: str) -> ObservedInstance:
    """The node once it answers."""
    provider.ensure_started(make_spec(name, *options))
    wait_until(lambda: _answers(provider.observe(name)))
    return provider.observe(name)


def _answers(seen: ObservedInstance) -> bool:
    if not seen.running or seen.url is None or seen.instance is None:
        return False
    try:
        return httpx.get(f"{seen.url}/health/ready", verify=NO_TLS, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_started_node_answers_where_it_is_seen_by_whoever_looks(world: World) -> None:
    seen = started(world.connect())
    assert (seen.name, seen.running) == ("node-1", True)
    assert world.connect().observe("node-1") == seen


def test_a_node_that_runs_is_not_started_again(world: World) -> None:
    provider = world.connect()
    first = started(provider)
    world.connect().ensure_started(make_spec("node-1"))
    assert provider.observe("node-1") == first


def test_a_stopped_node_does_not_run_and_has_no_identity(world: World) -> None:
    provider = world.connect()
    started(provider)
    for _ in range(2):
        provider.stop("node-1", 2.0)
        seen = provider.observe("node-1")
        assert (seen.running, seen.instance) == (False, None)


def test_a_restarted_node_has_an_identity_never_used_before(world: World) -> None:
    provider = world.connect()
    seen = set()
    for _ in range(3):
        seen.add(started(provider).instance)
        provider.stop("node-1", 2.0)
    assert len(seen) == 3
    assert None not in seen


def test_a_node_that_ended_by_itself_does_not_run(world: World) -> None:
    provider = world.connect()
    started(provider)
    world.end("node-1")
    wait_until(lambda: not provider.observe("node-1").running)
    assert provider.attach(make_spec("node-1")) is None


def test_a_name_that_was_never_started_does_not_run_and_can_be_stopped(world: World) -> None:
    provider = world.connect()
    provider.stop("node-7", 0.1)
    assert provider.observe("node-7") == ObservedInstance("node-7", False)
    assert provider.list_instances() == []


def test_attach_takes_what_runs_as_it_is_and_starts_nothing(world: World) -> None:
    assert world.connect().attach(make_spec("node-1")) is None
    assert not world.connect().observe("node-1").running
    first = started(world.connect())
    assert world.connect().attach(make_spec("node-1")) == first


def test_the_list_has_every_node_that_runs_whoever_started_it(world: World) -> None:
    one, two = started(world.connect(), "node-1"), started(world.connect(), "node-2")
    assert sorted(world.connect().list_instances(), key=lambda seen: seen.name) == [one, two]
    world.connect().stop("node-1", 2.0)
    assert list(world.connect().list_instances()) == [two]


def test_a_node_that_can_not_start_says_why_in_its_log(world: World) -> None:
    need_options(world)
    provider = world.connect()
    provider.ensure_started(make_spec("node-1", "--fail-at-start"))
    wait_until(lambda: bool(provider.read_logs("node-1", lines=5).lines))
    assert "no such model directory" in provider.read_logs("node-1", lines=5).lines[-1]
    wait_until(lambda: not provider.observe("node-1").running)


def test_logs_go_on_after_the_cursor_and_outlive_the_node(world: World) -> None:
    need_options(world)
    provider = world.connect()
    for _ in range(2):
        provider.ensure_started(make_spec("node-1", "--fail-at-start"))
        wait_until(lambda: bool(provider.read_logs("node-1", lines=9).lines) and not provider.list_instances())
    first = provider.read_logs("node-1", lines=9)
    assert provider.read_logs("node-1", lines=1).lines == first.lines[-1:]
    assert provider.read_logs("node-1", lines=9, after=first.cursor).lines == ()
    started(provider)
    provider.stop("node-1", 1.0)
    provider.ensure_started(make_spec("node-1", "--fail-at-start"))
    wait_until(lambda: bool(world.connect().read_logs("node-1", lines=9, after=first.cursor).lines))
    new = world.connect().read_logs("node-1", lines=99, after=first.cursor)
    assert first.lines + new.lines == provider.read_logs("node-1", lines=99).lines


@pytest.mark.parametrize("cursor", ["", "nonsense", "0-999999999"])
def test_a_cursor_that_is_no_longer_valid_begins_with_what_there_is(world: World, cursor: str) -> None:
    need_options(world)
    provider = world.connect()
    provider.ensure_started(make_spec("node-1", "--fail-at-start"))
    wait_until(lambda: bool(provider.read_logs("node-1", lines=9).lines))
    assert provider.read_logs("node-1", lines=9, after=cursor).lines == provider.read_logs("node-1", lines=9).lines


def test_a_node_that_never_was_has_an_empty_log(world: World) -> None:
    assert world.connect().read_logs("node-7", lines=5).lines == ()


def test_a_provider_that_can_not_look_does_not_say_that_nothing_runs() -> None:
    with pytest.raises(FleetctlError):
        HostedProvider("http://127.0.0.1:9").observe("node-1")


@pytest.mark.anyio
async def test_a_controller_replaces_a_node_and_a_later_one_takes_the_fleet_over(world: World, tmp_path: Path) -> None:
    clock, traffic = DrivenClock(), Traffic()
    config = make_config(tmp_path / "state", nodes=3)
    async with open_controller(config, world.connect(), clock) as controller:
        carrying = asyncio.create_task(controller.executor.run_forever())
        try:
            fleet = controller.fleet
            await drive(controller, clock, traffic, lambda: sum(one.is_serving for one in fleet.nodes.values()) == 3)
            inputs = {"node": "node-2", "replacement": "node-2b"}
            run = await controller.executor.propose(
                "replace-node", inputs, reason="test", requested_by="ann", approve=True
            )
            await drive(controller, clock, traffic, lambda: controller.journal.get(run.id).status.is_terminal)
            done = controller.journal.get(run.id)
            assert done.status is RunStatus.SUCCEEDED, done.error
        finally:
            controller.executor.stop()
            clock.move(1.0)
            await carrying
        identities = {name: fleet.nodes[name].instance for name in ("node-1", "node-2b", "node-3")}
    assert None not in identities.values()
    assert {one.name: one.instance for one in world.connect().list_instances()} == identities

    async with open_controller(config, world.connect()) as later:
        await fleet_ready(later)
        wanted = {name: state for name, state in later.fleet.nodes.items() if state.row.wanted}
        assert {name: state.instance for name, state in wanted.items()} == identities
        assert all(state.phase is NodePhase.READY for state in wanted.values())
        table = {route.node: route.state for route in later.routing.table.routes}
        assert table == dict.fromkeys(identities, RouteState.ACTIVE)
