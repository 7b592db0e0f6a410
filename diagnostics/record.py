"""An incident as JSON: what the controller's API answers, the black box stores, and the post-mortem reads.

Field names are those of the controller's wire types, which this package must not import; unknown keys are
ignored so that an older reader may meet a newer file.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class AlertRecord(_Record):
    """One alert of an incident, as it was last known."""

    fingerprint: str
    name: str
    severity: str = "ticket"
    state: str
    labels: dict[str, str] = Field(default_factory=dict)
    summary: str = ""
    description: str = ""
    value: float | None = None
    active_at: float | None = None
    fired_at: float | None = None
    resolved_at: float | None = None
    source: str = "rules"
    source_url: str = ""


class EvidenceRecord(_Record):
    """One answered question of the tree."""

    question: str
    title: str
    answer: Literal["yes", "no", "unknown"]
    query: str = ""
    value: float | None = None
    threshold: str = ""
    unit: str = ""
    age_s: float | None = None
    why_unknown: str = ""
    speaks: Literal["", "for", "against"] = ""


class DiagnosisRecord(_Record):
    """What the walk named, with its evidence."""

    tree: str
    cause: str | None = None
    title: str = ""
    confidence: str = "unknown"
    evidence: list[EvidenceRecord] = Field(default_factory=list)
    ruled_out: list[str] = Field(default_factory=list)
    not_known: list[str] = Field(default_factory=list)
    at: float = 0.0
    probability: float | None = None
    also: str | None = None
    runner_up: str | None = None
    runner_up_probability: float | None = None
    tells_apart: str = ""
    why_not: dict[str, str] = Field(default_factory=dict)
    onset: float | None = None
    onset_early: float | None = None
    onset_late: float | None = None
    changes: list[str] = Field(default_factory=list)


class StepLine(_Record):
    """One command of a run, and what became of it."""

    index: int
    phase: str = "do"
    title: str = ""
    command: str = ""
    status: str
    attempts: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    receipt: dict[str, Any] = Field(default_factory=dict)
    error: str = ""


class RunRecord(_Record):
    """One run of a page for the incident."""

    id: str
    runbook: str
    title: str = ""
    status: str
    inputs: dict[str, str] = Field(default_factory=dict)
    reason: str = ""
    created_at: float
    updated_at: float
    requested_by: str = ""
    decided_by: str | None = None
    decided_at: float | None = None
    steps: list[StepLine] = Field(default_factory=list)
    verification: str = ""
    error: str = ""


class EventRecord(_Record):
    """One entry of the timeline."""

    seq: int = 0
    at: float
    kind: str
    text: str
    run_id: str | None = None
    node: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class CorrectionRecord(_Record):
    """A person's word that the verdict was wrong."""

    cause: str | None = None
    by: str = ""
    at: float = 0.0
    comment: str = ""
    was: str | None = None


class HandlingRecord(_Record):
    """What people said about the incident."""

    acknowledged_by: str = ""
    acknowledged_at: float | None = None
    assignee: str = ""
    severity_by: str = ""
    silenced_until: float | None = None
    correction: CorrectionRecord | None = None


class IncidentRecord(_Record):
    """The whole incident; times are Unix seconds."""

    id: str
    title: str
    status: str
    severity: str = "ticket"
    scope: dict[str, str] = Field(default_factory=dict)
    opened_at: float
    onset_at: float | None = None  # the first bad sample that was ever told; an alert that fires again forgets its own
    widened_at: float | None = None
    widened_why: str = ""
    part_of: str | None = None
    handling: HandlingRecord = HandlingRecord()
    resolved_at: float | None = None
    alerts: list[AlertRecord] = Field(default_factory=list)
    diagnosis: DiagnosisRecord | None = None
    runs: list[RunRecord] = Field(default_factory=list)
    timeline: list[EventRecord] = Field(default_factory=list)
