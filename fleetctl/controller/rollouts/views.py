"""Rollouts for the API."""

from __future__ import annotations

from dataclasses import asdict

from fleetctl.controller.rollouts.gate import GateReport
from fleetctl.controller.rollouts.rollout import Rollout, RolloutState
from fleetctl.controller.rollouts.rollouts import RolloutStatus
from fleetctl.wire.rollout import Rollout as WireRollout
from fleetctl.wire.rollout import RolloutChange, RolloutSignal


def rollout_view(rollout: Rollout, status: RolloutStatus | None = None, held: str = "") -> WireRollout:
    """A rollout; with what is seen of its pool while it is under way. `held`: why the pool's exchange stands still."""
    report = status.seen.report if status is not None else None
    view = WireRollout(
        id=rollout.id,
        pool=rollout.pool,
        state=rollout.state.value,
        from_revision=rollout.from_revision,
        to_revision=rollout.to_revision,
        back_to=rollout.back_to,
        steps=list(rollout.steps),
        step=rollout.step,
        share=rollout.share,
        gated=rollout.is_gated,
        by_hand=rollout.by_hand,
        needs_person=rollout.needs_person,
        why=rollout.why,
        signals=signal_views(report) if report is not None else [],
        override=rollout.override,
        started_at=rollout.started_at,
        started_by=rollout.started_by,
        reason=rollout.reason,
        updated_at=rollout.updated_at,
        updated_by=rollout.updated_by,
        history=[RolloutChange(**{**asdict(one), "state": one.state.value}) for one in rollout.history],
    )
    if status is None:
        return view
    new = [node for node in status.seen.nodes if node.revision == rollout.to_revision]
    counts = {
        "new_nodes": len(new),
        "new_ready": sum(node.is_ready for node in new),
        "other_nodes": len(status.seen.nodes) - len(new),
    }
    waits = waits_for(status)
    return view.model_copy(update={**counts, "waits_for": f"{waits}; held: {held}" if held else waits})


def signal_views(report: GateReport) -> list[RolloutSignal]:
    """The gate's signals with their numbers."""
    return [
        RolloutSignal(
            name=one.name,
            verdict=one.verdict.value,
            words=one.words,
            missing=one.missing,
            new_bad=one.new.bad,
            new_total=one.new.total,
            stable_bad=one.stable.bad,
            stable_total=one.stable.total,
            more_requests=one.more_requests,
            fail_e=one.harm_e,
            pass_e=one.fine_e,
        )
        for one in report.signals
    ]


def waits_for(status: RolloutStatus) -> str:
    """What comes next, or what it waits for, for the one who is on call."""
    rollout, seen, wanted = status.rollout, status.seen, status.wanted
    new = [node for node in seen.nodes if node.revision == rollout.to_revision]
    num_ready = sum(node.is_ready for node in new)
    if rollout.state is RolloutState.ROLLING_BACK:
        left = ", ".join(node.name for node in new)
        return f"{left} still to be stopped" if left else f"nodes of {rollout.back_to} to get ready"
    if rollout.state is RolloutState.PAUSED:
        return f"a person: fleetctl rollout resume, promote or rollback {rollout.pool}"
    if seen.frozen:
        return f"the end of a freeze: {seen.frozen}"
    if rollout.is_last_step:
        others = len(seen.nodes) - len(new)
        return f"{num_ready} of {wanted.num_current} nodes of the new revision ready, {others} others to leave"
    if num_ready < wanted.num_current:
        failed = f"; {seen.start_failures} starts failed: {seen.start_error}" if seen.start_failures else ""
        return f"{num_ready} of {wanted.num_current} nodes of the new revision ready{failed}"
    if rollout.by_hand:
        return f"a person: fleetctl rollout promote {rollout.pool}"
    if not rollout.is_gated:
        return "the shortest time of a step"
    return seen.report.words if seen.report is not None else "the gate's first look"
