"""From cells of a view to Rich text: the one place where a tone becomes a colour."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from fleetctl.kit.printable import one_line
from fleetctl.tui.incident_view import StorySection
from fleetctl.tui.view_model import Cell, Tone

STYLES: dict[Tone, str] = {
    Tone.PLAIN: "",
    Tone.GOOD: "green",
    Tone.BUSY: "cyan",
    Tone.WARN: "yellow",
    Tone.BAD: "bold red",
    Tone.DIM: "dim",
    Tone.STRONG: "bold",
}


def paint(cell: Cell) -> Text:
    """One cell in its tone."""
    return Text(one_line(cell.text), style=STYLES[cell.tone], justify="right" if cell.right else "left", no_wrap=True)


def line(cells: Iterable[Cell], gap: str = "   ") -> Text:
    """Cells side by side."""
    return Text(gap).join(paint(cell) for cell in cells)


def paint_section(section: StorySection, wide: int) -> Table | Text:
    """Heading, then the rows; column `wide` wraps and takes the room that is left, the others keep their width."""
    heading = Text(one_line(section.heading.text), style=STYLES[section.heading.tone])
    if not section.rows and not section.notes:
        return heading
    columns = max((len(row) for row in section.rows), default=0)
    body = Table.grid(padding=(0, 1), expand=True)
    for index in range(columns):
        body.add_column(ratio=1 if index == wide else None, no_wrap=index == 0, overflow="fold")
    for row in section.rows:
        body.add_row(*(Text(one_line(cell.text), style=STYLES[cell.tone]) for cell in row))
    whole = Table.grid(expand=True)
    whole.add_column(ratio=1)
    whole.add_row(heading)
    if section.rows:
        whole.add_row(body)
    for note in section.notes:
        whole.add_row(Text(one_line(note.text), style=STYLES[note.tone]))
    return whole
