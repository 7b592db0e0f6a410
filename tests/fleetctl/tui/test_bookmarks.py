"""Bookmarks outlive the cockpit, and copies are what a person would have typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.tui.bookmarks import MAX, Bookmark, Bookmarks
from fleetctl.tui.place import Place, Visit
from tests.fixtures.cockpit import FakeController
from tests.fixtures.cockpit_screen import WIDE, cockpit, screen, wait_for, wait_for_text

pytestmark = pytest.mark.anyio

NODE = Bookmark(Visit(Place.NODE, "node-2"))


def test_they_are_there_again_and_dropped_by_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "bookmarks.json"
    assert Bookmarks(path).toggle(NODE)
    assert Bookmarks(path).kept == (NODE,)
    assert not Bookmarks(path).toggle(NODE)
    assert Bookmarks(path).kept == ()


def test_there_is_a_digit_for_each(tmp_path: Path) -> None:
    marks = Bookmarks()
    for number in range(MAX + 1):
        marks.toggle(Bookmark(Visit(Place.NODE, f"node-{number}")))
    assert [one.visit.subject for one in marks.kept] == [f"node-{number}" for number in range(1, MAX + 1)]


@pytest.mark.parametrize("text", ["", "[1]", '[{"place": "moon"}]', '{"place": "node"}'])
def test_a_damaged_file_is_no_bookmark_and_no_failure(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bookmarks.json"
    path.write_text(text)
    assert Bookmarks(path).kept == ()


async def test_a_screen_with_its_filter_is_bookmarked_and_gone_back_to() -> None:
    async with cockpit(FakeController(), size=WIDE) as (app, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-1")
        await pilot.press("slash", *"node-2", "enter", "m", "g", "n")
        await wait_for_text(pilot, "Last events")
        await pilot.press("apostrophe")
        await wait_for_text(pilot, "1  Fleet  /node-2")
        await pilot.press("1")
        await wait_for(pilot, lambda: app.here.place is Place.FLEET)
        await wait_for(pilot, lambda: "● ready" not in screen(app))


async def test_a_copy_is_the_chosen_line_or_the_commands_of_a_run() -> None:
    async with cockpit(FakeController(), size=WIDE) as (app, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-1")
        await pilot.press("y")
        await wait_for(pilot, lambda: app.clipboard.startswith("node-1  ● ready"))
        await pilot.press("g", "r")
        await wait_for_text(pilot, "Run run-1")
        await pilot.press("y")
        await wait_for(pilot, lambda: app.clipboard.startswith("fleetctl node start node-4 --like node-2"))
        await pilot.press("g", "i", "y")
        await wait_for(pilot, lambda: app.clipboard.startswith("inc-1: node-2 decodes slower"))
