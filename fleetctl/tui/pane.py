"""What every screen of the cockpit is: a widget that draws a snapshot, says what it needs, and what it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.widget import Widget

from fleetctl.tui.cell import Cell, StorySection
from fleetctl.tui.listing import Column, Line, Order
from fleetctl.tui.live_table import LiveTable
from fleetctl.tui.place import Place
from fleetctl.tui.rich_text import paint, paint_section
from fleetctl.tui.snapshot import Part, Snapshot
from fleetctl.tui.still import Redrawn, Still


class Pane(Vertical):
    """One screen."""

    PLACE: ClassVar[Place]
    NEEDS: ClassVar[frozenset[Part]] = frozenset()
    CAN_FILTER: ClassVar[bool] = False

    class About(Message):
        """A person chose what the screen is about."""

        def __init__(self, subject: str) -> None:
            super().__init__()
            self.subject = subject

    class Moved(Message):
        """Something else is chosen, of which more is to be read."""

    class Asks(Message):
        """A person wants another screen about something."""

        def __init__(self, place: Place, subject: str | None = None) -> None:
            super().__init__()
            self.place, self.subject = place, subject

    def __init__(self) -> None:
        super().__init__(id=self.PLACE.value, classes="pane")
        self.subject: str | None = None
        self.words = ""  # of the filter
        self.snapshot = Snapshot()
        self.now = 0.0

    @property
    def main(self) -> Widget:
        """What takes the keys."""
        raise NotImplementedError

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Draw this snapshot."""
        self.snapshot, self.now = snapshot, now
        self.set_class(snapshot.cut_off_since is not None, "-cut-off")
        self.draw()

    def draw(self) -> None:
        """Draw what is known."""
        raise NotImplementedError

    def told(self) -> str:
        """What a copy of it is: the chosen thing in words; empty where nothing is chosen."""
        return self.subject or ""

    def narrow(self, words: str) -> None:
        """Show only what fits these words."""
        self.words = words
        self.draw()


def section_text(section: StorySection) -> str:
    """A section as plain lines."""
    rows = ("  ".join(cell.text for cell in row if cell.text) for row in section.rows)
    return "\n".join([section.heading.text, *rows, *(note.text for note in section.notes)])


NOTHING = StorySection(Cell(""))  # equal to no section that is shown


class Sections(Redrawn, VerticalScroll, can_focus=True):
    """Sections under each other; only one that changed is drawn again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_lines(4)", "Down", show=False),
        Binding("k", "scroll_lines(-4)", "Up", show=False),
    ]

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._drawn: list[StorySection] = []

    def show(self, sections: Iterable[StorySection]) -> None:
        """Make it show exactly these."""
        wanted = list(sections)
        statics = list(self.query(Still))
        for static in statics[len(wanted) :]:
            static.display = False
        for index, section in enumerate(wanted):
            if index < len(statics):
                statics[index].display = True
                if self._drawn[index] != section:
                    statics[index].redraw(paint_section(section))
            else:
                self.mount(Still(paint_section(section), classes="section"))
        self._drawn = wanted + self._drawn[len(wanted) :]

    def told(self) -> str:
        """All of it as lines."""
        return "\n\n".join(map(section_text, self._drawn)) + "\n"

    def forget_drawn(self) -> None:
        """Draw every section again."""
        self._drawn = [NOTHING] * len(self._drawn)

    def action_scroll_lines(self, lines: int) -> None:
        """Scroll by so many lines."""
        self.scroll_relative(y=lines, animate=False)


class TablePane(Pane):
    """A table, and what it has no room for about the chosen line."""

    CAN_FILTER = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "order(1)", "Order by the next column", show=False),
        Binding("O", "turn", "Order the other way", show=False),
    ]

    def __init__(self, columns: Sequence[Column[Any]], *, table_id: str, empty: str) -> None:
        super().__init__()
        self.table = LiveTable(columns, id=table_id)
        self._detail = Still(id=f"{table_id}-detail", classes="detail")
        self._empty = empty
        self.order = Order()

    def compose(self) -> ComposeResult:
        """The table, the detail."""
        yield self.table
        yield self._detail

    @property
    def main(self) -> Widget:
        """The table."""
        return self.table

    def told(self) -> str:
        """The chosen line, cell by cell."""
        row = self.table.selected
        cells = () if row is None else (column.write(row).text.strip() for column in self.table.columns)
        return "  ".join(filter(None, cells))

    def lines(self) -> Sequence[Line[Any]]:
        """What the table shows."""
        raise NotImplementedError

    def detail(self, row: Any) -> Iterable[Cell]:
        """What is told of the chosen row."""
        raise NotImplementedError

    def draw(self) -> None:
        """The table's lines, and the chosen one's detail."""
        self.table.show(self.lines(), self.order, is_past=self.snapshot.cut_off_since is not None)
        self.draw_detail()

    def draw_detail(self) -> None:
        """What is told of the line under the cursor."""
        row = self.table.selected
        if row is not None:
            cells = [cell for cell in self.detail(row) if cell.text]
            self._detail.redraw(Text("\n").join(_wrapping(cell) for cell in cells))
        elif self.snapshot.known_at is None:
            self._detail.redraw(Text("Nothing is known yet: the controller has not answered.", style="dim"))
        else:
            empty = f"Nothing fits {self.words!r}; Esc ends the filter." if self.words else self._empty
            self._detail.redraw(Text(empty, style="dim"))

    def on_live_table_moved(self, event: LiveTable.Moved) -> None:
        """Tell of the line that the cursor moved to."""
        event.stop()
        self.draw_detail()

    def action_order(self, by: int) -> None:
        """Order by the next column."""
        titles: list[str | None] = [None, *(one.title for one in self.table.columns if one.sort_key is not None)]
        at = titles.index(self.order.title) if self.order.title in titles else 0
        self.order = Order(titles[(at + by) % len(titles)], self.order.is_reversed)
        self.draw()

    def action_turn(self) -> None:
        """Order the other way."""
        self.order = Order(self.order.title, not self.order.is_reversed)
        self.draw()


def _wrapping(cell: Cell) -> Text:
    text = paint(cell)
    text.no_wrap = False
    text.justify = "left"
    return text


class ListPane(TablePane):
    """A table whose lines and detail are two pure functions of the snapshot."""

    LINES: ClassVar[Callable[..., Sequence[Line[Any]]]]
    LISTS: ClassVar[str]  # the field of the snapshot that the lines are made of

    def __init__(self, columns: Sequence[Column[Any]], *, table_id: str, empty: str) -> None:
        super().__init__(columns, table_id=table_id, empty=empty)
        self._made_of: tuple[object, str, Order] | None = None
        self._made: Sequence[Line[Any]] = ()

    def lines(self) -> Sequence[Line[Any]]:
        """By the filter and the order; those of before while nothing of that is another."""
        rows = getattr(self.snapshot, self.LISTS)
        made_of = (rows, self.words, self.order)
        if self._made_of is None or self._made_of[0] is not rows or self._made_of[1:] != made_of[1:]:
            self._made_of = made_of
            self._made = type(self).LINES(self.snapshot, self.words, self.order)
        return self._made
