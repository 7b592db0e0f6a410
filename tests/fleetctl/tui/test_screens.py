"""Every screen as a person sees it, at three sizes, held against pictures that lie beside the fixtures.

`make cockpit-screens` writes them anew: look at the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetctl.tui.live_table import LiveTable
from fleetctl.tui.messages import SnapshotTaken
from fleetctl.tui.place import JUMPS, Place
from fleetctl.tui.reader import SnapshotReader
from fleetctl.tui.snapshot import Part, Wanted
from tests.fixtures import ROOT
from tests.fixtures.cockpit import NOW
from tests.fixtures.cockpit_fleet import full_controller
from tests.fixtures.cockpit_picture import difference, kept, lines_of, picture
from tests.fixtures.cockpit_screen import cockpit, screen_lines, wait_for, wait_for_text

pytestmark = pytest.mark.anyio

SCREENS = ROOT / "tests" / "fixtures" / "cockpit_screens"
SIZES = [(80, 24), (120, 40), (200, 50)]
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


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_each_screen_is_as_it_was(size: tuple[int, int], tmp_path: Path) -> None:
    controller = full_controller()
    reader = SnapshotReader(controller, lambda: NOW)
    reader.heard(controller.events_now)
    snapshot = await reader.read(Wanted(frozenset(Part), node="chat-1", alert="f"))
    wrong: list[str] = []
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
            while before != (shown := picture(app)):  # until nothing is left to be drawn
                before = shown
                await pilot.pause()
            await wait_for(pilot, lambda place=place: app.here.place is place)  # type: ignore[misc]
            path = SCREENS / f"{place.value}-{size[0]}x{size[1]}.svg"
            if os.environ.get("FLEETCTL_WRITE_SCREENS"):
                path.parent.mkdir(exist_ok=True)
                path.write_text(shown, encoding="utf-8")
            if shown != kept(path):
                (tmp_path / path.name).write_text(shown, encoding="utf-8")
                wrong.append(difference(kept(path), shown, path.name))
    assert not wrong, "\n\n".join([*wrong, f"the new pictures are in {tmp_path}; make cockpit-screens keeps them"])


async def test_at_three_hundred_columns_every_screen_is_drawn_with_its_numbers_near() -> None:
    controller = full_controller()
    reader = SnapshotReader(controller, lambda: NOW)
    reader.heard(controller.events_now)
    snapshot = await reader.read(Wanted(frozenset(Part), node="chat-1", alert="f"))
    async with cockpit(controller, size=(300, 80), polling=False) as (app, pilot):
        app.post_message(SnapshotTaken(snapshot))
        await wait_for_text(pilot, SEEN[Place.NOW])
        for key, place in JUMPS.items():
            if place is Place.NODE:
                await pilot.press("g", "f")
                app.query_one("#nodes", LiveTable).select("chat-1")
            await pilot.press("g", key)
            await wait_for_text(pilot, SEEN[place])
            if place is Place.FLEET:
                (line,) = (one for one in screen_lines(app) if one.lstrip().startswith("chat-2 "))
                assert line.index("◐ draining") < 50


def test_no_screen_is_kept_that_nothing_draws() -> None:
    drawn = {f"{place.value}-{width}x{height}.svg" for place in Place for width, height in SIZES}
    assert {path.name for path in SCREENS.iterdir()} == drawn


@pytest.mark.parametrize("place", Place)
def test_no_line_of_a_kept_screen_is_wider_than_the_terminal(place: Place) -> None:
    for width, height in SIZES:
        lines = lines_of(kept(SCREENS / f"{place.value}-{width}x{height}.svg"))
        assert len(lines) <= height
        assert max(map(len, lines)) <= width


def test_a_picture_that_differs_in_colour_alone_is_told_by_its_style() -> None:
    one = '<style>\n.r1 { fill: #ff0000 }\n</style>\n<text class="r1" x="0" y="20">firing</text>\n'
    told = difference(one, one.replace("#ff0000", "#00ff00"), "now.svg")
    assert "-.r1 { fill: #ff0000 }" in told
    assert difference(one, one.replace("firing", "quiet"), "now.svg").count("firing") == 1
    assert difference(one, one, "now.svg") == ""
