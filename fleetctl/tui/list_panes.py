"""Screens that are a table with a detail: alerts, events, audit."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.tui.alert_view import ALERT_COLUMNS, alert_detail, alert_lines
from fleetctl.tui.cell import Cell
from fleetctl.tui.live_table import LiveTable
from fleetctl.tui.pane import ListPane
from fleetctl.tui.place import Place
from fleetctl.tui.record_view import (
    AUDIT_COLUMNS,
    EVENT_COLUMNS,
    audit_detail,
    audit_lines,
    event_detail,
    event_lines,
)
from fleetctl.tui.snapshot import Part
from fleetctl.wire.alert import Alert
from fleetctl.wire.audit import AuditRow
from fleetctl.wire.timeline import TimelineEntry


class AlertsPane(ListPane):
    """Firing, pending, unknown, silenced."""

    PLACE = Place.ALERTS
    NEEDS = frozenset({Part.ALERTS, Part.EXPLANATION})
    LINES = alert_lines
    LISTS = "alerts"

    def __init__(self) -> None:
        super().__init__(ALERT_COLUMNS, table_id="alert-table", empty="No alert fires, waits or is unknown.")

    @property
    def chosen(self) -> str | None:
        """Fingerprint of the alert under the cursor; None without one."""
        alert: Alert | None = self.table.selected
        return alert.fingerprint if alert is not None else None

    def on_live_table_moved(self, event: LiveTable.Moved) -> None:
        """Its rule is asked for."""
        super().on_live_table_moved(event)
        self.post_message(self.Moved())

    def detail(self, row: Alert) -> Iterable[Cell]:
        """Where it stands, and what it says."""
        return alert_detail(row, self.snapshot, self.now)

    def on_live_table_opened(self, event: LiveTable.Opened) -> None:
        """The incident that it belongs to."""
        event.stop()
        alert: Alert = self.table.selected
        for incident in self.snapshot.incidents:
            if any(one.fingerprint == alert.fingerprint for one in incident.alerts):
                self.post_message(self.Asks(Place.INCIDENT, incident.id))
                return


class EventsPane(ListPane):
    """What happened, the newest first, as it happens."""

    PLACE = Place.EVENTS
    LINES = event_lines
    LISTS = "events"

    def __init__(self) -> None:
        super().__init__(EVENT_COLUMNS, table_id="event-table", empty="No events yet.")

    def detail(self, row: TimelineEntry) -> Iterable[Cell]:
        """All that is kept of it."""
        return event_detail(row)

    def on_live_table_opened(self, event: LiveTable.Opened) -> None:
        """What it is about."""
        event.stop()
        entry: TimelineEntry = self.table.selected
        if entry.incident_id is not None:
            self.post_message(self.Asks(Place.INCIDENT, entry.incident_id))
        elif entry.run_id is not None:
            self.post_message(self.Asks(Place.RUNBOOK, entry.run_id))
        elif entry.node is not None:
            self.post_message(self.Asks(Place.NODE, entry.node))


class AuditPane(ListPane):
    """Who changed what, and why, the newest first."""

    PLACE = Place.AUDIT
    NEEDS = frozenset({Part.AUDIT})
    LINES = audit_lines
    LISTS = "audit"

    def __init__(self) -> None:
        super().__init__(AUDIT_COLUMNS, table_id="audit-table", empty="Nobody changed anything yet.")

    def detail(self, row: AuditRow) -> Iterable[Cell]:
        """All that is kept of it."""
        return audit_detail(row)
