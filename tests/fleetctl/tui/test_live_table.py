"""A table of 1,000 lines costs what is seen of it, and its cursor stays where a person put it."""

from __future__ import annotations

import pytest
from textual.app import App, ComposeResult

from fleetctl.tui.cell import Cell
from fleetctl.tui.listing import Column, Line
from fleetctl.tui.live_table import LiveTable

pytestmark = pytest.mark.anyio


class Shown(App[None]):
    """One table, which notes what it wrote and what was told."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []
        self.moved: list[str] = []
        self.opened: list[str] = []
        self.table = LiveTable((Column("number", 8, self.write, grows=True),), id="table")

    def write(self, row: int) -> Cell:
        self.written.append(row)
        return Cell(str(row))

    def compose(self) -> ComposeResult:
        yield self.table

    def on_mount(self) -> None:
        self.table.focus()

    def on_live_table_moved(self, event: LiveTable.Moved) -> None:
        self.moved.append(event.key)

    def on_live_table_opened(self, event: LiveTable.Opened) -> None:
        self.opened.append(event.key)


def lines(*numbers: int) -> tuple[Line[int], ...]:
    return tuple(Line(str(number), number) for number in numbers)


async def test_only_the_lines_on_screen_are_written() -> None:
    app = Shown()
    async with app.run_test(size=(40, 20)) as pilot:
        app.table.show(lines(*range(1000)))
        await pilot.pause()
        assert set(app.written) == set(range(19))
        app.written.clear()
        await pilot.press("end")
        await pilot.pause()
        assert app.table.selected == 999
        assert set(app.written) >= {999}
        assert min(app.written) > 970


async def test_the_cursor_stays_on_its_line_and_on_the_nearest_when_that_is_gone() -> None:
    app = Shown()
    async with app.run_test(size=(40, 20)) as pilot:
        app.table.show(lines(1, 2, 3))
        await pilot.press("down")
        app.table.show(lines(0, 1, 2, 3))
        assert app.table.selected_key == "2"
        app.table.show(lines(0, 1, 3))
        assert app.table.selected_key == "3"
        app.table.show(())
        assert app.table.selected is None
        app.table.show(lines(7))
        assert app.table.selected == 7


async def test_headings_are_passed_over() -> None:
    app = Shown()
    async with app.run_test(size=(40, 20)) as pilot:
        heading: Line[int] = Line("h", None, (Cell("second"),))
        app.table.show((Line("g", None, (Cell("first"),)), *lines(1), heading, *lines(2)))
        assert app.table.selected_key == "1"
        await pilot.press("up")
        assert app.table.selected_key == "1"
        await pilot.press("down")
        assert app.table.selected_key == "2"
        await pilot.press("end", "enter")
        assert (app.moved, app.opened) == (["2"], ["2"])


async def test_a_click_chooses_a_line_and_a_second_one_opens_it() -> None:
    app = Shown()
    async with app.run_test(size=(40, 20)) as pilot:
        app.table.show(lines(1, 2, 3))
        await pilot.pause()
        await pilot.click("#table", offset=(2, 2))
        assert app.table.selected_key == "2"
        await pilot.click("#table", offset=(2, 2), times=2)
        await pilot.pause()
        assert app.opened[-1:] == ["2"]
        await pilot.click("#table", offset=(2, 12))
        assert app.table.selected_key == "2"


async def test_a_name_gets_no_wider_than_it_says_so_that_its_numbers_stay_near() -> None:
    app = Shown()
    app.table = LiveTable(
        (Column("number", 8, app.write, grows=True, most=12), Column("next", 4, app.write)), id="table"
    )
    async with app.run_test(size=(200, 10)) as pilot:
        app.table.show(lines(7))
        await pilot.pause()
        told = "".join(segment.text for segment in app.table.render_line(1))
    assert told.index("7", told.index("7") + 1) < 20
