"""Alertmanager's notices in the database: one transaction takes a whole notification, or nothing of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
import structlog
from pydantic import TypeAdapter, ValidationError

from fleetctl.controller.alertmanager.external_alert import ExternalAlert, apply_notice, notice_key
from fleetctl.controller.alertmanager.webhook_payload import Notification
from fleetctl.controller.tables import external_alerts, webhook_notices
from fleetctl.kit.errors import UnreachableError

log = structlog.get_logger()

KEEP_S = 14 * 86400.0  # longer than Alertmanager remembers what it sent (twice repeat_interval)
_CHUNK = 500  # bound values of one statement
_DOCUMENT = TypeAdapter(ExternalAlert)
T = TypeVar("T")


class ExternalAlertChange(NamedTuple):
    """An alert before (None: it is new) and after."""

    before: ExternalAlert | None
    after: ExternalAlert


@dataclass(frozen=True, slots=True)
class RecordedNotification:
    """What a notification changed, counted as its answer tells it."""

    changes: tuple[ExternalAlertChange, ...]  # one for each alert that is different now, repeats included
    new: int
    repeated: int


def take_notification(
    connection: sa.Connection, notification: Notification, now: float, own: Collection[str], *, max_active: int
) -> RecordedNotification:
    """Store the notification's notices and what follows for their alerts. `own`: fingerprints of our own alerts.

    Raises UnreachableError, and stores nothing, when more than `max_active` alerts would fire.
    """
    before = _load(connection, [one.fingerprint for one in notification.notices])
    keys = [notice_key(notification.group_key, one) for one in notification.notices]
    known = _known_keys(connection, keys)
    after = dict(before)
    first: dict[str, dict[str, Any]] = {}
    repeats: dict[str, int] = {}
    for key, notice in zip(keys, notification.notices, strict=True):
        after[notice.fingerprint] = apply_notice(
            after.get(notice.fingerprint),
            notice,
            now,
            alertmanager=notification.external_url,
            is_echo=notice.fingerprint in own,
        )
        if key in known or key in first:
            repeats[key] = repeats.get(key, 0) + 1
            continue
        first[key] = {
            "key": key,
            "group_key": notification.group_key,
            "fingerprint": notice.fingerprint,
            "starts_ns": notice.starts_ns,
            "status": "firing" if notice.is_firing else "resolved",
            "first_at": now,
            "last_at": now,
            "times": 1,
        }
    changes = [ExternalAlertChange(before.get(key), one) for key, one in after.items() if one != before.get(key)]
    _refuse_when_full(connection, changes, max_active)
    _save(connection, [one.after for one in changes])
    if first:
        connection.execute(sa.insert(webhook_notices), list(first.values()))
    if repeats:
        connection.execute(
            sa.update(webhook_notices)
            .where(webhook_notices.c.key == sa.bindparam("of_key"))
            .values(last_at=now, times=webhook_notices.c.times + sa.bindparam("more")),
            [{"of_key": key, "more": more} for key, more in repeats.items()],
        )
    return RecordedNotification(tuple(changes), len(first), sum(repeats.values()))


def save_alerts(connection: sa.Connection, changes: Sequence[ExternalAlertChange]) -> list[ExternalAlertChange]:
    """Store those whose alert is still as it was before the change. Returns them."""
    stored = _load(connection, [one.after.fingerprint for one in changes])
    kept = [one for one in changes if stored.get(one.after.fingerprint) == one.before]
    _save(connection, [one.after for one in kept])
    return kept


def list_active(connection: sa.Connection, resolved_after: float) -> list[ExternalAlert]:
    """Those that fire, and those that ended since."""
    query = sa.select(external_alerts.c.document).where(
        sa.or_(external_alerts.c.is_firing, external_alerts.c.heard_at > resolved_after)
    )
    return [found for (document,) in connection.execute(query) if (found := _decode(document)) is not None]


def prune(connection: sa.Connection, now: float) -> int:
    """Forget notices not repeated for `KEEP_S`, and alerts that ended so long ago. Returns how many rows went."""
    notices = connection.execute(sa.delete(webhook_notices).where(webhook_notices.c.last_at < now - KEEP_S))
    ended = sa.and_(external_alerts.c.heard_at < now - KEEP_S, sa.not_(external_alerts.c.is_firing))
    alerts = connection.execute(sa.delete(external_alerts).where(ended))
    return notices.rowcount + alerts.rowcount


def _refuse_when_full(connection: sa.Connection, changes: Sequence[ExternalAlertChange], max_active: int) -> None:
    more = sum(one.after.is_firing - bool(one.before and one.before.is_firing) for one in changes)
    if more <= 0:
        return
    firing = connection.execute(
        sa.select(sa.func.count()).select_from(external_alerts).where(external_alerts.c.is_firing)
    ).scalar_one()
    if firing + more > max_active:
        # Not 4xx: once others end there is room, and what is answered with 4xx is lost.
        raise UnreachableError(
            f"{firing} alerts from Alertmanager fire here, and {more} more would pass webhook.max_active={max_active}",
            remedy="route fewer alerts here, or raise webhook.max_active",
        )


def _load(connection: sa.Connection, fingerprints: Sequence[str]) -> dict[str, ExternalAlert]:
    found: dict[str, ExternalAlert] = {}
    for part in _chunks(sorted(set(fingerprints))):
        rows = connection.execute(sa.select(external_alerts.c.document).where(external_alerts.c.fingerprint.in_(part)))
        for (document,) in rows:
            if (alert := _decode(document)) is not None:
                found[alert.fingerprint] = alert
    return found


def _known_keys(connection: sa.Connection, keys: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for part in _chunks(keys):
        found |= set(connection.scalars(sa.select(webhook_notices.c.key).where(webhook_notices.c.key.in_(part))))
    return found


def _save(connection: sa.Connection, alerts: Sequence[ExternalAlert]) -> None:
    if not alerts:
        return
    for part in _chunks([one.fingerprint for one in alerts]):
        connection.execute(sa.delete(external_alerts).where(external_alerts.c.fingerprint.in_(part)))
    connection.execute(
        sa.insert(external_alerts),
        [
            {
                "fingerprint": one.fingerprint,
                "is_firing": one.is_firing,
                "heard_at": one.heard_at,
                "document": _DOCUMENT.dump_python(one, mode="json"),
            }
            for one in alerts
        ],
    )


def _decode(document: Any) -> ExternalAlert | None:
    try:
        return _DOCUMENT.validate_python(document)
    except ValidationError as error:
        # One unreadable row must not keep the controller from starting, nor a new notice from replacing it.
        log.error("external_alert.unreadable", error=str(error.errors()[0]["msg"]))
        return None


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]
