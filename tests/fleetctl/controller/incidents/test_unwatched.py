"""That nobody watched for a while is on the timeline: what happened meanwhile is dated and counted by nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.controller.controller import Controller, open_controller
from tests.fixtures.controller import NoProvider, make_config
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio


async def told(controller: Controller, kind: str) -> list[str]:
    await controller.timeline.flush()
    return [one.text for one in await controller.timeline.read() if one.kind == kind]


async def test_a_controller_that_stood_still_says_for_how_long_once_and_of_a_moment_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped for two minutes, it showed a value of before with the time of after, and no word of the gap."""
    async with open_controller(make_config(tmp_path, nodes=1), NoProvider(), DrivenClock()) as controller:
        for long_s in (8.0, 133.0, 133.0):
            monkeypatch.setattr(controller.stalls, "_long_s", long_s)
            await controller.loops.run_turn("alerts")
        (text,) = await told(controller, "controller.stood_still")
        assert "stood still for 2 min 05 s" in text


async def test_after_a_full_disk_the_timeline_says_for_how_long_it_has_a_hole(tmp_path: Path) -> None:
    """It had "resolved" of an incident whose opening nobody could store."""
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=1), NoProvider(), clock) as controller:
        controller.database.storage_error = "no space left"
        await controller.loops.run_turn("alerts")
        clock.move(44.0)
        for _ in range(2):
            await controller.loops.run_turn("alerts")
        (text,) = await told(controller, "storage.recovered")
        assert text.startswith("nothing could be stored for 44 s (no space left)")


async def test_a_controller_that_starts_says_for_how_long_nobody_looked(tmp_path: Path) -> None:
    clock = DrivenClock()
    for away_s in (0.0, 5.0, 600.0):
        clock.move(away_s)
        async with open_controller(make_config(tmp_path, nodes=1), NoProvider(), clock) as controller:
            await controller.loops.run_turn("alerts")
            started = await told(controller, "controller.started")
    assert ["nobody had looked" in text for text in started] == [False, False, True]
    assert started[-1].endswith("epoch 3; nobody had looked or judged for about 10 min 00 s")
