"""Nodes that others run, as the fleet has them: found, known, routed, gone, back, and never touched."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnostics.diagnosis import Diagnosis
from diagnostics.incident import FiredAlert, open_incident
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.nodes.node_row import Role, RouteIntent, want_node
from fleetctl.kit.reserved_port import reserve_port
from fleetctl.wire.node import NodePhase
from fleetctl.wire.routing import RouteState
from runbooks.run import RunStatus
from tests.fixtures.controller import NoProvider, make_config, make_spec, until
from tests.fixtures.llama_server import LlamaServer, llama_server, make_gguf

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def servers(gguf: Path) -> Iterator[list[LlamaServer]]:
    with llama_server(gguf, reserve_port()) as one, llama_server(gguf, reserve_port()) as other:
        yield [one, other]


def write(path: Path, *servers: LlamaServer, **labels: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps([{"targets": [one.address for one in servers], "labels": labels}]))
    part.replace(path)


RULES = [{"source_labels": ["__address__"], "regex": r".*:(\d+)", "target_label": "node", "replacement": "n-$1"}]


@asynccontextmanager
async def attached(tmp_path: Path, **settings: Any) -> AsyncIterator[Controller]:
    source = {"files": [str(tmp_path / "targets.json")], "refresh_interval": 0.1}
    targets = [{"name": "t", "file_sd_configs": [source], "relabel_configs": RULES}]
    config = make_config(tmp_path / "state", start_nodes=False, targets=targets, **settings)
    async with open_controller(config, NoProvider()) as controller:
        yield controller


async def turn(controller: Controller) -> None:
    await controller.loops.run_turn("discovery")
    await controller.loops.run_turn("fleet")


async def until_ready(controller: Controller, *names: str) -> None:
    async def look() -> bool:
        await turn(controller)
        states = controller.fleet.nodes
        return all(name in states and states[name].is_serving for name in names)

    await until(look, f"{names} serve")


def name_of(server: LlamaServer) -> str:
    return f"n-{server.address.rpartition(':')[2]}"


def routes(controller: Controller) -> dict[str, RouteState]:
    return {route.node: route.state for route in controller.routing.table.routes}


async def test_a_found_node_is_known_routed_and_leaves_when_nobody_lists_it(
    tmp_path: Path, servers: list[LlamaServer]
) -> None:
    names = [name_of(one) for one in servers]
    write(tmp_path / "targets.json", *servers, pool="chat", zone="eu", host="h1")
    async with attached(tmp_path) as controller:
        await until_ready(controller, *names)
        state = controller.fleet.nodes[names[0]]
        spec = state.row.spec
        assert (spec.engine, spec.model, spec.pool, spec.zone, spec.facts["host"]) == (
            "llamacpp",
            "demo",
            "chat",
            "eu",
            "h1",
        )
        assert state.process_up is None, "nobody here sees its process"
        (route,) = [one for one in controller.routing.table.routes if one.node == names[0]]
        assert (route.url, route.engine, route.model) == (servers[0].url, "llamacpp", "demo")

        write(tmp_path / "targets.json", servers[1], pool="chat", zone="eu", host="h1")

        async def is_gone() -> bool:
            await turn(controller)
            return names[0] not in routes(controller)

        await until(is_gone, "it left the table")
        await turn(controller)
        assert controller.fleet.nodes[names[0]].phase is NodePhase.STOPPED
        (pool,) = await controller.pools.views()
        assert (pool.wanted, pool.nodes) == (1, 1), "a pool of found nodes has the size that is found"
        kinds = [entry.kind for entry in await controller.timeline.read_newest() if entry.node == names[0]]
        assert {"node.found", "node.gone"} <= set(kinds)


async def test_a_cordoned_node_that_comes_back_is_still_cordoned(tmp_path: Path, servers: list[LlamaServer]) -> None:
    name = name_of(servers[0])
    write(tmp_path / "targets.json", *servers)
    async with attached(tmp_path) as controller:
        await until_ready(controller, name, name_of(servers[1]))
        await controller.effects.cordon(name)
        write(tmp_path / "targets.json", servers[1])

        async def is_gone() -> bool:
            await turn(controller)
            return name not in routes(controller)

        await until(is_gone, "it left the table")
        write(tmp_path / "targets.json", *servers)

        async def is_back() -> bool:
            await turn(controller)
            return name in routes(controller)

        await until(is_back, "it is in the table again")
        assert routes(controller)[name] is RouteState.CORDONED


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("node stop {name} --force", "no provider can stop it"),
        ("restart {name}", "no provider can restart it"),
        ("node start n-new --like {name}", "no provider can start another one"),
        ("scale default --to 3", "no provider can start another one"),
        ("sleep {name}", "can't sleep when it is asked to"),
        ("limits {name} --max-num-seqs 4", "reads its limits at the start"),
        ("reset-prefix-cache {name}", "has no call for all slots"),
    ],
)
async def test_what_can_not_be_done_is_refused_with_the_reason(
    tmp_path: Path, servers: list[LlamaServer], command: str, words: str
) -> None:
    write(tmp_path / "targets.json", *servers)
    async with attached(tmp_path, capacity_floor_ratio=0.1) as controller:
        name = name_of(servers[0])
        await until_ready(controller, name, name_of(servers[1]))
        run = await controller.executor.act(command.format(name=name), reason="a test", requested_by="person")
        assert run.status is RunStatus.REFUSED
        assert words in run.error


async def test_a_remedy_that_nobody_can_carry_out_is_not_proposed_and_what_to_do_by_hand_is_said(
    tmp_path: Path, servers: list[LlamaServer]
) -> None:
    write(tmp_path / "targets.json", *servers)
    async with attached(tmp_path, capacity_floor_ratio=0.1) as controller:
        name = name_of(servers[0])
        await until_ready(controller, name, name_of(servers[1]))
        wrong = FiredAlert("w", "LLMWrongOutput", "page", "firing", {"node": name, "pool": "default"})
        verdict = Diagnosis("output", "wrong_output", "it lies", "confirmed", at=controller.clock.now())
        incident = replace(open_incident(wrong, controller.clock.now()), diagnosis=verdict)
        await controller.book.store_incident(incident)
        await controller.remediation.propose_runbooks()
        assert not controller.journal.list(incident_id=incident.id)
        entries = await controller.timeline.read(incident_id=incident.id)
        (said,) = [one for one in entries if one.kind.startswith("remediation")]
        assert said.text.startswith("replace-lying-node: ")
        assert "no provider can start another one (it was found by" in said.text
        assert f"By hand: `fleetctl drain {name}`" in said.text


async def test_a_list_that_can_not_be_read_after_a_restart_of_ours_keeps_its_nodes(
    tmp_path: Path, servers: list[LlamaServer]
) -> None:
    names = [name_of(one) for one in servers]
    write(tmp_path / "targets.json", *servers)
    async with attached(tmp_path) as controller:
        await until_ready(controller, *names)
    (tmp_path / "targets.json").write_text("[{")
    async with attached(tmp_path) as controller:
        await until_ready(controller, *names)
        assert controller.fleet.nodes[names[0]].row.spec.engine == "llamacpp", "what it was is not forgotten"
        state = controller.found_fleet.state()
        assert state is not None
        assert "not JSON" in "".join(state.problems.values())
        assert controller.metrics.exposition().count(b"controller_discovery_problems 1.0") == 1


async def test_a_target_with_the_name_of_a_node_of_ours_is_told(tmp_path: Path, servers: list[LlamaServer]) -> None:
    write(tmp_path / "targets.json", *servers)
    ours, listed = name_of(servers[0]), name_of(servers[1])
    async with attached(tmp_path) as controller:
        spec = make_spec(ours)
        await controller.database.write(lambda c: want_node(c, spec, Role.REPLACEMENT, 0.0))
        await until_ready(controller, listed)
        state = controller.found_fleet.state()
        assert state is not None
        assert state.problems == {
            servers[
                0
            ].url: f"{servers[0].url} (file {tmp_path}/targets.json) is named {ours}, as a node of provider local:"
            " only that one is there; set the label `node` by relabel_configs"
        }
        assert ours not in routes(controller)


async def test_nodes_of_settings_that_are_gone_leave(tmp_path: Path, servers: list[LlamaServer]) -> None:
    write(tmp_path / "targets.json", *servers)
    async with attached(tmp_path) as controller:
        await until_ready(controller, name_of(servers[0]))
    config = make_config(tmp_path / "state", start_nodes=False)
    async with open_controller(config, NoProvider()) as controller:
        await turn(controller)
        assert not routes(controller)
        assert all(state.row.route is RouteIntent.NONE for state in controller.fleet.nodes.values())
