"""The Fleet tab: every node in one row, and what the row has no room for about the chosen one."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Static

from fleetctl.tui.keyed_table import KeyedTable
from fleetctl.tui.rich_text import line
from fleetctl.tui.snapshot import Snapshot
from fleetctl.tui.view_model import FLEET_COLUMNS, FLEET_NUMBERS, fleet_rows, node_lines
from fleetctl.wire import Node


class FleetPane(Vertical):
    """The table of nodes, and the chosen one in detail."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("s", "toggle_stopped", "Stopped", show=False)]

    def __init__(self) -> None:
        super().__init__(id="fleet")
        self.table = KeyedTable(FLEET_COLUMNS, id="nodes", numbers=FLEET_NUMBERS)
        self._detail = Static(id="node")
        self._snapshot = Snapshot()
        self._now = 0.0
        self._with_stopped = False

    def compose(self) -> ComposeResult:
        """Table above, detail below."""
        yield self.table
        yield self._detail

    @property
    def selected(self) -> Node | None:
        """The node under the cursor; None without one."""
        key = self.table.selected_key
        return next((node for node in self._snapshot.nodes if node.name == key), None)

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Draw this snapshot."""
        self._snapshot, self._now = snapshot, now
        self.set_class(snapshot.cut_off_since is not None, "-cut-off")
        self.table.show(fleet_rows(snapshot, now, self.app.size.width, with_stopped=self._with_stopped))
        self._show_node()

    def action_toggle_stopped(self) -> None:
        """Show stopped nodes, or leave them out again."""
        self._with_stopped = not self._with_stopped
        self.show(self._snapshot, self._now)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the node that the cursor moved to."""
        event.stop()
        self._show_node()

    def _show_node(self) -> None:
        node = self.selected
        if node is not None:
            pool = next((one for one in self._snapshot.pools if one.name == node.pool), None)
            text = Text("\n").join(line((cell,)) for cell in node_lines(node, self._now, pool))
        elif self._snapshot.known_at is None:
            text = Text("Nothing is known yet: the controller has not answered.", style="dim")
        else:
            stopped = len(self._snapshot.nodes)
            held = f"No node runs; {stopped} stopped, s shows them." if stopped else "The fleet has no nodes."
            text = Text(f"{held}  fleetctl node start NAME", style="dim")
        self._detail.update(text)
