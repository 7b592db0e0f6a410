"""The Node screen: all that is known of one node, and what it writes, as it writes it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import RichLog, Static

from fleetctl.tui.log_line import log_words
from fleetctl.tui.node_view import node_sections
from fleetctl.tui.pane import Pane, Sections
from fleetctl.tui.place import Place
from fleetctl.tui.snapshot import Part
from fleetctl.wire.node import Node

MAX_LOG_LINES = 2000


class NodePane(Pane):
    """One node, and its log."""

    PLACE = Place.NODE
    NEEDS = frozenset({Part.NODE, Part.REQUESTS, Part.POOLS, Part.PAST})

    def __init__(self) -> None:
        super().__init__()
        self._sections = Sections(id="node-sections")
        self._log_head = Static("Log", id="node-log-head")
        self._log = RichLog(id="node-log", wrap=True, min_width=0, max_lines=MAX_LOG_LINES, auto_scroll=True)

    def compose(self) -> ComposeResult:
        """Sections above or left, the log below or right."""
        yield self._sections
        with Vertical(id="node-log-part"):
            yield self._log_head
            yield self._log

    @property
    def main(self) -> Widget:
        """What scrolls."""
        return self._sections

    @property
    def node(self) -> Node | None:
        """The node that is shown; None while it is not known."""
        found = self.snapshot.node
        return found if found is not None and found.name == self.subject else None

    def draw(self) -> None:
        """What is known of it."""
        self._sections.show(node_sections(self.subject, self.node, self.snapshot, self.now))

    def begin_log(self, name: str) -> None:
        """Another node's lines come now."""
        self._log.clear()
        self._log_head.update(f"Log of {name}, followed")

    def add_log(self, line: str) -> None:
        """One line of its log."""
        self._log.write(log_words(line))

    def end_log(self, why: str) -> None:
        """No more lines come."""
        self._log_head.update(f"Log: {why}")
