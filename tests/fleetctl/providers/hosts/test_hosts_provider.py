"""Hosts that give no answer, names that are no place, and a controller whose nodes are units."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetctl.cli.app import run as fleetctl
from fleetctl.controller.controller import open_controller
from fleetctl.kit.errors import RefusedError, UnreachableError
from fleetctl.providers.found import FoundNodes
from fleetctl.providers.hosts.options import hosts_options
from fleetctl.providers.hosts.provider import HOSTS, HostsProvider
from fleetctl.providers.hosts.run import Done, run
from fleetctl.providers.process import ProcessTable
from fleetctl.providers.provider import Capacity, capacity_of
from fleetctl.settings.hosts import HostsSettings
from fleetctl.wire.node import NodePhase
from tests.fixtures.controller import NODE_TOKEN, SMALL_NODE, make_config, make_provider, make_spec, until
from tests.fixtures.fake_hosts import make_fake_ssh, place, settings_of
from tests.fixtures.fleet import wait_until

UP = "ActiveState=active\nSubState=running\nInvocationID=i1\n"
DOWN = "ActiveState=inactive\nSubState=dead\nResult=success\nExecMainCode=1\nExecMainStatus=0\n"


class Hosts:
    """Answers of hosts by name, in the place of commands; one without an answer is away."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def run(self, words: Any, timeout_s: float) -> Done:
        self.asked.append(list(words))
        host = words[words.index("--") + 1]
        if host not in self.answers:
            raise UnreachableError("ssh: no answer within 15 s")
        return Done(0, self.answers[host], "")


def provider_of(hosts: Hosts, **more: Any) -> HostsProvider:
    nodes = [place("node-1", "one"), place("node-2", "two")]
    return HostsProvider(hosts_options(HostsSettings(nodes=nodes, **more).model_dump()), hosts.run)


def test_a_host_that_gives_no_answer_is_not_known_and_another_one_is_looked_at_all_the_same() -> None:
    provider = provider_of(Hosts(one=UP))
    assert provider.observe("node-1").running
    with pytest.raises(UnreachableError, match="two could not be looked at: ssh: no answer"):
        provider.observe("node-2")
    assert [seen.name for seen in provider.list_instances()] == ["node-1"]
    running, unknown = provider.specs()
    assert ([spec.name for spec in running], unknown) == (["node-1"], {"node-2"})
    with pytest.raises(UnreachableError):
        provider.stop("node-2", 1.0)


def test_when_no_host_gives_an_answer_there_is_no_empty_list() -> None:
    with pytest.raises(UnreachableError):
        provider_of(Hosts()).list_instances()


def test_who_asks_twice_gets_the_last_look_and_costs_no_command() -> None:
    hosts = Hosts(one=UP)
    provider = provider_of(hosts, look_every_s=300.0)
    for _ in range(5):
        provider.observe("node-1")
    assert len(hosts.asked) == 1


def test_a_command_that_fails_is_no_word_of_what_runs() -> None:
    provider = HostsProvider(
        hosts_options(HostsSettings(nodes=[place("node-1", "one")]).model_dump()),
        lambda words, timeout_s: Done(255, "", "ssh: Permission denied (publickey)\n"),
    )
    with pytest.raises(UnreachableError, match="Permission denied"):
        provider.observe("node-1")


def test_only_places_of_the_settings_are_started_and_only_for_what_they_serve() -> None:
    provider = provider_of(Hosts(one=UP, two=DOWN))
    provider.observe("node-2")
    with pytest.raises(
        RefusedError, match=r"node-9 is no node of providers.hosts.nodes.*spare ones of pool default: node-2"
    ):
        provider.ensure_started(make_spec("node-9"))
    with pytest.raises(RefusedError, match=r"node-2 serves demo in pool default.*not demo in pool code"):
        provider.ensure_started(replace(make_spec("node-2"), pool="code"))


def test_a_node_that_ignores_its_end_is_ended_by_force() -> None:
    hosts = Hosts(one=UP)
    provider = provider_of(hosts, look_every_s=0.1)

    def end_at_kill(words: Any, timeout_s: float) -> Done:
        if "kill" in words[-1].split():
            hosts.answers["one"] = DOWN
        return hosts.run(words, timeout_s)

    provider._run = end_at_kill
    provider.stop("node-1", 0.2)
    verbs = [words[-1].split()[1] for words in hosts.asked]
    assert verbs.index("stop") < verbs.index("kill")
    assert not provider.observe("node-1").running


def test_a_command_that_never_ends_is_given_up_with_all_that_it_started(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    with pytest.raises(UnreachableError, match="no answer within"):
        run(["/bin/sh", "-c", f"sleep 600 & echo $! > {started}; wait"], 5.0)
    pid = int(started.read_text())
    wait_until(lambda: not _lives(pid))
    with pytest.raises(UnreachableError, match="no-such-program: No such file"):
        run(["no-such-program"], 1.0)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:  # it was taken away between two looks, or in the middle of one
        return False


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Hosts behind a fake ssh on PATH."""
    folder = tmp_path / "hosts"
    monkeypatch.setenv("PATH", f"{make_fake_ssh(folder)}{os.pathsep}{os.environ['PATH']}")
    (folder / "node.token").write_text(NODE_TOKEN)
    yield folder
    units = ProcessTable(folder / "units")
    for name in units.running():
        units.stop(name, 0.5)


@pytest.mark.anyio
async def test_units_that_run_are_nodes_and_one_that_dies_stays_one(folder: Path, tmp_path: Path) -> None:
    nodes = [place("node-1", "host-1"), place("node-2", "host-2"), place("spare", "host-2")]
    told = settings_of(nodes, SMALL_NODE, folder / "node.token")
    outside = HostsProvider(hosts_options(HostsSettings(**told).model_dump()))
    for name in ("node-1", "node-2"):
        outside.ensure_started(make_spec(name))
    config = make_config(tmp_path / "state", nodes=0, providers={"hosts": told}, start_nodes=False)
    config = replace(config, node_specs=())
    async with open_controller(config, make_provider(tmp_path / "state")) as controller:

        async def phases() -> dict[str, NodePhase]:
            await controller.loops.run_turn("hosts")
            await controller.loops.run_turn("fleet")
            return {name: state.phase for name, state in controller.fleet.nodes.items() if state.row.wanted}

        async def both_ready() -> bool:
            return await phases() == dict.fromkeys(("node-1", "node-2"), NodePhase.READY)

        await until(both_ready, "both units are nodes", timeout_s=120.0)
        state = controller.fleet.nodes["node-1"]
        assert (state.row.spec.provider, state.row.spec.facts["host"]) == (HOSTS, "host-1")
        pid = ProcessTable(folder / "units").observe("llm-node-1.service").pid
        assert pid is not None
        os.killpg(pid, 9)

        async def died() -> bool:
            phase = (await phases()).get("node-1")
            return phase is NodePhase.UNREACHABLE and "SIGKILL" in controller.fleet.nodes["node-1"].reason

        await until(died, "its end is seen", timeout_s=120.0)

        (folder / "down").write_text("host-2\n")
        assert "node-2" in await phases(), "nobody could look: it is not gone"


def test_the_command_looks_and_its_dry_run_prints_the_words_and_runs_none(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [place("node-1", "host-1"), place("node-2", "host-2")]
    file = tmp_path / "fleetctl.yaml"
    file.write_text(yaml.safe_dump({"providers": {"hosts": {"nodes": nodes}}}))
    words = ["--config", str(file), "--state-dir", str(tmp_path / "state"), "hosts"]
    assert fleetctl([*words, "node-1", "--dry-run"]) == 0
    told = capsys.readouterr().out
    stop = "ssh -o BatchMode=yes -o ConnectTimeout=5 -- host-1 'systemctl stop --no-block -- llm-node-1.service'"
    assert stop in told
    assert not (folder / "asked").exists(), "nothing was run"
    (folder / "down").write_text("host-2\n")
    assert fleetctl([*words, "-o", "json"]) == 4
    one, two = json.loads(capsys.readouterr().out)
    assert (one["name"], one["runs"]) == ("node-1", "no")
    assert two["runs"] == "unknown"
    assert "timed out" in two["why"]
    assert fleetctl([*words, "node-7"]) == 2


def test_what_can_be_added_are_the_spare_places_of_the_pool_and_not_known_while_a_host_is_silent() -> None:
    hosts = Hosts(one=UP, two=DOWN)
    provider = provider_of(hosts, look_every_s=300.0)
    spec = make_spec("node-1")
    assert capacity_of(provider, spec).more is None, "nobody has looked yet, and nobody waits for it"
    assert not hosts.asked
    provider.list_instances()
    room = capacity_of(provider, spec)
    assert (room.more, room.names) == (1, ("node-2",))
    assert room.why == "spare places of pool default, model demo in providers.hosts.nodes: node-2"
    none = capacity_of(provider, replace(spec, pool="other"))
    assert (none.more, none.names) == (0, ())
    half = provider_of(Hosts(one=UP), look_every_s=300.0)
    with contextlib.suppress(UnreachableError):
        half.specs()
    assert capacity_of(half, spec).more is None
    assert "two can't be looked at" in capacity_of(half, spec).why


def test_a_provider_that_can_not_tell_is_not_known_and_where_nobody_starts_nodes_there_is_no_room(
    tmp_path: Path,
) -> None:
    assert capacity_of(make_provider(tmp_path), make_spec("a")) == Capacity()
    assert capacity_of(FoundNodes(), replace(make_spec("a"), provider="found")).more == 0
