"""A table of any length: only the lines on screen are written, and only those that changed are drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from fleetctl.kit.printable import one_line
from fleetctl.tui.cell import Cell, Tone, clip
from fleetctl.tui.listing import Column, Line, Order, shown_columns
from fleetctl.tui.rich_text import style_of
from fleetctl.tui.still import Redrawn

GAP = 1
HEADER = 1
_PAST = Style(dim=True)


class LiveTable(Redrawn, ScrollView, can_focus=True):
    """Lines are known by key: the cursor stays on its line when others come and go."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"live-table--cursor", "live-table--header", "live-table--group"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "move(-1000000)", "First", show=False),
        Binding("end,G", "move(1000000)", "Last", show=False),
        Binding("enter", "open", "Open", show=False),
    ]

    class Moved(Message):
        """A person moved the cursor to another line."""

        def __init__(self, table: LiveTable, key: str) -> None:
            super().__init__()
            self.table, self.key = table, key

        @property
        def control(self) -> LiveTable:
            """The table."""
            return self.table

    class Opened(Moved):
        """A person wants to see what is under the cursor."""

    def __init__(self, columns: Sequence[Column[Any]], *, id: str) -> None:
        super().__init__(id=id)
        self._columns = tuple(columns)
        self._lines: tuple[Line[Any], ...] = ()
        self._index: dict[str, int] = {}
        self._cursor: str | None = None
        self._order = Order()
        self._is_past = False
        self._widths: list[tuple[Column[Any], int]] = []
        self._drawn: dict[int, tuple[Cell, ...]] = {}
        self._written: dict[int, tuple[Cell, ...]] = {}  # since the last `show`: a line is written once for it

    @property
    def selected_key(self) -> str | None:
        """Key of the line under the cursor; None when the table is empty."""
        return self._cursor

    @property
    def selected(self) -> Any:
        """The row under the cursor; None without one."""
        return None if self._cursor is None else self._lines[self._index[self._cursor]].row

    @property
    def columns(self) -> tuple[Column[Any], ...]:
        """Those that have room."""
        return shown_columns(self._columns, self.size.width or self.app.size.width)

    def show(self, lines: Sequence[Line[Any]], order: Order = Order(), *, is_past: bool = False) -> None:  # noqa: B008
        """Make the table show exactly these lines; `is_past`: as they were, which has no colour of the present."""
        at = self._index.get(self._cursor, 0) if self._cursor is not None else 0
        resized = len(lines) != len(self._lines)
        anew = resized or order != self._order or is_past != self._is_past
        if lines is self._lines and not anew:
            return  # as they were, to the last cell
        self._lines, self._order, self._is_past = tuple(lines), order, is_past
        self._written.clear()
        self._index = {line.key: index for index, line in enumerate(self._lines) if line.row is not None}
        if self._cursor not in self._index:
            self._cursor = self._nearest(min(at, len(self._lines) - 1))
        if resized:
            self.virtual_size = Size(1, len(self._lines) + HEADER)
        if anew or self._measure():
            self._drawn.clear()
            self.refresh()
        else:
            self._refresh_changed()

    def forget_drawn(self) -> None:
        """Draw every line again."""
        self._drawn.clear()
        self.refresh()

    def select(self, key: str) -> None:
        """Move the cursor to a line; nothing when it is not there."""
        if key in self._index and key != self._cursor:
            self._go(self._index[key], is_told=False)

    def _refresh_changed(self) -> None:
        """Draw those lines on screen again whose cells are others than before."""
        top = round(self.scroll_offset.y)
        changed = []
        for y in range(HEADER, self.size.height):
            index = top + y - HEADER
            before = self._drawn.get(index)
            now = self._cells(index) if index < len(self._lines) else None
            if before != now:
                changed.append(y)
        if len(changed) * 2 > self.size.height:
            self.refresh()  # one region is put together sooner than dozens
        elif changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def _measure(self) -> bool:
        """How wide each column is now; true when that is not as before."""
        columns = self.columns
        growing = [column for column in columns if column.grows]
        free = max(0, self.size.width - sum(column.width + GAP for column in columns) - 1)
        share = free // len(growing) if growing else 0
        widths = [(column, _width(column, share)) for column in columns]
        changed = widths != self._widths
        self._widths = widths
        if changed:
            self._written.clear()
        return changed

    def on_resize(self, _: events.Resize) -> None:
        """Other columns have room."""
        self.virtual_size = Size(1, len(self._lines) + HEADER)
        self._measure()
        self._drawn.clear()
        self.refresh()

    # -- the cursor ---------------------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Move the cursor by so many lines; headings are passed over."""
        if self._cursor is None:
            return
        at = self._index[self._cursor]
        goal = max(0, min(len(self._lines) - 1, at + by))
        step = 1 if by > 0 else -1
        while 0 <= goal < len(self._lines) and self._lines[goal].row is None:
            goal += step
        if not 0 <= goal < len(self._lines):
            if abs(by) == 1:
                self.scroll_to(y=0 if by < 0 else self.max_scroll_y, animate=False)
                return
            goal = self._index[self._nearest(0 if by < 0 else len(self._lines) - 1) or self._cursor]
        self._go(goal, is_told=True)

    def action_page(self, by: int) -> None:
        """Move the cursor by a screen."""
        self.action_move(by * max(1, self.size.height - HEADER - 1))

    def action_open(self) -> None:
        """Tell that the line under the cursor is to be opened."""
        if self._cursor is not None:
            self.post_message(self.Opened(self, self._cursor))

    def on_click(self, event: events.Click) -> None:
        """Choose a line; a second click opens it."""
        index = round(self.scroll_offset.y) + event.y - HEADER
        if event.y < HEADER or not 0 <= index < len(self._lines) or self._lines[index].row is None:
            return
        if self._lines[index].key == self._cursor and event.chain > 1:
            self.action_open()
        else:
            self._go(index, is_told=True)

    def _nearest(self, index: int) -> str | None:
        """Key of the line with a row that is nearest."""
        if not self._index:
            return None
        return min(self._index, key=lambda key: abs(self._index[key] - index))

    def _go(self, index: int, *, is_told: bool) -> None:
        before = self._index.get(self._cursor) if self._cursor is not None else None
        self._cursor = self._lines[index].key
        top, rows = round(self.scroll_offset.y), self.size.height - HEADER
        first = index - 1 if index > 0 and self._lines[index - 1].row is None else index  # with its group's heading
        if first < top:
            self.scroll_to(y=first, animate=False, force=True, immediate=True)
        elif index >= top + rows > 0:
            self.scroll_to(y=index - rows + 1, animate=False, force=True, immediate=True)
        for line in {before, index} - {None}:
            y = line - round(self.scroll_offset.y) + HEADER  # type: ignore[operator]
            if HEADER <= y < self.size.height:
                self.refresh(Region(0, y, self.size.width, 1))
        if is_told and before != index:
            self.post_message(self.Moved(self, self._cursor))

    # -- drawing ------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        if not self._widths:
            self._measure()
        width = self.size.width
        if y < HEADER:
            return self._header().adjust_cell_length(width, self.get_component_rich_style("live-table--header"))
        index = round(self.scroll_offset.y) + y - HEADER
        if not 0 <= index < len(self._lines):
            self._drawn.pop(index, None)
            return Strip.blank(width, self.rich_style)
        cells = self._cells(index)
        self._drawn[index] = cells
        line = self._lines[index]
        if line.row is None:
            base = self.rich_style + self.get_component_rich_style("live-table--group", partial=True)
            return _strip([(cell, len(cell.text)) for cell in cells], base, 2).adjust_cell_length(width, base)
        base = self.rich_style
        if line.key == self._cursor:
            base += self.get_component_rich_style("live-table--cursor", partial=True)
        pairs = [(cell, size) for cell, (_, size) in zip(cells, self._widths, strict=True)]
        return _strip(pairs, base, GAP).adjust_cell_length(width, base)

    def _cells(self, index: int) -> tuple[Cell, ...]:
        if (known := self._written.get(index)) is not None:
            return known
        line = self._lines[index]
        cells = line.heading if line.row is None else tuple(column.write(line.row) for column, _ in self._widths)
        if self._is_past:
            cells = tuple(Cell(cell.text, Tone.DIM, cell.right) for cell in cells)
        self._written[index] = cells
        return cells

    def _header(self) -> Strip:
        style = self.get_component_rich_style("live-table--header")
        cells = []
        for column, size in self._widths:
            mark = ("▾" if self._order.is_reversed else "▴") if column.title == self._order.title else ""
            cells.append((Cell(column.title + mark, Tone.PLAIN, column.right), size))
        return _strip(cells, style, GAP)


def _strip(cells: Sequence[tuple[Cell, int]], base: Style, gap: int) -> Strip:
    """Cells side by side, each in its width."""
    segments = [Segment(" ", base)]
    length = 1
    for cell, width in cells:
        text = clip(one_line(cell.text), width)
        padded = text.rjust(width) if cell.right else text.ljust(width)
        segments.append(Segment(padded, base + Style.parse(style_of(cell.tone))))
        segments.append(Segment(" " * gap, base))
        length += width + gap
    return Strip(segments)


def _width(column: Column[Any], share: int) -> int:
    """Of one that grows: with its share of the room that is left."""
    width = column.width + (share if column.grows else 0)
    return width if column.most is None else min(width, column.most)
