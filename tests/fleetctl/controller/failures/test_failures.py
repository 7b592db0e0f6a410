"""The record of failures of a real controller: kept over its restart, counted by where nodes are."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from alerts.promql import evaluate
from fleetctl.cli.app import run
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.database import StorageLostError
from fleetctl.controller.failures.failure_store import prune_failures
from fleetctl.controller.failures.failure_watch import FailureRecord, Placement, Stint
from fleetctl.controller.failures.failures import failure_groups, offence_words, surely_at_least
from fleetctl.controller.tables import node_failures, node_stints
from fleetctl.wire.failure import Failure, FailureGroup, FailureKind, FailuresBy
from tests.fixtures.controller import (
    fleet_ready,
    kill,
    make_config,
    make_provider,
    running_fleet,
    stop_all,
    tell_node,
    until,
)
from tests.fixtures.recorded_controller import RecordedController, recorded_controller

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    stop_all(tmp_path / "state")


async def looked(controller: Controller) -> list[Failure]:
    await controller.loops.run_turn("fleet")
    await controller.loops.run_turn("failures")
    return await controller.failures.failures(0.0)


async def test_a_crash_is_recorded_once_with_its_place_and_survives_the_controller(state_dir: Path) -> None:
    config = make_config(state_dir, nodes=2)
    async with running_fleet(config) as controller:
        assert await looked(controller) == []
        kill(state_dir, "node-1")

        async def crash() -> Failure | None:
            return next((one for one in await looked(controller) if one.kind is FailureKind.CRASH), None)

        failure = await until(crash, "the crash is recorded")
        before = await controller.failures.failures(0.0)
        assert {one.episode for one in before} == {failure.episode}, "a look between may find it silent first"
        assert (failure.node, failure.kind, failure.ended_at) == ("node-1", FailureKind.CRASH, None)
        assert (failure.host, failure.pool, failure.model) == (socket.gethostname(), "default", "demo")
        assert failure.reason.startswith("its process ended"), "how is written a moment later"
        assert b'controller_node_failures_total{kind="crash"} 1.0' in controller.exposition()
    async with open_controller(make_config(state_dir, start_nodes=False), make_provider(state_dir)) as controller:
        assert [one.id for one in await looked(controller)] == [one.id for one in before]
        groups = {one.name: one for one in await controller.failures.groups(FailuresBy.NODE, 0.0)}
        assert groups["node-1"].kinds[FailureKind.CRASH] == 1
        assert groups["node-1"].failures == 1
        assert groups["node-2"].failures == 0
        assert {one.standing for one in groups.values()} == {"not known"}
        assert await controller.failures.offence("node-1", 0.0) == ""


async def test_a_node_that_answers_wrong_is_a_failure_of_its_kind(state_dir: Path) -> None:
    async with running_fleet(make_config(state_dir, nodes=1)) as controller:
        await tell_node(controller, "node-1", health="wrong_output")
        (failure,) = await until(lambda: looked(controller), "the wrong output is recorded")
        assert failure.kind is FailureKind.WRONG_OUTPUT


async def test_what_could_not_be_stored_is_stored_later(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_fleet(make_config(state_dir, nodes=1)) as controller:
        await looked(controller)
        kill(state_dir, "node-1")
        write = controller.database.write

        async def full(work: object) -> object:
            raise StorageLostError("no space left on the disk", remedy="")

        async def seen() -> bool:
            await controller.loops.run_turn("fleet")
            return controller.fleet.nodes["node-1"].process_up is False

        await until(seen, "the crash is seen")
        monkeypatch.setattr(controller.database, "write", full)
        await controller.loops.run_turn("failures")
        monkeypatch.setattr(controller.database, "write", write)
        assert FailureKind.CRASH in [one.kind for one in await looked(controller)]


def record(number: int, *, host: str, at: float = 0.0, episode: int | None = None) -> FailureRecord:
    place = Placement(f"{host}-n", host, "h100", "a", "chat", "m", "r1")
    return FailureRecord(f"f{number}", f"f{episode or number}", FailureKind.XID, at, place)


def stint(host: str, hours: float) -> Stint:
    return Stint(host, Placement(f"{host}-n", host, "h100", "a", "chat", "m", "r1"), 0.0, hours * 3600)


def test_groups_count_episodes_over_watched_hours_and_name_the_lemon_first() -> None:
    records = [record(i, host="bad") for i in range(1, 21)] + [record(30, host="good-1")]
    records += [record(31, host="bad", episode=1)]
    found = failure_groups(FailuresBy.HOST, records, [stint(f"good-{i}", 700) for i in range(9)] + [stint("bad", 700)])
    worst = found[0]
    assert (worst.name, worst.standing, worst.failures, worst.kinds) == ("bad", "lemon", 20, {FailureKind.XID: 21})
    assert worst.per_1000_node_hours == pytest.approx(20 / 0.7)
    assert "host bad failed 20 times in 700 node-hours (xid 21): " in offence_words(worst)
    assert {one.standing for one in found[1:]} <= {"ordinary", "not known"}
    (workload,) = failure_groups(FailuresBy.WORKLOAD, records, [stint("bad", 700)])
    assert (workload.name, workload.standing) == ("m/chat/r1", "not known")


def test_what_nobody_named_is_a_row_of_its_own_and_compared_with_nobody() -> None:
    nameless = Placement("n1")
    records = [FailureRecord(f"f{i}", f"f{i}", FailureKind.CRASH, 0.0, nameless) for i in range(50)]
    stints = [Stint("s", nameless, 0.0, 7e6), stint("a", 500), stint("b", 500)]
    found = {one.name: one for one in failure_groups(FailuresBy.HOST, records, stints)}
    assert (found[""].standing, found[""].why) == ("not known", "nobody says which host it is")
    assert found["a"].why == "nothing failed"


async def test_old_failures_go_and_those_that_stand_stay(state_dir: Path) -> None:
    async with running_fleet(make_config(state_dir, nodes=1)) as controller:
        place = {"node": "n", "host": "", "sku": "", "zone": "", "pool": "", "model": "", "revision": ""}
        told = {"episode": "e", "kind": "crash", "at": 0.0, "reason": "", "instance": "", **place}
        rows = [{"id": "old", "ended_at": 5.0, **told}, {"id": "stands", "ended_at": None, **told}]
        stints = [{"id": "s1", "since": 0.0, "until": 5.0, **place}, {"id": "s2", "since": 0.0, "until": 50.0, **place}]
        await controller.database.write(lambda c: c.execute(sa.insert(node_failures), rows))
        await controller.database.write(lambda c: c.execute(sa.insert(node_stints), stints))
        assert await controller.database.write(lambda c: prune_failures(c, 10.0, 100)) == 2
        assert [one.id for one in await controller.failures.failures(0.0)] == ["stands"]
        await fleet_ready(controller)


LEMON = FailureGroup(
    by=FailuresBy.HOST,
    name="rack7-host-12",
    nodes=8,
    node_hours=5760.0,
    failures=23,
    kinds={FailureKind.XID: 19, FailureKind.THERMAL: 4},
    per_1000_node_hours=3.99,
    ratio=4.2,
    ratio_low=2.9,
    ratio_high=5.7,
    standing="lemon",
)
NEW = FailureGroup(by=FailuresBy.HOST, name="", nodes=1, node_hours=3.0, why="nobody says which host it is")


@pytest.fixture
def recorded() -> Iterator[RecordedController]:
    one = Failure(
        id="failure-1",
        episode="failure-1",
        kind=FailureKind.NEVER_READY,
        at=1e9,
        ended_at=1e9 + 90,
        node="node-2",
        reason="its process ended: exit code 1",
    )
    with recorded_controller({"/v1/failures": [one], "/v1/failures/groups": [LEMON, NEW]}) as made:
        yield made


def test_the_command_lists_failures_and_counts_them(
    recorded: RecordedController, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str, code: int = 0) -> str:
        assert run(["--controller", recorded.url, "get", *words]) == code
        out = capsys.readouterr()
        return out.err if code else out.out

    assert "node-2  never_ready     90s  -     its process ended" in told("failures", "--since", "7d")
    lines = told("failures", "--by", "host").splitlines()
    assert lines[1].split() == [
        "rack7-host-12",
        "8",
        "5760",
        "23",
        "4.2x",
        "2.9-5.7",
        "lemon",
        "xid",
        "19,",
        "thermal",
        "4",
    ]
    assert lines[2].split() == ["-", "1", "3", "0", "-", "not", "known", "none"]
    assert max(map(len, lines)) <= 80
    assert told("failures", "--by", "host", "-l", "standing=lemon", "-o", "name") == "rack7-host-12\n"
    assert json.loads(told("failures", "--by", "host", "-o", "json"))[0]["ratio_low"] == 2.9
    assert "--by is about failures" in told("nodes", "--by", "host", code=2)


async def test_an_incident_is_told_when_its_nodes_host_is_a_lemon(state_dir: Path) -> None:
    async with running_fleet(make_config(state_dir, nodes=1)) as controller:
        now = controller.clock.now()
        here = socket.gethostname()
        place = {"node": "n", "sku": "", "zone": "", "pool": "", "model": "", "revision": ""}
        told = {**place, "ended_at": now, "at": now - 60, "kind": "xid", "reason": "", "instance": ""}
        failed = [{**told, "id": f"f{i}", "episode": f"f{i}", "host": here} for i in range(30)]
        hosts = [here, *(f"other-{i}" for i in range(9))]
        watched = [{**place, "id": host, "host": host, "since": now - 7e5, "until": now} for host in hosts]
        await controller.database.write(lambda c: c.execute(sa.insert(node_failures), failed))
        await controller.database.write(lambda c: c.execute(sa.insert(node_stints), watched))
        words = await controller.failures.offence("node-1", 0.0)
        assert f"host {here} failed 30 times in 194 node-hours (xid 30): " in words
        assert await controller.failures.offence("nobody", 0.0) == ""
        assert not list(controller.failures.ratio_series()), "nobody counted yet"
        await controller.failures.count()
        (ratio,) = controller.failures.ratio_series()  # of its SKU nobody knows anything: no sample
        assert (ratio.name, ratio.more) == ("fleet_failure_low_ratio", (("by", "host"),))
        assert ratio.value > 1
        await controller.loops.run_turn("fleet-series")
        (asked,) = evaluate("fleet_failure_low_ratio", controller.store, controller.clock.now())
        assert (asked.labels["node"], asked.value) == ("node-1", ratio.value)


def test_what_is_told_of_a_group_is_what_is_sure() -> None:
    group = failure_groups(
        FailuresBy.HOST, [record(i, host="a") for i in range(3)], [stint("a", 100), stint("b", 100)]
    )[0]
    lemon = group.model_copy(update={"standing": "lemon", "ratio_low": 2.5})
    assert surely_at_least(lemon) == 2.5
    assert surely_at_least(lemon.model_copy(update={"standing": "ordinary", "ratio_low": 0.7})) == 0.7
    assert surely_at_least(lemon.model_copy(update={"standing": "not known"})) is None
