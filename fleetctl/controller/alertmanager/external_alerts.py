"""The alerts that Alertmanager told us of, in memory as they are in the database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from alerts.evaluation.alert import RESOLVED_KEPT_S
from diagnostics.incident import FiredAlert
from fleetctl.controller.alertmanager.external_alert import ExternalAlert
from fleetctl.controller.alertmanager.external_scope import FleetMap, as_fired
from fleetctl.controller.alertmanager.external_store import (
    ExternalAlertChange,
    RecordedNotification,
    list_active,
    prune,
    save_alerts,
    take_notification,
)
from fleetctl.controller.alertmanager.webhook_payload import Notification
from fleetctl.controller.database import Database
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.kit.clock import Clock
from fleetctl.settings.alertmanager import WebhookSettings

PRUNE_EVERY_S = 3600.0


class ExternalAlerts:
    """Owner of their state. `record_notification` is durable when it returns; the next tick makes incidents of it."""

    def __init__(
        self,
        database: Database,
        fleet: Fleet,
        clock: Clock,
        settings: WebhookSettings,
        own_fingerprints: Callable[[], Collection[str]],
    ) -> None:
        """`own_fingerprints`: Alertmanager's fingerprints of the alerts that we send it ourselves."""
        self._database = database
        self._fleet = fleet
        self._clock = clock
        self._settings = settings
        self._own_fingerprints = own_fingerprints
        self._alerts: dict[str, ExternalAlert] = {}
        self._untold: list[tuple[ExternalAlert, str]] = []
        self._pruned_at = 0.0

    async def load(self) -> None:
        """Take up what the database has."""
        since = self._clock.now() - RESOLVED_KEPT_S
        stored = await self._database.read(lambda c: list_active(c, since))
        self._alerts = {one.fingerprint: one for one in stored}

    async def record_notification(self, notification: Notification) -> RecordedNotification:
        """Store the notification. A notice that came before changes nothing.

        Raises UnreachableError when too many alerts fire, and what the database raises: then nothing was taken.
        """
        now = self._clock.now()
        own = frozenset(self._own_fingerprints())
        limit = self._settings.max_active
        taken = await self._database.write(lambda c: take_notification(c, notification, now, own, max_active=limit))
        self._learn(taken.changes)
        if now - self._pruned_at > PRUNE_EVERY_S:
            self._pruned_at = now
            await self._database.write(lambda c: prune(c, now))
        return taken

    def firing(self) -> list[ExternalAlert]:
        """As they are in Alertmanager, our own echoes too."""
        return [one for one in self._alerts.values() if one.is_firing]

    async def change(self, changes: Sequence[ExternalAlertChange]) -> None:
        """Store changes that no notification told of; not those of alerts that a notification changed meanwhile."""
        if changes:
            self._learn(await self._database.write(lambda c: save_alerts(c, changes)))

    def alerts(self) -> list[FiredAlert]:
        """Firing, unknown (not heard of for long), and resolved within the last 15 minutes; none of our own."""
        now = self._clock.now()
        self._drop_old(now)
        if not self._alerts:
            return []  # the map costs more than all else here, and is asked for each second
        fleet = self.fleet_map()
        return [as_fired(one, fleet, self._settings, now) for one in self._alerts.values() if not one.is_echo]

    def take_changes(self) -> list[tuple[FiredAlert, str]]:
        """Each alert that began or ended since the last call, with its state before. One that was never seen to fire
        did not end for anybody here."""
        untold, self._untold = self._untold, []
        if not untold:
            return []
        now, fleet = self._clock.now(), self.fleet_map()
        return [
            (as_fired(one, fleet, self._settings, now), previous)
            for one, previous in untold
            if one.is_firing or one.was_firing
        ]

    def labels_of(self, fingerprint: str) -> dict[str, str] | None:
        """The labels in Alertmanager of the alert that has this fingerprint here; None when it is not from there."""
        alert = self._alerts.get(fingerprint.removeprefix("am-"))
        return None if alert is None else dict(alert.labels)

    def fleet_map(self) -> FleetMap:
        """What of the fleet an alert's label may name, as the fleet is now."""
        return FleetMap.of(self._fleet.nodes.values())

    def _learn(self, changes: Sequence[ExternalAlertChange]) -> None:
        for before, after in changes:
            known = self._alerts.get(after.fingerprint)
            # Two notifications may be answered in another order than they were stored in.
            if known is not None and (known.revision, known.heard_at) > (after.revision, after.heard_at):
                continue
            self._alerts[after.fingerprint] = after
            was_firing = before is not None and before.is_firing
            if not after.is_echo and (after.is_firing != was_firing or _began_again(before, after)):
                self._untold.append((after, "firing" if was_firing else "inactive"))

    def _drop_old(self, now: float) -> None:
        for one in list(self._alerts.values()):
            if one.resolved_at is not None and now - one.resolved_at > RESOLVED_KEPT_S:
                del self._alerts[one.fingerprint]


def _began_again(before: ExternalAlert | None, after: ExternalAlert) -> bool:
    return before is not None and after.is_firing and before.is_firing and after.revision != before.revision
