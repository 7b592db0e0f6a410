"""A table that is told what it should show, and changes only the cells that differ."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import DataTable

from fleetctl.tui.paint import paint
from fleetctl.tui.view_model import Row


class KeyedTable(DataTable[Text]):
    """Rows are known by key: the cursor stays on its row when others come and go."""

    def __init__(self, columns: Sequence[str], *, id: str, show_header: bool = True) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False, show_header=show_header)
        self._columns = tuple(columns)
        self._shown: dict[str, Row] = {}

    def on_mount(self) -> None:
        for index, name in enumerate(self._columns):
            self.add_column(name, key=str(index))

    @property
    def selected_key(self) -> str | None:
        """Key of the row under the cursor; None when the table is empty."""
        if not self.is_valid_row_index(self.cursor_row):
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def show(self, rows: Sequence[Row]) -> None:
        """Make the table show exactly these rows, in this order."""
        kept = [row.key for row in rows]
        if [key for key in self._shown if key in kept] != kept[: len([k for k in kept if k in self._shown])]:
            self._rebuild(rows)
            return
        for key in [key for key in self._shown if key not in kept]:
            self.remove_row(key)
            del self._shown[key]
        for row in rows:
            if row.key not in self._shown:
                self.add_row(*(paint(cell) for cell in row.cells), key=row.key)
            elif row is not self._shown[row.key]:
                self._change(self._shown[row.key], row)
            self._shown[row.key] = row

    def select(self, key: str) -> None:
        """Move the cursor to a row; nothing when it is not there."""
        if key in self._shown:
            self.move_cursor(row=self.get_row_index(key), animate=False)

    def _change(self, before: Row, after: Row) -> None:
        for index, (old, new) in enumerate(zip(before.cells, after.cells, strict=True)):
            if old != new:
                # update_width: without it a cell that grew is cut off at the old width.
                self.update_cell(after.key, str(index), paint(new), update_width=True)

    def _rebuild(self, rows: Sequence[Row]) -> None:
        """The order changed: draw anew, and put the cursor back on its row."""
        selected = self.selected_key
        self.clear()
        self._shown = {row.key: row for row in rows}
        for row in rows:
            self.add_row(*(paint(cell) for cell in row.cells), key=row.key)
        if selected is not None:
            self.select(selected)
