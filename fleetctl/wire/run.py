"""Runs of runbooks and of single commands, and what people tell them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from fleetctl.wire.base import Body, Wire
from fleetctl.wire.identity import NO_CLAIM


class RunStatus(StrEnum):
    """How far a run is; `runbooks.run.RunStatus` has the same members."""

    PROPOSED = "proposed"  # waits for an approval
    APPROVED = "approved"  # will start
    RUNNING = "running"
    VERIFYING = "verifying"  # steps done; waiting for the declared expectation
    UNDOING = "undoing"
    SUCCEEDED = "succeeded"  # terminal: done and verified
    UNDONE = "undone"  # terminal: did not help or failed, and was undone
    FAILED = "failed"  # terminal: failed and could not be undone
    DENIED = "denied"  # terminal: a person said no
    REFUSED = "refused"  # terminal: a guard said no
    EXPIRED = "expired"  # terminal: nobody answered in time
    CANCELLED = "cancelled"  # terminal: stopped between steps by a person

    @property
    def is_terminal(self) -> bool:
        """At its one end."""
        return self in TERMINAL_RUN_STATUSES


TERMINAL_RUN_STATUSES = frozenset(
    {
        RunStatus.SUCCEEDED,
        RunStatus.UNDONE,
        RunStatus.FAILED,
        RunStatus.DENIED,
        RunStatus.REFUSED,
        RunStatus.EXPIRED,
        RunStatus.CANCELLED,
    }
)


IN_COMMAND = frozenset({"node", "like", "instance", "url", "table_version"})
"""What a receipt has that its command says already, or that is for programs: no person is told it."""


class StepRecord(Wire):
    """One command of a run. Before it began, `receipt` holds the prediction and the guard's ruling."""

    index: int  # from 0
    phase: Literal["do", "undo"]  # undo: of what takes it back
    title: str  # what it does, in words
    command: str  # as it is typed after `fleetctl`
    target: str = ""  # in its written form: node-2, pool/decode; empty for prose
    status: Literal["pending", "running", "done", "failed", "skipped"]  # where it stands
    attempts: int = 0  # begun ones
    started_at: float | None = None  # when the first began
    ended_at: float | None = None  # when the last ended
    receipt: dict[str, Any] = Field(default_factory=dict)  # what it said when it ended
    error: str = ""  # why it failed


class Approval(Wire):
    """One person's yes to a proposal."""

    by: str  # who
    at: float  # when
    comment: str = ""  # what they said


class Run(Wire):
    """One execution of a runbook or of a single command."""

    id: str  # unique
    runbook: str  # its page; `action`: a single command
    title: str  # what it does, in words
    status: RunStatus  # where it stands
    inputs: dict[str, str]  # of the page
    incident_id: str | None = None  # that it is for
    reason: str = ""  # why it was asked for
    created_at: float  # when it was asked for
    updated_at: float  # when it last changed
    dry_run: bool = False  # nothing is done
    requested_by: str = ""  # who, or controller
    decided_by: str | None = None  # who said yes or no
    decided_at: float | None = None  # when
    expires_at: float | None = None  # when the proposal is void
    steps: list[StepRecord] = Field(default_factory=list)  # in their order
    targets: list[str] = Field(default_factory=list)  # what it changes: node-2, pool/decode, fleet
    unasked: bool = False  # automation lets it start, without a person
    approval: str = ""  # "1 of 2: ann; needs one more approver"; empty where one answer settles it
    approvals: list[Approval] = Field(default_factory=list)  # those it has
    held: str = ""  # of one that is proposed: what keeps it from acting now, unless a person overrides it
    prediction: str = ""  # TTFT, queue and KV once it is done, simulated; or why they are not predicted
    override: str = ""  # why a person let it act all the same
    verification: str = ""  # what was waited for to see that it helped
    error: str = ""  # why it did not succeed
    paused_by: str = ""  # who keeps it from beginning its next step
    cancelled_by: str = ""  # who asked that it stops before its next step
    question: str = ""  # what a person is asked now; an approval answers it


class RunRequest(Body):
    """Start a runbook."""

    runbook: str = Field(max_length=100)
    inputs: dict[str, str] = Field(default_factory=dict, max_length=50)
    incident_id: str | None = Field(default=None, max_length=100)
    reason: str = Field(default="", max_length=2000)
    requested_by: str = Field(default=NO_CLAIM, max_length=200)
    dry_run: bool = False
    approve: bool = False  # the requester approves it too (`--yes`)
    override: str = Field(default="", max_length=2000)  # why to act against a freeze; recorded
    idempotency_key: str | None = Field(default=None, max_length=200)


class ActionRequest(Body):
    """Carry out one fleetctl command as a run of one step: the same journal and guards as a runbook's."""

    command: str = Field(max_length=2000)  # "drain node-2 --deadline 30s"
    reason: str = Field(default="", max_length=2000)
    requested_by: str = Field(default=NO_CLAIM, max_length=200)
    dry_run: bool = False
    override: str = Field(default="", max_length=2000)  # as of RunRequest
    idempotency_key: str | None = Field(default=None, max_length=200)


class ApprovalRequest(Body):
    """A person's answer to a proposed run. The first one wins, unless it needs several approvals."""

    decision: Literal["approve", "deny"]
    by: str = Field(default=NO_CLAIM, max_length=200)
    comment: str = Field(default="", max_length=2000)
    override: str = Field(default="", max_length=2000)  # as of RunRequest


class CancelRequest(Body):
    """Who stops a run."""

    by: str = NO_CLAIM


class RunOrder(Body):
    """What a person tells a run that goes on."""

    by: str = Field(default=NO_CLAIM, max_length=200)
    comment: str = Field(default="", max_length=2000)
