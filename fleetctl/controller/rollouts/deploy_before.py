"""Whether an incident began with a deploy: a step of a rollout of its pool, shortly before its onset. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleetctl.controller.rollouts.rollout import Rollout, RolloutState

LOOK_BACK_S = 1800.0  # as the trees look for a start
# An onset that looks back is dated to a scrape; what began before that did not begin with the deploy.
ONSET_SLACK_S = 15.0
GONE = (RolloutState.ROLLED_BACK, RolloutState.ROLLING_BACK, RolloutState.FAILED)
_BRINGS_USERS = frozenset({RolloutState.CANARY, RolloutState.PROMOTING, RolloutState.DONE})


def deploy_before(rollouts: Iterable[Rollout], pool: str, onset: float, *, revision: str = "") -> Rollout | None:
    """The newest rollout of the pool that brought users to its new revision in the half hour before `onset` (Unix
    seconds). One that went back, was taken back since, or was a way back itself, is no deploy to take back.

    `revision`: of the one node that the incident is about; a node of another revision did not change.
    """
    for rollout in sorted(rollouts, key=lambda one: -one.started_at):
        if rollout.pool != pool or rollout.state in GONE:
            continue
        if rollout.is_return:
            return None
        if revision not in ("", rollout.to_revision):
            continue
        if _brought_users(rollout, onset):
            return rollout
    return None


def nothing_to_take_back(rollouts: Sequence[Rollout], pool: str, onset: float) -> str:
    """Why no rollout of the pool can be taken back: the newest of before went back by itself, or there was none."""
    mine = [one for one in rollouts if one.pool == pool and not one.is_return and _brought_users(one, onset)]
    back = max((one for one in mine if one.state in GONE), key=lambda one: one.started_at, default=None)
    ways_back = [one for one in rollouts if one.pool == pool and one.is_return and one.state not in GONE]
    if mine and (way := max(ways_back, key=lambda one: one.started_at, default=None)) is not None:
        newest = max(mine, key=lambda one: one.started_at)
        if newest.started_at <= way.started_at:
            return f"{newest.id} of its pool is taken back by {way.id} already: nothing is left to take back"
    if back is None:
        return "no rollout of its pool within 30 minutes before: nothing to take back"
    return f"{back.id} of its pool is {back.state.value.replace('_', ' ')} already: nothing is left to take back"


def _brought_users(rollout: Rollout, onset: float) -> bool:
    """Whether one of its steps did, in the half hour before."""
    changes = [one.at for one in rollout.history if one.state in _BRINGS_USERS]
    return any(onset - LOOK_BACK_S <= at <= onset + ONSET_SLACK_S for at in changes)
