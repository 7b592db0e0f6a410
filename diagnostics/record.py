"""An incident as JSON: what the controller's API answers, the black box stores, and the post-mortem reads.

Field names are those of the controller's wire types, which this package must not import; unknown keys are
ignored so that an older reader may meet a newer file.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from diagnostics.value_format import format_seconds, format_value


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
    worst_value: float | None = None  # None: it has not changed since it fired


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
    usual: str = ""  # of a yes that compares with the past: the same against this hour of other days
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
    since: float | None = None
    looked_at: float | None = None
    then_found: str = ""
    awaits: str = ""


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
    unasked: bool = False  # asked for by automation, not by a person
    is_apart: bool = False  # not for the incident, and about the same place: asked for by hand, or for another one
    incident_id: str | None = None  # of a run that is apart: the incident that it was for; None: none, or not known


class EventRecord(_Record):
    """One entry of the timeline."""

    seq: int = 0
    at: float
    kind: str
    text: str
    run_id: str | None = None
    node: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class Fate(_Record):
    """How many requests of one node ended so, by the gateway's count."""

    node: str
    outcome: str  # finished, refused, failed, gave_up, client_gone
    count: int


WIDE_BUCKETS_S = 10.0  # above it a histogram's buckets are as wide as what is read from them: 40 to 80 s, 80 to 160
FEW_LEAVE = 0.05  # of all requests: readers close a page, and it is nobody's fault


class Impact(_Record):
    """What the users of the fleet felt between begin and end. None: nobody measured it; it is not zero."""

    requests: int | None = None  # accepted in the incident's time
    finished: int | None = None
    moved: int | None = None  # finished on another node than they began on
    lost: int | None = None  # ended with an error, or given up because nothing answered any more
    left: int | None = None  # their clients hung up before the end of their answer: neither finished nor lost
    refused: int | None = None  # turned away before anything was begun: in no number above
    lost_by_reason: dict[str, int] = Field(default_factory=dict)  # in the gateway's words
    fates: list[Fate] = Field(default_factory=list)
    still_held: int | None = None  # at the end, by nodes that did not answer: their fate is in no number here
    no_gateway_s: float = 0.0  # for so long no gateway answered: what was sent to it then is in no number here
    arrivals_before_per_s: float | None = None  # of all gateways, just before that; None: nobody recorded it
    found_no_gateway: int | None = None  # about so many, estimated: counted by nobody; None: not known
    is_of_fleet: bool = False  # of a part of it: requests are counted of the whole fleet all the same
    gateways: int = 0  # that are scraped
    gateways_silent: int = 0  # of several: so many did not answer for longer than all of them together
    gateways_silent_s: float = 0.0  # the one that was silent longest: who asked it by its own address waited
    waited_for_gateway: int = 0  # about so many waited at one that hung until it went on; counted once they end
    why_not_counted: str = ""  # why requests, moved and lost are None
    # By node, the answers since its last right one to the known prompt; None: none was found wrong, empty: uncounted.
    maybe_wrong: dict[str, int] | None = None
    gateway_ends: int = 0  # of its processes and workers: who connected until the next one served waited at its door
    duplicated: int | None = None
    p99_ttft_before_s: float | None = None
    p99_ttft_worst_s: float | None = None
    p99_ttft_after_s: float | None = None
    p99_at_gateway_worst_s: float | None = None  # with what waited there; of an incident of the whole fleet
    objective_ttft_s: float | None = None  # what the p99 is promised to stay under
    slo_minutes: float | None = None  # for how long a p99 in its place was above that

    @property
    def left_words(self) -> str:
        """How many hung up before the end of their answer; "" where that were no more than a few, as always do."""
        if not self.left or not self.requests or self.left < FEW_LEAVE * self.requests:
            return ""
        return f"{self.left} left before the end of their answer ({self.left / self.requests:.0%})"

    @property
    def refused_words(self) -> str:
        """How many were turned away, and how large a part that is of all who came; "" where nobody was."""
        if not self.refused:
            return ""
        if self.requests is None:
            return f"{self.refused} turned away"
        share = self.refused / (self.refused + self.requests)
        return f"{self.refused} turned away, {f'{share:.0%}' if share >= 0.01 else 'less than 1%'} of all who came"

    @property
    def wrong_words(self) -> str:
        """How many answers may be wrong, and whose; "" where no node was found wrong."""
        if self.maybe_wrong is None:
            return ""
        if not self.maybe_wrong:
            return "answers may be wrong, and nobody counted how many"
        total, nodes = sum(self.maybe_wrong.values()), ", ".join(sorted(self.maybe_wrong))
        return f"up to {total} {'answer' if total == 1 else 'answers'} of {nodes} may be wrong"

    @property
    def no_gateway_words(self) -> str:
        """About how many found no gateway that answered, by what came before and for how long; "" where one did."""
        if not self.no_gateway_s:
            return ""
        gap, count = format_seconds(self.no_gateway_s), self.found_no_gateway
        if count is None or self.arrivals_before_per_s is None:
            return f"no gateway answered for {gap} (how many came then is not known)"
        before = format_value(self.arrivals_before_per_s, "per_second")
        waited = f"about {self.waited_for_gateway} waited until it went on" if self.waited_for_gateway else ""
        if count:
            later = f"; {waited}" if waited else ""
            words = f"{before} came before, for {gap}; counted by nobody"
            return f"about {count} more found no gateway that answered ({words}){later}"
        if waited:
            return f"no gateway answered for {gap} ({waited})"
        if round(self.arrivals_before_per_s * self.no_gateway_s):
            return f"no gateway answered its controller for {gap} (but requests ended there as before)"
        return f"no gateway answered for {gap} ({before} came before)"

    @property
    def silent_words(self) -> str:
        """That some of several gateways answered nobody, in no count until they go on; "" where all did."""
        if not self.gateways_silent:
            return ""
        silent = f"{self.gateways_silent} of {self.gateways} gateways did not answer"
        return f"{silent} for {format_seconds(self.gateways_silent_s)} (who asked there waited, or asked another)"

    @property
    def door_words(self) -> str:
        """What no count has of a gateway that ended; "" where none did."""
        if not self.gateway_ends:
            return ""
        times = "once" if self.gateway_ends == 1 else f"{self.gateway_ends} times"
        # A worker's door stays open: the next one serves who knocked. That of the whole gateway is shut.
        found = "found none, or waited at its door" if self.no_gateway_s else "waited at its door"
        return f"the gateway or a worker of it ended {times}: who connected then {found}, uncounted"


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
    clock_at: float | None = None  # since when its level's clock runs, where it came back; None: since it was opened
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
    around: list[EventRecord] = Field(default_factory=list)  # what else happened to the place, shortly before and then
