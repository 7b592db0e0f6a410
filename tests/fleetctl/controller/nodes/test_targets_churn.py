"""Hours of nodes that come and go, in simulated time: what is gone leaves nothing behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from fleetctl.bench.targets_bench import Listing
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.nodes.node_row import list_nodes
from tests.fixtures.controller import NoProvider, make_config
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio

NUM_TARGETS = 24  # one batch of probes
TURN_S = 30.0
TURNS_AN_HOUR = 120


@pytest.fixture
def listing(tmp_path: Path) -> Iterator[Listing]:
    """Targets at addresses of their own, with the metrics of vLLM."""
    command = [sys.executable, "-m", "fleetctl.bench.serve", "--seconds", "600", "--addresses", str(NUM_TARGETS * 2)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Listing(tmp_path / "targets.json", NUM_TARGETS, int(process.stdout.readline()))
        process.kill()


async def an_hour(controller: Controller, clock: DrivenClock, listing: Listing) -> None:
    """Every target is replaced by another one."""
    for number in range(TURNS_AN_HOUR):
        listing.replace(NUM_TARGETS * (number + 1) // TURNS_AN_HOUR - NUM_TARGETS * number // TURNS_AN_HOUR)
        clock.move(TURN_S)
        for loop in ("discovery", "fleet", "scrape"):
            await controller.loops.run_turn(loop)
            await asyncio.sleep(0)


async def test_nodes_that_came_and_went_for_hours_leave_nothing_behind(tmp_path: Path, listing: Listing) -> None:
    targets = [{"file_sd_configs": [{"files": [str(tmp_path / "targets.json")], "refresh_interval": "1s"}]}]
    clock = DrivenClock()
    async with open_controller(
        make_config(tmp_path / "state", start_nodes=False, targets=targets), NoProvider(), clock
    ) as controller:
        await an_hour(controller, clock, listing)
        await an_hour(controller, clock, listing)
        series, text = controller.store.num_series, len(generate_latest(controller.metrics.registry))
        await an_hour(controller, clock, listing)
        serving = {name for name, state in controller.fleet.nodes.items() if state.is_serving}
        assert len(serving & set(listing.names)) >= NUM_TARGETS - 1, "one may have come with the last turn"
        rows = {row.name for row in await controller.database.read(list_nodes)}
        assert set(listing.names) - rows <= {listing.newest}
        assert len(rows) <= NUM_TARGETS * 1.5, "what has been gone for ten minutes is forgotten"
        assert controller.fleet.nodes.keys() == rows
        assert controller.store.num_series <= series * 1.05
        told = generate_latest(controller.metrics.registry)
        assert len(told) <= text * 1.05
        assert not [name for name in range(NUM_TARGETS) if f'"pod-{name}"'.encode() in told], "nobody of the first hour"
