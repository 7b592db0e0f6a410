"""Themes: each tone is told apart, without colour too, and changing one draws what stands there again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetctl.tui.cell import Tone
from fleetctl.tui.palette import PALETTES, after, choose, chosen
from tests.fixtures.cockpit import FakeController
from tests.fixtures.cockpit_screen import WIDE, cockpit, wait_for_text

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def dark_again() -> Iterator[None]:
    yield
    choose("dark")


@pytest.mark.parametrize("name", PALETTES)
def test_what_is_bad_looks_like_nothing_else(name: str) -> None:
    styles = PALETTES[name].styles
    assert set(styles) == set(Tone)
    assert [tone for tone, style in styles.items() if style == styles[Tone.BAD]] == [Tone.BAD]
    assert styles[Tone.WARN] != styles[Tone.GOOD]


def test_the_themes_go_round() -> None:
    seen = ["dark"]
    while (name := after(seen[-1])) != "dark":
        seen.append(name)
    assert seen == list(PALETTES)


async def test_a_key_draws_what_stands_there_in_the_next_themes_colours() -> None:
    async with cockpit(FakeController(), size=WIDE, polling=True) as (app, pilot):
        await wait_for_text(pilot, "node-2 decodes slower")
        before = app.export_screenshot()
        for name in ("light", "colour-blind", "no-colour"):
            await pilot.press("t")
            await wait_for_text(pilot, "node-2 decodes slower", name)
            assert chosen().name == name
            assert app.export_screenshot() != before
        assert app.theme == PALETTES["no-colour"].base
