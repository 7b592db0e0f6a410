"""Notifications in the database: written before they are sent, each with one row and one end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
import structlog
from pydantic import TypeAdapter, ValidationError

from fleetctl.controller.notifications.news import RESOLVED
from fleetctl.controller.notifications.notification import Notification, NotificationState
from fleetctl.controller.tables import notifications

log = structlog.get_logger()

_DOCUMENT = TypeAdapter(Notification)
_OPEN = (NotificationState.WAITING.value, NotificationState.HELD.value)
MAX_LIST = 1000


def save_notification(connection: sa.Connection, row: Notification) -> None:
    """Insert or replace it."""
    values: dict[str, Any] = {
        "receiver": row.receiver,
        "state": row.state.value,
        "incident_id": row.incident_id,
        "created_at": row.created_at,
        "ends_thread": int(RESOLVED in row.said),
        "document": _DOCUMENT.dump_python(row, mode="json"),
    }
    changed = connection.execute(sa.update(notifications).where(notifications.c.id == row.id).values(**values))
    if changed.rowcount == 0:
        connection.execute(sa.insert(notifications).values(id=row.id, **values))


def unfinished_notifications(
    connection: sa.Connection, incident_ids: Collection[str], since: float
) -> list[Notification]:
    """What judgement needs: those without an end, those since then, and all of incidents that are open here or there,
    as far as somebody was told of them."""
    ended = (
        sa.select(notifications.c.receiver, notifications.c.incident_id)
        .where(notifications.c.incident_id.is_not(None))
        .group_by(notifications.c.receiver, notifications.c.incident_id)
        .having(sa.func.max(notifications.c.ends_thread) == 0)
        .subquery()
    )
    wanted = sa.or_(
        notifications.c.state.in_(_OPEN),
        notifications.c.created_at > since,
        notifications.c.incident_id.in_(sorted(incident_ids)),
        notifications.c.incident_id.in_(sa.select(ended.c.incident_id)),
    )
    return _read(connection, sa.select(notifications).where(wanted).order_by(notifications.c.seq))


def list_notifications(
    connection: sa.Connection, incident_id: str | None = None, limit: int = MAX_LIST, before: str | None = None
) -> list[Notification]:
    """The newest, oldest first; `before`: only those before the one of this id."""
    query = sa.select(notifications)
    if incident_id is not None:
        query = query.where(notifications.c.incident_id == incident_id)
    if before is not None:  # one that was removed since has none before it: the oldest go first
        seq = sa.select(notifications.c.seq).where(notifications.c.id == before).scalar_subquery()
        query = query.where(notifications.c.seq < seq)
    return _read(connection, query.order_by(notifications.c.seq.desc()).limit(min(limit, MAX_LIST + 1)))[::-1]


def get_notification(connection: sa.Connection, notification_id: str) -> Notification | None:
    """One of them; None: there is none of this id."""
    found = _read(connection, sa.select(notifications).where(notifications.c.id == notification_id))
    return found[0] if found else None


def prune_notifications(connection: sa.Connection, before: float, limit: int) -> int:
    """Remove ended ones that were made before then, at most so many; how many went."""
    old = (
        sa.select(notifications.c.id)
        .where(notifications.c.created_at < before, notifications.c.state.not_in(_OPEN))
        .order_by(notifications.c.created_at)
        .limit(limit)
    )
    return connection.execute(sa.delete(notifications).where(notifications.c.id.in_(old))).rowcount


def _read(connection: sa.Connection, query: sa.Select[Any]) -> list[Notification]:
    found = []
    for row in connection.execute(query):
        try:
            found.append(_DOCUMENT.validate_python(row.document))
        except ValidationError as error:
            log.error("notification.unreadable", notification_id=row.id, error=str(error.errors()[0]["msg"]))
    return found
