"""Whether an incident began with a deploy: a step of a rollout of its pool, shortly before its onset. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.controller.rollouts.rollout import Rollout, RolloutState

LOOK_BACK_S = 1800.0  # as the trees look for a start
# An onset that looks back is dated to a scrape; what began before that did not begin with the deploy.
ONSET_SLACK_S = 15.0
_BRINGS_USERS = frozenset({RolloutState.CANARY, RolloutState.PROMOTING, RolloutState.DONE})


def deploy_before(rollouts: Iterable[Rollout], pool: str, onset: float, *, revision: str = "") -> Rollout | None:
    """The newest rollout of the pool that brought users to its new revision in the half hour before `onset` (Unix
    seconds). One that went back, or was a way back itself, is no deploy to take back.

    `revision`: of the one node that the incident is about; a node of another revision did not change.
    """
    gone = (RolloutState.ROLLED_BACK, RolloutState.ROLLING_BACK, RolloutState.FAILED)
    for rollout in sorted(rollouts, key=lambda one: -one.started_at):
        if rollout.pool != pool or rollout.is_return or rollout.state in gone:
            continue
        if revision not in ("", rollout.to_revision):
            continue
        changes = [one.at for one in rollout.history if one.state in _BRINGS_USERS]
        if any(onset - LOOK_BACK_S <= at <= onset + ONSET_SLACK_S for at in changes):
            return rollout
    return None
