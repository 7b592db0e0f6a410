"""What keeps automation from acting now, and a person too who does not override it: freezes, and trouble that is over.

A floor or a claim holds for everybody; a restraint gives way to a person's reason, which is recorded with the run. The
others are the hour's budget (`budget.py`) and automation's breaker (`breaker.py`); `Context.restraint_on` asks all.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

from runbooks.fleet_view import FleetView
from runbooks.guard import GuardAnswer, Ruling
from runbooks.ports import Freeze
from runbooks.target import Target, TargetKind

OVERRIDE_REMEDY = "a person who must act all the same gives --override REASON, which is recorded"


def judge_freezes(targets: Iterable[Target], fleet: FleetView, freezes: Sequence[Freeze] | None, now: float) -> Ruling:
    """Whether a freeze in force at `now` (Unix seconds) covers one of the targets, or may cover it."""
    if freezes is None:
        return Ruling(GuardAnswer.UNKNOWN, "could not look whether the fleet is frozen")
    targets = tuple(targets)
    for freeze in freezes:
        if freeze.is_in_force(now) and any(_covers(freeze, target, fleet) for target in targets):
            return Ruling(GuardAnswer.NO, freeze_text(freeze))
    return Ruling(GuardAnswer.YES, "not frozen")


def judge_cleared(cleared_at: float | None) -> Ruling:
    """Whether what an incident's run would treat may still be there: a fleet that is well again is only harmed."""
    if cleared_at is None:
        return Ruling(GuardAnswer.YES, "an alert of its incident stands, or that is not known")
    when = dt.datetime.fromtimestamp(cleared_at, dt.UTC).strftime("%H:%M:%SZ")
    return Ruling(GuardAnswer.NO, f"every alert of its incident has cleared since {when}: what it would treat is over")


def freeze_text(freeze: Freeze) -> str:
    """The freeze in a sentence: what, until when, by whom and why. Times in UTC."""
    where = "the fleet is" if freeze.pool is None else f"pool {freeze.pool} is"
    until = "until it is ended" if freeze.expires_at is None else f"until {_utc(freeze.expires_at)}"
    return f"{where} frozen {until} by {freeze.made_by} ({freeze.id}): {freeze.reason}"


def _covers(freeze: Freeze, target: Target, fleet: FleetView) -> bool:
    """A target that may belong to the pool counts as if it did."""
    if target.kind is TargetKind.ROLLOUT:
        return freeze.pool in (None, target.name)
    return freeze.pool is None or fleet.overlap(target, Target(TargetKind.POOL, freeze.pool)) is not False


def _utc(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%d %H:%MZ")
