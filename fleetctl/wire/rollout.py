"""How a pool gets from one revision to another, and the gate of each step."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fleetctl.wire.base import Wire


class RolloutSignal(Wire):
    """One signal of a rollout's gate in the present step: bad requests of both revisions, and what it waits for."""

    name: str  # what is judged
    verdict: Literal["pass", "fail", "not_enough"]  # not_enough: more requests are waited for
    words: str = ""  # the figures, in words
    missing: str = ""  # what it waits for; empty: nothing
    new_bad: float = 0.0  # requests, in parts where one is bad in part
    new_total: float = 0.0  # requests of the new revision
    stable_bad: float = 0.0  # the same of the revision before
    stable_total: float = 0.0  # requests of it
    more_requests: int | None = None  # of the new revision, at its present shares; None: not to be said
    fail_e: float = 1.0  # e-values: against "no worse than the margin", and against "at least that much worse"
    pass_e: float = 1.0  # the second of them


class RolloutChange(Wire):
    """One transition of a rollout."""

    at: float  # when
    state: str  # into which
    share: float  # that the new revision got
    by: str = ""  # who
    why: str = ""  # in words


class Rollout(Wire):
    """How a pool gets from one revision to another."""

    id: str  # unique
    pool: str  # which pool
    state: Literal["canary", "promoting", "paused", "rolling_back", "done", "rolled_back", "failed"]  # where it stands
    from_revision: str  # that was served before
    to_revision: str  # that is rolled out
    back_to: str = ""  # the revision that it goes, or went, back to
    steps: list[float] = Field(default_factory=list)  # shares of the sessions
    step: int = 0  # index of the present one
    share: float = 0.0  # that the present step gives the new revision
    gated: bool = True  # each step is judged before the next
    by_hand: bool = False  # a person promotes each step
    new_nodes: int | None = None  # wanted nodes of the new revision; None: it has ended
    new_ready: int | None = None  # of them, those that take requests
    other_nodes: int | None = None  # wanted nodes of other revisions
    waits_for: str = ""  # what comes next, or what it waits for; empty: it has ended
    needs_person: bool = False  # nothing happens until somebody says so
    why: str = ""  # of the last transition
    signals: list[RolloutSignal] = Field(default_factory=list)  # of its gate
    override: str = ""  # why it was begun although something was frozen
    started_at: float  # when it began
    started_by: str = ""  # who
    reason: str = ""  # why
    updated_at: float = 0.0  # when it last changed
    updated_by: str = ""  # who changed it
    history: list[RolloutChange] = Field(default_factory=list)  # each change of state

    @property
    def is_ended(self) -> bool:
        """Whether nothing comes after its state."""
        return self.state in ("done", "rolled_back", "failed")
