"""The verdicts of an incident as its timeline tells them: from when to when each held, and why it was replaced."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from diagnostics.record import IncidentRecord

KINDS = ("diagnosis.named", "diagnosis.open", "diagnosis.replaced", "diagnosis.corrected")


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """One verdict. Times are Unix seconds."""

    at: float
    until: float | None  # when another one took its place; None: it stands
    cause: str | None
    confidence: str  # or the person who said so
    why_ended: str = ""  # why it was replaced
    said_by: str = ""  # the person whose word it is; "": the evidence's


def verdict_changes(incident: IncidentRecord) -> list[VerdictChange]:
    """Every verdict in time, the one that stands last."""
    told = [event for event in incident.timeline if event.kind in KINDS]
    found = []
    for event, following in zip_longest(told, told[1:]):
        cause = event.data.get("cause")
        said_by = str(event.data.get("by") or "a person") if event.kind == "diagnosis.corrected" else ""
        found.append(
            VerdictChange(
                at=event.at,
                until=following.at if following is not None else None,
                cause=str(cause) if cause else None,
                confidence=f"said by {said_by}" if said_by else str(event.data.get("confidence") or "unknown"),
                said_by=said_by,
                why_ended=_why(str(following.data.get("why") or ""), following.kind) if following is not None else "",
            )
        )
    return found


def _why(why: str, kind: str) -> str:
    if kind == "diagnosis.corrected":
        return "a person said that it was wrong" + (f": {why}" if why else "")
    return why or "asked again"
