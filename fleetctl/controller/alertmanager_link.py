"""Alertmanager both ways, put together: its notifications in, our alerts out, its silences honoured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from alerts.evaluation.alert import alertmanager_fingerprint
from alerts.evaluation.engine import RuleEngine
from diagnostics.incident import FiredAlert
from fleetctl.controller.alertmanager.alert_sender import AlertSender
from fleetctl.controller.alertmanager.alertmanager_client import AlertmanagerClient
from fleetctl.controller.alertmanager.automation import Automation
from fleetctl.controller.alertmanager.external_alerts import ExternalAlerts
from fleetctl.controller.alertmanager.external_check import CHECK_EVERY_S, ExternalCheck
from fleetctl.controller.alertmanager.local_silences import LocalSilences
from fleetctl.controller.alertmanager.outgoing_alert import labels_in_alertmanager
from fleetctl.controller.alertmanager.peer_queue import PeerQueue
from fleetctl.controller.alertmanager.silences import Silences
from fleetctl.controller.alertmanager.webhook import AlertmanagerWebhook
from fleetctl.controller.alertmanager.webhook_auth import WebhookAuth
from fleetctl.controller.config import ControllerConfig
from fleetctl.controller.heartbeat import LABELS, Vitals
from fleetctl.controller.incidents.alerting import Alerting
from fleetctl.controller.loops import Loop
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.records import Records


@dataclass(frozen=True, slots=True)
class AlertmanagerInbound:
    """What comes from Alertmanager: alerts by its webhook, and its silences. Without one there are none."""

    clients: tuple[AlertmanagerClient, ...]
    external: ExternalAlerts
    check: ExternalCheck
    silences: Silences
    automation: Automation
    webhook: AlertmanagerWebhook
    auth: WebhookAuth


async def open_inbound(
    config: ControllerConfig, engine: RuleEngine, fleet: Fleet, records: Records, stack: AsyncExitStack
) -> AlertmanagerInbound:
    """With the stored alerts taken up. Raises BadInputError when a certificate file can't be used."""
    settings, clock = config.settings, records.clock
    clients = tuple(AlertmanagerClient(peer) for peer in settings.alertmanagers)
    for client in clients:
        stack.push_async_callback(client.close)
    labels_of = _outgoing_labels(settings.external_labels)
    external = ExternalAlerts(
        records.database,
        fleet,
        clock,
        settings.webhook,
        lambda: {
            alertmanager_fingerprint(labels_of(labels)) for labels in (LABELS, *(a.labels for a in engine.alerts()))
        },
    )
    await external.load()
    silences = Silences(clients, clock, await LocalSilences.opened(records))

    def labels_there(alert: FiredAlert) -> Mapping[str, str]:
        """The labels that an alert of either kind has in Alertmanager."""
        return external.labels_of(alert.fingerprint) or labels_of(alert.labels)

    return AlertmanagerInbound(
        clients=clients,
        external=external,
        check=ExternalCheck(external, clients, clock),
        silences=silences,
        automation=Automation(silences, external.fleet_map, labels_there),
        webhook=AlertmanagerWebhook(
            external, records.timeline, clock, records.metrics, settings.webhook, records.audit
        ),
        auth=WebhookAuth(settings.webhook, config.token),
    )


def open_sender(
    config: ControllerConfig,
    inbound: AlertmanagerInbound,
    alerting: Alerting,
    vitals: Vitals,
    records: Records,
    stack: AsyncExitStack,
) -> AlertSender | None:
    """What sends our alerts to every Alertmanager; None without one."""
    if not inbound.clients:
        return None
    settings = config.settings
    sender = AlertSender(
        [PeerQueue(one, records.clock, records.metrics, tell=records.timeline.append_soon) for one in inbound.clients],
        alerting.own_alerts,
        records.clock,
        is_held_back=alerting.is_held_back,
        is_gone=alerting.is_of_removed_node,
        external_labels=settings.external_labels,
        public_url=config.public_url,
        resend_s=settings.delivery.resend_s,
        docs_url=settings.delivery.docs_url,
        vitals=vitals if settings.delivery.alive_alert else None,
    )
    stack.push_async_callback(sender.stop)
    return sender


def alertmanager_loops(
    config: ControllerConfig,
    inbound: AlertmanagerInbound,
    sender: AlertSender | None,
    may_speak: Callable[[], bool] = lambda: True,
) -> Iterable[Loop]:
    """The loops both ways; none without an Alertmanager. Alerts are sent while `may_speak`."""
    if sender is None:
        return ()
    settings = config.settings

    async def send() -> None:
        if may_speak():
            await sender.queue_due()

    return (
        Loop("alertmanager", settings.controller.evaluation_interval_s, send),
        Loop("external", CHECK_EVERY_S, inbound.check.end_forgotten),
        Loop("silences", settings.delivery.silences_interval_s, inbound.silences.read_silences),
    )


def _outgoing_labels(external_labels: Mapping[str, str]) -> Callable[[Mapping[str, str]], dict[str, str]]:
    return lambda labels: labels_in_alertmanager(labels, external_labels)
