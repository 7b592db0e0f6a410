"""Whether the alerts we were told of still fire, asked of Alertmanager itself.

The webhook alone can't tell: an alert that ends while it is silenced, or that `max_alerts` left out, or whose receiver
sends no ends, is never told as resolved. Only an alert that one of our Alertmanagers has listed before is judged by its
absence: others may come from an Alertmanager that we can't ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog

from fleetctl.controller.alertmanager.alertmanager_client import AlertmanagerClient
from fleetctl.controller.alertmanager.external_alert import ended
from fleetctl.controller.alertmanager.external_alerts import ExternalAlerts
from fleetctl.controller.alertmanager.external_store import ExternalAlertChange
from fleetctl.kit.clock import Clock
from fleetctl.kit.errors import FleetctlError

log = structlog.get_logger()

CHECK_EVERY_S = 30.0
ASK_WITHIN_S = 15.0
MISSING_FOR_S = 300.0  # an Alertmanager that was restarted has no alerts until Prometheus sends them again
HEARD_EVERY_S = 3600.0  # how often being listed is worth a write


class ExternalCheck:
    """Ends alerts from outside that no Alertmanager lists any more."""

    def __init__(self, alerts: ExternalAlerts, clients: Sequence[AlertmanagerClient], clock: Clock) -> None:
        self._alerts = alerts
        self._clients = clients
        self._clock = clock
        self._missing_since: dict[str, float] = {}

    async def end_forgotten(self) -> None:
        """End what every Alertmanager has forgotten for `MISSING_FOR_S`. One that does not answer proves nothing."""
        firing = self._alerts.firing()
        if not firing:
            self._missing_since.clear()
            return
        answers = await asyncio.gather(*(self._ask(client) for client in self._clients))
        listed = {fingerprint for answer in answers if answer is not None for fingerprint in answer}
        is_whole = all(answer is not None for answer in answers)
        now = self._clock.now()
        changes: list[ExternalAlertChange] = []
        for alert in firing:
            key = alert.fingerprint
            if key in listed:
                self._missing_since.pop(key, None)
                if not alert.is_listed or now - alert.heard_at > HEARD_EVERY_S:
                    changes.append(ExternalAlertChange(alert, replace(alert, is_listed=True, heard_at=now)))
            elif alert.is_listed and is_whole:
                since = self._missing_since.setdefault(key, now)
                if now - max(since, alert.heard_at) > MISSING_FOR_S:
                    log.info("external_alert.forgotten", alert=alert.labels.get("alertname"), fingerprint=key)
                    changes.append(ExternalAlertChange(alert, ended(alert, now)))
        await self._alerts.change(changes)
        present = {alert.fingerprint for alert in self._alerts.firing()}
        for key in self._missing_since.keys() - present:
            del self._missing_since[key]

    async def _ask(self, client: AlertmanagerClient) -> set[str] | None:
        try:
            async with asyncio.timeout(ASK_WITHIN_S):
                return await client.firing()
        except (FleetctlError, TimeoutError) as error:
            log.info("external_check.unreadable", alertmanager=client.url, error=str(error) or "no answer in time")
            return None
