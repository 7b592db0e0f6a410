"""What travels between the cockpit's parts."""

from __future__ import annotations

from textual.message import Message

from fleetctl.tui.snapshot import Snapshot


class SnapshotTaken(Message):
    """The newest state. A later one supersedes it in the queue: only the latest is worth drawing."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """Any earlier snapshot in the queue."""
        return isinstance(message, SnapshotTaken)


class StoryTold(Message):
    """A line for the story panel."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self.line = line
