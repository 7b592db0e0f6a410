"""The screens of the cockpit: names, the key after `g` that leads to each, and what was shown before and after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Place(StrEnum):
    """One screen. The value is its word on the command line of the cockpit."""

    NOW = "now"
    FLEET = "fleet"
    ALERTS = "alerts"
    INCIDENT = "incident"
    RUNBOOK = "runbook"
    NODE = "node"
    TRAFFIC = "traffic"
    EVENTS = "events"
    AUDIT = "audit"
    ROLLOUT = "rollout"
    AUTOSCALER = "autoscaler"

    @property
    def label(self) -> str:
        """For people."""
        return self.value.capitalize()


JUMPS: dict[str, Place] = {
    "n": Place.NOW,
    "f": Place.FLEET,
    "a": Place.ALERTS,
    "i": Place.INCIDENT,
    "r": Place.RUNBOOK,
    "o": Place.NODE,
    "t": Place.TRAFFIC,
    "e": Place.EVENTS,
    "u": Place.AUDIT,
    "l": Place.ROLLOUT,
    "s": Place.AUTOSCALER,
}
"""The second key of a jump."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A screen and what it was about: the id of an incident or a run, the name of a node or a page; None: any."""

    place: Place
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Trail:
    """The screens that were seen, and which of them is shown."""

    visits: tuple[Visit, ...] = (Visit(Place.NOW),)
    at: int = 0

    @property
    def here(self) -> Visit:
        """What is shown."""
        return self.visits[self.at]

    def to(self, visit: Visit) -> Trail:
        """After going there: what came after `here` is forgotten."""
        if visit == self.here:
            return self
        visits = (*self.visits[: self.at + 1], visit)[-50:]
        return Trail(visits, len(visits) - 1)

    def about(self, subject: str | None) -> Trail:
        """The same screen about something else: no step of its own."""
        visits = list(self.visits)
        visits[self.at] = replace(self.here, subject=subject)
        return Trail(tuple(visits), self.at)

    def moved(self, steps: int) -> Trail:
        """So many steps forward, or back where negative, as far as there are any."""
        return replace(self, at=max(0, min(len(self.visits) - 1, self.at + steps)))
