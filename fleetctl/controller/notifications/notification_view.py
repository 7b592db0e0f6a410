"""From a notification to that of the API. No secret is in either."""

from __future__ import annotations

from fleetctl.controller.notifications.notification import Notification
from fleetctl.wire.notification import Notification as WireNotification
from fleetctl.wire.notification import NotificationState


def notification_view(row: Notification) -> WireNotification:
    """As the API tells it."""
    return WireNotification(
        id=row.id,
        receiver=row.receiver,
        kind=row.kind.value,
        state=NotificationState(row.state.value),
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
