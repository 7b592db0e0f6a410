"""Nodes in the database, as earlier versions stored them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleetctl.controller.controller import open_controller
from fleetctl.controller.nodes.node_row import get_node
from fleetctl.controller.nodes.revision import with_revision
from fleetctl.controller.tables import nodes
from fleetctl.providers.process import ProcessTable
from tests.fixtures.controller import fleet_ready, make_config, make_provider, make_spec, running_fleet, stop_all

pytestmark = pytest.mark.anyio

OLD_SPEC = {
    "name": "node-1",
    "model_dir": "/models/llama",
    "pool": "default",
    "model": "demo",
    "engine": "fleetctl",
    "zone": "local",
    "revision": "r1",
    "extra_args": ["--max-num-seqs", "16", "--enable-faults"],
}


async def test_a_database_of_before_opens_and_its_nodes_are_the_same(tmp_path: Path) -> None:
    config = make_config(tmp_path, nodes=1)
    try:
        async with running_fleet(config) as first:
            instance = first.fleet.nodes["node-1"].instance
            await first.database.write(lambda c: c.execute(sa.update(nodes).values(spec=OLD_SPEC)))
        async with open_controller(config, make_provider(tmp_path)) as second:
            await fleet_ready(second)
            row = second.fleet.nodes["node-1"].row
            assert dict(row.spec.options) == {"model": "/models/llama", "max_num_seqs": "16", "enable_faults": True}
            assert second.fleet.nodes["node-1"].instance == instance
    finally:
        stop_all(tmp_path)


async def test_a_restart_that_an_earlier_version_began_goes_on(tmp_path: Path) -> None:
    config = make_config(tmp_path, nodes=1, capacity_floor_ratio=0.5)
    try:
        async with running_fleet(config) as first:
            pid = ProcessTable(tmp_path / "run").observe("node-1").pid
            _forget_identity(tmp_path / "run" / "node-1" / "spec.json")
            mark = {"state": "begun", "pid": pid, "epoch": first.database.epoch, "at": first.clock.now()}
            await first.database.write(lambda c: c.execute(sa.update(nodes).values(restart=mark)))
        async with open_controller(config, make_provider(tmp_path)) as second:
            await second.loops.run_turn("fleet")
            old = second.fleet.nodes["node-1"].instance
            receipt = await second.effects.restart_node("node-1", wait_s=60)
            assert receipt["replaced_instance"] == old
            assert second.fleet.nodes["node-1"].instance not in (None, old)
    finally:
        stop_all(tmp_path)


async def test_what_is_stored_of_a_node_names_no_process_and_no_file(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path, nodes=1)) as controller:
            await controller.effects.restart_node("node-1", wait_s=60)
            pid = ProcessTable(tmp_path / "run").observe("node-1").pid
            row = await controller.database.read(lambda c: get_node(c, "node-1"))
            assert row is not None
            assert "pid" not in str(row)
            assert str(pid) not in str(row.restart)
            assert str(tmp_path) not in str(row)
            assert row.spec == with_revision(make_spec("node-1"))
    finally:
        stop_all(tmp_path)


def _forget_identity(record: Path) -> None:
    """The record of a process as versions before wrote it."""
    spec = json.loads(record.read_text())
    del spec["instance"]
    record.write_text(json.dumps(spec))
