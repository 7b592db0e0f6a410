"""One thing that is wrong, and what people say of it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from fleetctl.wire.alert import Alert
from fleetctl.wire.base import Body, Wire
from fleetctl.wire.diagnosis import Diagnosis
from fleetctl.wire.identity import NO_CLAIM
from fleetctl.wire.notification import Notification
from fleetctl.wire.run import Run
from fleetctl.wire.timeline import TimelineEntry


class IncidentStatus(StrEnum):
    """Where an incident stands."""

    OPEN = "open"  # alerts fire
    MITIGATING = "mitigating"  # a run is acting on it
    RESOLVED = "resolved"  # terminal: alerts clear, and any run ended


class Correction(Wire):
    """A person's word that the verdict was wrong."""

    cause: str | None  # None: none of the known ones
    by: str  # who said so
    at: float  # when
    comment: str = ""  # why
    was: str | None = None  # what the verdict said


class Handling(Wire):
    """What people said about an incident."""

    acknowledged_by: str = ""  # who said that they have seen it
    acknowledged_at: float | None = None  # when
    assignee: str = ""  # who has it
    severity_by: str = ""  # who set the severity; empty: its alerts did
    silence_id: str = ""  # of its silence
    silenced_until: float | None = None  # when that ends
    correction: Correction | None = None  # that its verdict was wrong
    words: str = ""  # who has it, in a few words; empty while nobody does


class Incident(Wire):
    """One thing that is wrong, with all that belongs to it."""

    id: str  # unique
    title: str  # the headline
    status: IncidentStatus  # where it stands
    severity: str  # the gravest of its alerts, or what a person said
    sev: str = ""  # SEV-1 to SEV-4, by severity
    due_at: float | None = None  # when it is to be mitigated by its level's clock
    scope: dict[str, str]  # e.g. {"node": "node-2", "pool": "default"}
    opened_at: float  # when it was opened
    onset_at: float | None = None  # when it began by its alerts' own word
    resolved_at: float | None = None  # when its alerts were clear
    handling: Handling = Handling()  # who has it, and what people said
    impact: str = ""  # what users felt so far, in words; empty: not of a list, and of one that is over its post-mortem
    offence: str = ""  # its node's host fails more than its share, by the record of failures; empty: not known
    no_remedy: str = ""  # why nothing is proposed for it, and what to do by hand
    imported_from: str = ""  # of one that was read from a file: which fleetctl wrote it
    alerts: list[Alert] = Field(default_factory=list)  # that belong to it
    diagnosis: Diagnosis | None = None  # why it is
    runs: list[Run] = Field(default_factory=list)  # that act for it, or are proposed
    timeline: list[TimelineEntry] = Field(default_factory=list)  # the oldest first
    notifications: list[Notification] = Field(default_factory=list)  # who was told, and when
    dashboard: str = ""  # a link to our dashboards of its place and time
    widened_at: float | None = None  # when the scope last became wider
    widened_why: str = ""  # what made it wider
    part_of: str | None = None  # id of the wider incident that explains this one
    postmortem: str | None = None  # path of the Markdown file, once written
    blackbox: str | None = None  # path of the incident file, once written

    @property
    def came_back(self) -> tuple[float, ...]:
        """When it was opened again after it was over; by its timeline, which a list has not."""
        return tuple(entry.at for entry in self.timeline if entry.kind == "incident.reopened")


class IncidentNote(Body):
    """Something said about an incident: seen, or a comment."""

    comment: str = Field(default="", max_length=2000)
    by: str = Field(default=NO_CLAIM, max_length=200)


class AssignRequest(IncidentNote):
    """Whose an incident is."""

    to: str = Field(max_length=200)  # empty: nobody's


class SeverityRequest(IncidentNote):
    """How grave an incident is: critical, page, warning or ticket, or its SEV level."""

    severity: str = Field(min_length=1, max_length=40)


class IncidentSilenceRequest(IncidentNote):
    """Silence the alerts of an incident where they are."""

    for_s: float = Field(gt=0, le=366 * 86400)
    local: bool = False  # as of SilenceRequest


class VerdictRequest(IncidentNote):
    """The verdict was wrong."""

    cause: str = Field(min_length=1, max_length=64)  # the right one; "none": it has no name here
