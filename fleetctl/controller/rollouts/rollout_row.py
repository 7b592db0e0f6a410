"""Rollouts as they are stored: one row each, the whole rollout as a document."""

from __future__ import annotations

import sqlalchemy as sa

from fleetctl.controller.rollouts.rollout import Rollout, RolloutState
from fleetctl.controller.tables import rollouts

_ENDS = [state.value for state in RolloutState if state.is_end]
MAX_KEPT = 1000  # that have ended
MAX_LISTED = 200


def list_rollouts(connection: sa.Connection, pool: str | None = None, limit: int = MAX_LISTED) -> list[Rollout]:
    """The newest first."""
    query = sa.select(rollouts.c.document).order_by(rollouts.c.started_at.desc(), rollouts.c.id).limit(limit)
    if pool is not None:
        query = query.where(rollouts.c.pool == pool)
    return [Rollout.from_json(document) for document in connection.execute(query).scalars()]


def list_under_way(connection: sa.Connection) -> list[Rollout]:
    """Those without an end, by pool."""
    query = sa.select(rollouts.c.document).where(rollouts.c.state.not_in(_ENDS)).order_by(rollouts.c.pool)
    return [Rollout.from_json(document) for document in connection.execute(query).scalars()]


def get_under_way(connection: sa.Connection, pool: str) -> Rollout | None:
    """The rollout of the pool that has no end yet."""
    return next((one for one in list_under_way(connection) if one.pool == pool), None)


def put_rollout(connection: sa.Connection, rollout: Rollout) -> None:
    """Store the rollout, in place of what there was of it."""
    values = {"state": rollout.state.value, "document": rollout.to_json()}
    changed = connection.execute(sa.update(rollouts).where(rollouts.c.id == rollout.id).values(**values))
    if changed.rowcount == 0:
        row = {"id": rollout.id, "pool": rollout.pool, "started_at": rollout.started_at, **values}
        connection.execute(sa.insert(rollouts).values(**row))
        _prune(connection)


def earlier_revision(connection: sa.Connection, pool: str, revision: str) -> str:
    """What a rollback of a pool of this revision goes to: where its last rollout to it came from. Empty: not known."""
    done = (rollouts.c.pool == pool) & (rollouts.c.state == RolloutState.DONE.value)
    query = sa.select(rollouts.c.document).where(done).order_by(rollouts.c.started_at.desc(), rollouts.c.id)
    for document in connection.execute(query.limit(MAX_LISTED)).scalars():
        if document["to_revision"] == revision and not document["is_return"]:
            return str(document["from_revision"])
    return ""


def _prune(connection: sa.Connection) -> None:
    kept = sa.select(rollouts.c.id).where(rollouts.c.state.in_(_ENDS))
    old = kept.order_by(rollouts.c.started_at.desc()).offset(MAX_KEPT)
    names = connection.execute(old).scalars().all()
    if names:
        connection.execute(sa.delete(rollouts).where(rollouts.c.id.in_(names)))
