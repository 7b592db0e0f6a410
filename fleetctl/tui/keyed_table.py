"""A table that is told what it should show, and changes only the cells that differ."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from rich.text import Text
from textual.widgets import DataTable

from fleetctl.tui.rich_text import paint
from fleetctl.tui.view_model import TableRow


class KeyedTable(DataTable[Text]):
    """Rows are known by key: the cursor stays on its row when others come and go."""

    def __init__(
        self, columns: Sequence[str], *, id: str, numbers: Collection[str] = (), show_header: bool = True
    ) -> None:
        """Columns named in `numbers` have their heading at the right."""
        super().__init__(id=id, cursor_type="row", zebra_stripes=False, show_header=show_header)
        self._columns = tuple(columns)
        self._numbers = frozenset(numbers)
        self._shown: dict[str, TableRow] = {}

    def on_mount(self) -> None:
        """Make the columns."""
        for index, name in enumerate(self._columns):
            justify: Literal["left", "right"] = "right" if name in self._numbers else "left"
            self.add_column(Text(name, justify=justify), key=str(index))

    @property
    def selected_key(self) -> str | None:
        """Key of the row under the cursor; None when the table is empty."""
        if not self.is_valid_row_index(self.cursor_row):
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def show(self, rows: Sequence[TableRow]) -> None:
        """Make the table show exactly these rows, in this order."""
        wanted = [row.key for row in rows]
        staying = [key for key in self._shown if key in set(wanted)]
        selected = self.selected_key
        with self.prevent(DataTable.RowHighlighted):  # only a person's move is news
            if wanted[: len(staying)] == staying:
                self._adjust(rows, set(wanted))
            else:  # the order changed: draw anew
                self.clear()
                self._shown.clear()
                self._adjust(rows, set(wanted))
            if selected is not None and selected != self.selected_key:
                self.select(selected)

    def select(self, key: str) -> None:
        """Move the cursor to a row; nothing when it is not there."""
        if key in self._shown:
            with self.prevent(DataTable.RowHighlighted):
                self.move_cursor(row=self.get_row_index(key), animate=False)

    def _adjust(self, rows: Sequence[TableRow], wanted: set[str]) -> None:
        for key in [key for key in self._shown if key not in wanted]:
            self.remove_row(key)
            del self._shown[key]
        for row in rows:
            before = self._shown.get(row.key)
            if before is None:
                self.add_row(*(paint(cell) for cell in row.cells), key=row.key)
            elif before != row:
                self._change(before, row)
            self._shown[row.key] = row

    def _change(self, before: TableRow, after: TableRow) -> None:
        for index, (old, new) in enumerate(zip(before.cells, after.cells, strict=True)):
            if old != new:
                # update_width: without it a cell that grew is cut off at the old width.
                self.update_cell(after.key, str(index), paint(new), update_width=True)
