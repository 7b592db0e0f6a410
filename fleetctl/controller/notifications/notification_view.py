"""From a notification to that of the API. No secret is in either."""

from __future__ import annotations

from fleetctl import wire
from fleetctl.controller.notifications.notification import Notification


def notification_view(row: Notification) -> wire.Notification:
    """As the API tells it."""
    return wire.Notification(
        id=row.id,
        receiver=row.receiver,
        kind=row.kind.value,
        state=wire.NotificationState(row.state.value),
        incident_id=row.incident_id,
        subject=row.notice.subject,
        text=row.notice.text,
        thread=row.thread,
        created_at=row.created_at,
        next_at=None if row.state.is_terminal else row.next_at,
        ended_at=row.ended_at,
        attempts=row.attempts,
        held_by=row.held_by.value,
        why=row.why,
        merged_into=row.merged_into,
        escalation=row.escalation,
    )
