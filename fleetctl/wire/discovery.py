"""What the sources of `fleet.targets` list."""

from __future__ import annotations

from pydantic import Field

from fleetctl.wire.base import Wire


class ListedNode(Wire):
    """A node that a source lists, and what it says it is. Empty: not known."""

    name: str
    url: str
    answers: bool
    engine: str = ""
    version: str = ""
    pool: str = ""
    model: str = ""
    zone: str = ""
    revision: str = ""
    facts: dict[str, str] = Field(default_factory=dict)
    source: str = ""


class DiscoveryState(Wire):
    """What the sources of `fleet.targets` list."""

    looked: bool = False  # every source was read, or tried, since the start
    found: int = 0
    dropped: int = 0  # by relabelling
    problems: dict[str, str] = Field(default_factory=dict)  # place to what is wrong there; the first hundred
    unread: list[str] = Field(default_factory=list)  # sources that were never read
