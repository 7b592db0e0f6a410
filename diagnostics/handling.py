"""What people said about an incident: who has it, how grave it is, and that its verdict was wrong. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Correction:
    """A person's word on the cause, in place of the verdict's."""

    cause: str | None  # None: none of the causes that are known
    by: str
    at: float
    comment: str = ""
    was: str | None = None  # the cause that was named; None: none was


@dataclass(frozen=True, slots=True)
class Handling:
    """Empty texts and None: nobody said so."""

    acknowledged_by: str = ""
    acknowledged_at: float | None = None
    assignee: str = ""
    severity_by: str = ""  # who set the severity; "": its alerts did
    silence_id: str = ""
    silenced_until: float | None = None
    correction: Correction | None = None

    def acknowledged(self, by: str, now: float) -> Handling:
        """Somebody has seen it; theirs now, unless it is somebody's. The first one stays the first."""
        if self.acknowledged_at is not None:
            return self
        return replace(self, acknowledged_by=by, acknowledged_at=now, assignee=self.assignee or by)

    def after_reopening(self) -> Handling:
        """It came back: who has it still has it, but has not seen this, nor said why it is."""
        return replace(self, acknowledged_by="", acknowledged_at=None, correction=None)

    @property
    def words(self) -> str:
        """Who has it, in a few words; "" while nobody does."""
        if self.assignee:
            return self.assignee if self.acknowledged_at is not None else f"{self.assignee}, not acknowledged"
        return f"seen by {self.acknowledged_by}" if self.acknowledged_at is not None else ""
