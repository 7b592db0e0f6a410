"""A run: one runbook page (or one command) with its inputs filled in, and how far it got. Pure state.

A run holds all it needs, so that a page that is edited or removed meanwhile changes nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from runbooks.approval import Approvals
from runbooks.command import parse_command
from runbooks.errors import BadCommandError, RunbookError
from runbooks.ports import Receipt
from runbooks.target import Target, TargetKind
from runbooks.verb import Action, Verify

ACTION = "action"
"""The `runbook` of a run that is one command and no page."""

ASK = "ask"
"""The verb that asks a person."""

Phase = Literal["do", "undo"]


class RunStatus(StrEnum):
    """The controller's `fleetctl.wire.run.RunStatus` has the same members."""

    PROPOSED = "proposed"  # waits for an approval
    APPROVED = "approved"  # will start; holds its target nodes from here on
    RUNNING = "running"
    VERIFYING = "verifying"  # steps done; waiting for the declared expectation
    UNDOING = "undoing"
    SUCCEEDED = "succeeded"  # terminal: done and verified
    UNDONE = "undone"  # terminal: did not help or failed, and was undone
    FAILED = "failed"  # terminal: failed and could not be undone
    DENIED = "denied"  # terminal: a person said no
    REFUSED = "refused"  # terminal: a guard said no before anything was done
    EXPIRED = "expired"  # terminal: nobody answered in time
    CANCELLED = "cancelled"  # terminal: stopped between steps by a person

    @property
    def is_terminal(self) -> bool:
        """At its one end."""
        return not TRANSITIONS[self]

    @property
    def is_active(self) -> bool:
        """Approved and not at its end: it holds its targets."""
        return self in ACTIVE


_R = RunStatus

TRANSITIONS: Mapping[RunStatus, frozenset[RunStatus]] = MappingProxyType(
    {
        _R.PROPOSED: frozenset({_R.APPROVED, _R.DENIED, _R.EXPIRED, _R.CANCELLED, _R.REFUSED}),
        _R.APPROVED: frozenset({_R.RUNNING, _R.REFUSED, _R.CANCELLED}),
        _R.RUNNING: frozenset({_R.VERIFYING, _R.SUCCEEDED, _R.UNDOING, _R.FAILED, _R.REFUSED, _R.CANCELLED}),
        _R.VERIFYING: frozenset({_R.SUCCEEDED, _R.UNDOING, _R.FAILED, _R.CANCELLED}),
        _R.UNDOING: frozenset({_R.UNDONE, _R.FAILED}),
        **{
            end: frozenset()
            for end in (_R.SUCCEEDED, _R.UNDONE, _R.FAILED, _R.DENIED, _R.REFUSED, _R.EXPIRED, _R.CANCELLED)
        },
    }
)
ACTIVE = frozenset({_R.APPROVED, _R.RUNNING, _R.VERIFYING, _R.UNDOING})
ENDED_BY_ITSELF = frozenset({_R.SUCCEEDED, _R.UNDONE, _R.FAILED})
"""Ends that say whether the run helped."""
FIRST = frozenset({_R.PROPOSED, _R.APPROVED, _R.REFUSED, _R.SUCCEEDED})
"""Statuses a run may be created in; SUCCEEDED only as a dry run."""


class StepStatus(StrEnum):
    """How far one step is; moves are in `STEP_TRANSITIONS`."""

    PENDING = "pending"
    RUNNING = "running"  # begun, and its end is not known: run again after a crash
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"  # will not be run: `error` or the receipt says why


STEP_TRANSITIONS: Mapping[StepStatus, frozenset[StepStatus]] = MappingProxyType(
    {
        StepStatus.PENDING: frozenset({StepStatus.RUNNING, StepStatus.SKIPPED}),
        StepStatus.RUNNING: frozenset({StepStatus.RUNNING, StepStatus.DONE, StepStatus.FAILED, StepStatus.SKIPPED}),
        StepStatus.DONE: frozenset(),
        StepStatus.FAILED: frozenset(),
        StepStatus.SKIPPED: frozenset(),
    }
)


class Condition(NamedTuple):
    """A step is done when the expression's value is not 0. Judged once for all steps of the same `group`."""

    group: int
    expression: str


class Order(NamedTuple):
    """What a person told a run that goes on: pause, resume, skip, or yes or no to a question.

    `phase` and `step`, its index, name the step that a skip or an answer is about.
    """

    at: float
    by: str
    what: str
    phase: str = ""
    step: int = -1
    comment: str = ""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One command of a run. `command` is what a person would type after `fleetctl`."""

    index: int
    phase: Phase
    title: str
    command: str  # empty: an undo item that only says why nothing can be run
    number: int  # of the page's section; an undo item has the number of the step it undoes
    status: StepStatus = StepStatus.PENDING
    attempts: int = 0  # times it was begun, also after crashes
    failures: int = 0  # temporary errors so far
    started_at: float | None = None
    ended_at: float | None = None
    receipt: Receipt = field(default_factory=dict)  # before it ran: the prediction and the guard's answer
    error: str = ""
    when: tuple[Condition, ...] = ()  # all must hold
    wave: int | None = None  # steps of one wave are done at the same time; None: one by one

    @property
    def is_passed_over(self) -> bool:
        """Left out because its condition did not hold, or because a person said so: the run goes on behind it."""
        return self.status is StepStatus.SKIPPED and not self.error

    def skipped(self) -> StepRecord:
        """The step as one that will not be run."""
        return replace(self, status=StepStatus.SKIPPED)

    @property
    def action(self) -> Action:
        """Raises BadCommandError for a command that this fleetctl does not know (any more)."""
        return parse_command(self.command)

    @property
    def target(self) -> Target | None:
        """What the command acts on; None for prose and for a command that this fleetctl does not know."""
        try:
            return self.action.target if self.command else None
        except BadCommandError:
            return None

    @property
    def has_begun(self) -> bool:
        """Something may have been done: it is what an undo is about. One that found itself impossible did nothing."""
        return self.attempts > 0 and self.status is not StepStatus.SKIPPED

    @property
    def is_over(self) -> bool:
        """Done, failed or skipped."""
        return not STEP_TRANSITIONS[self.status]


def taken_out(steps: Iterable[StepRecord]) -> frozenset[str]:
    """Nodes that these steps take out of service, for a while or for good."""
    changes = [step.action.change for step in steps if step.command]
    return frozenset().union(*(change.taken_out for change in changes if change is not None))


@dataclass(frozen=True, slots=True)
class UndoItem:
    """A planned undo command; it becomes a step when the run is undone."""

    number: int
    title: str
    command: str


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a page or command, with all that it needs to go on."""

    id: str
    runbook: str
    title: str
    status: RunStatus
    inputs: Mapping[str, str]
    created_at: float
    updated_at: float
    incident_id: str | None = None
    reason: str = ""
    dry_run: bool = False
    requested_by: str = ""
    decided_by: str | None = None
    decided_at: float | None = None
    expires_at: float | None = None
    steps: tuple[StepRecord, ...] = ()
    verification: str = ""
    error: str = ""
    risk: str = "low"
    verify: Verify | None = None
    undo: tuple[UndoItem, ...] = ()
    targets: tuple[Target, ...] = ()  # what it changes; one active run at a time holds each
    fresh_nodes: tuple[str, ...] = ()  # nodes it starts, which must not exist before
    existing: tuple[Target, ...] = ()  # what must exist before
    idempotency_key: str | None = None
    cancelled_by: str | None = None  # a person asked to stop it before the next step
    unasked: bool = False  # automation asked for it and lets it start, without a person
    override: str = ""  # why a person lets it act against what would keep it from acting
    approvals: Approvals = field(default_factory=Approvals)
    orders: tuple[Order, ...] = ()  # oldest first

    @property
    def is_automatic(self) -> bool:
        """Whether it starts, or started, without a person's word."""
        return self.unasked and self.decided_by in (None, self.requested_by)

    @property
    def paused_by(self) -> str:
        """Who keeps it from beginning its next step; empty: nobody."""
        last = next((order for order in reversed(self.orders) if order.what in ("pause", "resume")), None)
        return last.by if last is not None and last.what == "pause" and not self.status.is_terminal else ""

    def order_on(self, step: StepRecord, *whats: str) -> Order | None:
        """The first order of these kinds that is about the step."""
        return next((o for o in self.orders if o.what in whats and (o.phase, o.step) == (step.phase, step.index)), None)

    @property
    def asking(self) -> StepRecord | None:
        """The step that waits for a person's answer."""
        for step in self.steps:
            if step.status is StepStatus.RUNNING and step.action.verb.name == ASK:
                return None if self.order_on(step, "yes", "no") else step
        return None

    @property
    def question(self) -> str:
        """What a person is asked now; empty: nothing."""
        step = self.asking
        return str(step.action.args["question"]) if step is not None else ""

    @property
    def do_steps(self) -> tuple[StepRecord, ...]:
        """What it does, in order."""
        return tuple(step for step in self.steps if step.phase == "do")

    @property
    def undo_steps(self) -> tuple[StepRecord, ...]:
        """What was planned when its undo began; empty before."""
        return tuple(step for step in self.steps if step.phase == "undo")

    def next_step(self, phase: Phase) -> StepRecord | None:
        """The first step of `phase` that is not over."""
        return next((step for step in self.steps if step.phase == phase and not step.is_over), None)

    def step(self, phase: Phase, index: int) -> StepRecord:
        """The step, which must be there."""
        return next(step for step in self.steps if step.phase == phase and step.index == index)

    @property
    def node(self) -> str | None:
        """The first node that it changes; None for a run that acts on pools and the like."""
        return next((target.name for target in self.targets if target.kind is TargetKind.NODE), None)

    def same_request(self, other: Run) -> bool:
        """Whether both ask for the same thing. Ids, times, who asked and the names of new nodes don't count."""
        return self._request() == other._request()

    def _request(self) -> tuple[Any, ...]:
        inputs = {name: value for name, value in self.inputs.items() if value not in self.fresh_nodes}
        return self.runbook, inputs, self.incident_id, self.dry_run, self.runbook == ACTION and self.title

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; holds every field of `fleetctl.wire.run.Run` but `held` and `prediction`, made when asked for."""
        return {
            "id": self.id,
            "runbook": self.runbook,
            "title": self.title,
            "status": self.status.value,
            "inputs": dict(self.inputs),
            "incident_id": self.incident_id,
            "reason": self.reason,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "dry_run": self.dry_run,
            "requested_by": self.requested_by,
            "decided_by": self.decided_by,
            "decided_at": self.decided_at,
            "expires_at": self.expires_at,
            "unasked": self.unasked,
            "override": self.override,
            "approval": self.approvals.words,
            "approvals": [asdict(one) for one in self.approvals.given],
            "paused_by": self.paused_by,
            "cancelled_by": self.cancelled_by or "",
            "question": self.question,
            "verification": self.verification,
            "error": self.error,
            "targets": [str(target) for target in self.targets],
            "steps": [
                {
                    "index": step.index,
                    "phase": step.phase,
                    "title": step.title,
                    "command": step.command,
                    "target": "" if step.target is None else str(step.target),
                    "status": step.status.value,
                    "attempts": step.attempts,
                    "started_at": step.started_at,
                    "ended_at": step.ended_at,
                    "receipt": dict(step.receipt),
                    "error": step.error,
                }
                for step in self.steps
            ],
        }


class ConflictError(RunbookError):
    """`run` is the run as it stands, so that a caller can show what holds instead."""

    def __init__(self, message: str, run: Run, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.run = run


class HeldError(ConflictError):
    """Something keeps the run from acting now that a person may override."""


class ApprovalRefusedError(ConflictError):
    """This person's approval does not count: they asked for it, or approved it already."""


class AlreadyDecidedError(ConflictError):
    """Somebody answered the proposal first, or it ended."""


class IdempotencyConflictError(ConflictError):
    """The key was used for a different request."""
