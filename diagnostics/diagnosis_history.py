"""The verdicts of an incident as its timeline tells them: from when to when each held, and why it was replaced."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from diagnostics.record import DiagnosisRecord, IncidentRecord

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


_READ = ("evidence", "ruled_out", "not_known", "why_not", "onset", "onset_early", "onset_late", "changes")
_SAID = ("title", "tree", "probability", "also", "runner_up", "runner_up_probability", "tells_apart")


def as_named(incident: IncidentRecord) -> DiagnosisRecord | None:
    """The verdict that stands, as it was named: what was read last is of an incident that ended, its signs too. Of one
    that goes on, as it is now: a minute's verdict tells too little of an hour.

    As the timeline tells it: what an older one does not tell is as it stands. Beside a person's word, what was read is
    that by which the wrong verdict was named.
    """
    stands, is_corrected = incident.diagnosis, incident.handling.correction is not None
    goes_on = incident.status == "open" and any(one.state == "firing" for one in incident.alerts)
    if stands is None or not (is_corrected or (stands.looked_at and not goes_on)):
        return stands
    told = [one for one in incident.timeline if one.kind in KINDS and one.data.get("evidence")]
    if not is_corrected:
        said = (stands.cause, stands.confidence)
        told = [one for one in told if (one.data.get("cause"), one.data.get("confidence")) == said]
    if not told:
        return stands
    named = told[-1]
    names = _READ if is_corrected else (*_READ, *_SAID)
    read = {name: named.data[name] for name in names if name in named.data}
    return DiagnosisRecord.model_validate({**stands.model_dump(), **read, "at": named.at})


def _why(why: str, kind: str) -> str:
    if kind == "diagnosis.corrected":
        return "a person said that it was wrong" + (f": {why}" if why else "")
    return why or "asked again"
