"""Alertmanager both ways, put together: its notifications in, our alerts out, its silences honoured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from alerts.evaluation.alert import ActiveAlert, alertmanager_fingerprint
from diagnostics.incident import FiredAlert
from fleetctl.controller.alertmanager.alert_sender import AlertSender
from fleetctl.controller.alertmanager.alertmanager_client import AlertmanagerClient
from fleetctl.controller.alertmanager.automation import Automation
from fleetctl.controller.alertmanager.external_alerts import ExternalAlerts
from fleetctl.controller.alertmanager.external_check import CHECK_EVERY_S, ExternalCheck
from fleetctl.controller.alertmanager.outgoing_alert import labels_in_alertmanager
from fleetctl.controller.alertmanager.peer_queue import PeerQueue
from fleetctl.controller.alertmanager.silences import Silences
from fleetctl.controller.alertmanager.webhook import AlertmanagerWebhook
from fleetctl.controller.alertmanager.webhook_auth import WebhookAuth
from fleetctl.controller.config import ControllerConfig
from fleetctl.controller.database import Database
from fleetctl.controller.incidents.alerting import Alerting
from fleetctl.controller.loops import Loops
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.timeline import Timeline
from fleetctl.kit.clock import Clock


class AlertmanagerLink:
    """The parts, and the order they start and stop in."""

    def __init__(
        self,
        config: ControllerConfig,
        own_alerts: Callable[[], Sequence[ActiveAlert]],
        database: Database,
        fleet: Fleet,
        timeline: Timeline,
        clock: Clock,
        metrics: ControllerMetrics,
    ) -> None:
        """`own_alerts`: those of our rules. Raises BadInputError when a certificate file can't be used."""
        self._config = config
        self._own_alerts = own_alerts
        self._clock = clock
        self._metrics = metrics
        self._clients = [AlertmanagerClient(peer) for peer in config.settings.alertmanagers]
        self._sender: AlertSender | None = None
        self.external = ExternalAlerts(database, fleet, clock, config.settings.webhook, self._own_fingerprints)
        self._check = ExternalCheck(self.external, self._clients, clock)
        self.silences = Silences(self._clients, clock)
        self.automation = Automation(self.silences, self.external.fleet_map, self._labels)
        self.webhook = AlertmanagerWebhook(self.external, timeline, clock, metrics, config.settings.webhook)
        self.auth = WebhookAuth(config.settings.webhook, config.token)

    async def start(self, alerting: Alerting, loops: Loops) -> None:
        """Take up the stored alerts; send and read silences on loops of their own, if there is an Alertmanager."""
        await self.external.load()
        if not self._clients:
            return
        self._sender = AlertSender(
            [PeerQueue(client, self._clock, self._metrics) for client in self._clients],
            self._own_alerts,
            self._clock,
            is_held_back=alerting.is_held_back,
            is_gone=alerting.is_of_removed_node,
            external_labels=self._config.settings.external_labels,
            public_url=self._config.public_url,
            resend_s=self._config.settings.delivery.resend_s,
        )
        loops.add("alertmanager", self._config.settings.controller.evaluation_interval_s, self._sender.turn)
        loops.add("external", CHECK_EVERY_S, self._check.turn)
        loops.add("silences", self._config.settings.delivery.silences_interval_s, self.silences.turn)

    async def stop(self) -> None:
        if self._sender is not None:
            await self._sender.stop()
        await asyncio.gather(*(client.close() for client in self._clients))

    @property
    def sender(self) -> AlertSender | None:
        """None without an Alertmanager."""
        return self._sender

    def _own_fingerprints(self) -> set[str]:
        return {alertmanager_fingerprint(self._outgoing_labels(alert.labels)) for alert in self._own_alerts()}

    def _outgoing_labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return labels_in_alertmanager(labels, self._config.settings.external_labels)

    def _labels(self, alert: FiredAlert) -> Mapping[str, str]:
        """The labels that an alert of either kind has in Alertmanager."""
        return self.external.labels_of(alert.fingerprint) or self._outgoing_labels(alert.labels)
