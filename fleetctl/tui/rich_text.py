"""From cells of a view to Rich text: where a tone becomes a colour of the palette."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from fleetctl.kit.printable import one_line
from fleetctl.tui.cell import Cell, StorySection, Tone
from fleetctl.tui.palette import chosen

READABLE_WIDTH = 100  # cells of one text: longer lines are hard to follow


def style_of(tone: Tone) -> str:
    """What the tone looks like now."""
    return chosen().styles[tone]


def paint(cell: Cell) -> Text:
    """One cell in its tone."""
    return Text(one_line(cell.text), style=style_of(cell.tone), justify="right" if cell.right else "left", no_wrap=True)


def line(cells: Iterable[Cell], gap: str = "   ") -> Text:
    """Cells side by side."""
    return Text(gap).join(paint(cell) for cell in cells)


def paint_section(section: StorySection) -> Table | Text:
    """Heading, then the rows, each column as wide as it needs: a value stands beside its question at any width."""
    heading = Text(one_line(section.heading.text), style=style_of(section.heading.tone))
    if not section.rows and not section.notes:
        return heading
    columns = max((len(row) for row in section.rows), default=0)
    widest = max(range(columns), key=lambda at: _width_of(section, at), default=0)
    body = Table.grid(padding=(0, 2, 0, 0))
    for index in range(columns):
        wraps = index == widest
        body.add_column(no_wrap=not wraps, overflow="fold", max_width=READABLE_WIDTH if wraps else None)
    for row in section.rows:
        body.add_row(*(_cell(cell) for cell in row))
    whole = Table.grid(expand=True)
    whole.add_column(ratio=1)
    whole.add_row(heading)
    if section.rows:
        whole.add_row(body)
    for note in section.notes:
        whole.add_row(Text(one_line(note.text), style=style_of(note.tone)))
    return whole


def _cell(cell: Cell) -> Text:
    return Text(one_line(cell.text), style=style_of(cell.tone), justify="right" if cell.right else "left")


def _width_of(section: StorySection, at: int) -> int:
    return max((len(row[at].text) for row in section.rows if at < len(row)), default=0)
