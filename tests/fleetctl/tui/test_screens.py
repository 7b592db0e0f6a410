"""Every screen as a person sees it, at three sizes, held against texts that lie beside the fixtures.

`FLEETCTL_WRITE_SCREENS=1 pytest tests/fleetctl/tui/test_screens.py` writes them anew: read the difference.
"""

from __future__ import annotations

import os

import pytest

from fleetctl.tui.live_table import LiveTable
from fleetctl.tui.messages import SnapshotTaken
from fleetctl.tui.place import JUMPS, Place
from fleetctl.tui.reader import SnapshotReader
from fleetctl.tui.snapshot import Part, Wanted
from tests.fixtures import ROOT
from tests.fixtures.cockpit import NOW
from tests.fixtures.cockpit_fleet import full_controller
from tests.fixtures.cockpit_screen import cockpit, screen, wait_for, wait_for_text

pytestmark = pytest.mark.anyio

SCREENS = ROOT / "tests" / "fixtures" / "cockpit_screens"
SEEN = {
    Place.NOW: "waits for you",
    Place.FLEET: "batch-1",
    Place.ALERTS: "LLMQueueDepth",
    Place.INCIDENT: "PROPOSED",
    Place.RUNBOOK: "Run run-1",
    Place.NODE: "chat-1  ● ready",
    Place.TRAFFIC: "Rollout of pool chat",
    Place.EVENTS: "LLMNodeSlow fires",
    Place.AUDIT: "run.requested",
    Place.ROLLOUT: "Gate:",
    Place.AUTOSCALER: "Pool chat:",
}


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_each_screen_is_as_it_was(size: tuple[int, int]) -> None:
    controller = full_controller()
    reader = SnapshotReader(controller, lambda: NOW)
    reader.heard(controller.events_now)
    snapshot = await reader.read(Wanted(frozenset(Part), node="chat-1", alert="f"))
    async with cockpit(controller, size=size, polling=False) as (app, pilot):
        app.post_message(SnapshotTaken(snapshot))
        await wait_for_text(pilot, SEEN[Place.NOW])
        for key, place in JUMPS.items():
            if place is Place.NODE:
                await pilot.press("g", "f")
                app.query_one("#nodes", LiveTable).select("chat-1")
            await pilot.press("g", key)
            await wait_for_text(pilot, SEEN[place])
            before = ""
            while before != (shown := f"{screen(app).rstrip()}\n"):  # until nothing is left to be drawn
                before = shown
                await pilot.pause()
            path = SCREENS / f"{place.value}-{size[0]}x{size[1]}.txt"
            if os.environ.get("FLEETCTL_WRITE_SCREENS"):
                path.parent.mkdir(exist_ok=True)
                path.write_text(shown, encoding="utf-8")
            assert shown == path.read_text(encoding="utf-8"), f"{path.name}; FLEETCTL_WRITE_SCREENS=1 writes it anew"
            await wait_for(pilot, lambda place=place: app.trail.here.place is place)  # type: ignore[misc]
