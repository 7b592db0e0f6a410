"""The Fleet screen: every node in one row, grouped, ordered and filtered; and the chosen one in a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import is_
from typing import ClassVar

from textual.binding import Binding, BindingType

from fleetctl.tui.cell import Cell
from fleetctl.tui.fleet_view import FLEET_COLUMNS, GROUPS, NodeRow, fleet_lines
from fleetctl.tui.listing import Line
from fleetctl.tui.live_table import LiveTable
from fleetctl.tui.node_view import node_lines
from fleetctl.tui.pane import TablePane
from fleetctl.tui.place import Place
from fleetctl.tui.reader import LARGE_FLEET
from fleetctl.tui.snapshot import Part
from fleetctl.wire.group import GroupBy
from fleetctl.wire.node import Node

AGES_EVERY_S = 6.0


class FleetPane(TablePane):
    """The table of nodes, and the chosen one in detail."""

    PLACE = Place.FLEET
    NEEDS = frozenset({Part.NODES, Part.POOLS, Part.GROUPS, Part.PAST})
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "group", "Group"),
        Binding("s", "toggle_stopped", "Stopped nodes", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(FLEET_COLUMNS, table_id="nodes", empty="The fleet has no nodes.  fleetctl node start NAME")
        self.group = "pool"
        self.with_stopped = False
        self._made_of: tuple[object, ...] = ()
        self._made_at = 0.0
        self._made: Sequence[Line[NodeRow]] = ()

    @property
    def selected(self) -> Node | None:
        """The node under the cursor; None without one."""
        row: NodeRow | None = self.table.selected
        return row.node if row is not None else None

    @property
    def group_by_others(self) -> GroupBy | None:
        """What nodes are grouped by, where it is not their pool, of which the pools tell."""
        return GroupBy(self.group) if self.group and self.group != GroupBy.POOL.value else None

    def lines(self) -> Sequence[Line[NodeRow]]:
        """Nodes under their groups. Of a large fleet those of before, while nothing is known that is newer: only ages
        would be others, in every line of the screen."""
        told = self.snapshot
        made_of = (told.nodes, told.pools, told.groups, told.node_tails, told.pool_tails, told.cut_off_since)
        chosen = (self.words, self.group, self.order, self.with_stopped)
        is_same = all(map(is_, made_of, self._made_of)) and self._made_of[len(made_of) :] == chosen
        if is_same and len(told.nodes) > LARGE_FLEET and 0.0 <= self.now - self._made_at < AGES_EVERY_S:
            return self._made
        self._made_of, self._made_at = (*made_of, *chosen), self.now
        self._made = self._written()
        return self._made

    def _written(self) -> Sequence[Line[NodeRow]]:
        found = fleet_lines(
            self.snapshot,
            self.now,
            words=self.words,
            group=self.group,
            order=self.order,
            with_stopped=self.with_stopped,
        )
        stopped = len(self.snapshot.nodes)
        self._empty = (
            f"No node runs; {stopped} stopped, s shows them.  fleetctl node start NAME"
            if stopped
            else "The fleet has no nodes.  fleetctl node start NAME"
        )
        return found

    def detail(self, row: NodeRow) -> Iterable[Cell]:
        """What the table has no room for."""
        pool = next((one for one in self.snapshot.pools if one.name == row.node.pool), None)
        return node_lines(row.node, self.now, pool)

    def action_group(self) -> None:
        """Group by the next thing."""
        names = list(GROUPS)
        self.group_by(names[(names.index(self.group) + 1) % len(names)])

    def group_by(self, group: str) -> None:
        """Group by this."""
        self.group = group
        self.draw()
        self.post_message(self.Moved())

    def action_toggle_stopped(self) -> None:
        """Show stopped nodes, or leave them out again."""
        self.with_stopped = not self.with_stopped
        self.draw()

    def on_live_table_opened(self, event: LiveTable.Opened) -> None:
        """A node has a screen of its own."""
        event.stop()
        self.post_message(self.Asks(Place.NODE, event.key))
