"""Our alerts to every Alertmanager: what is due goes into each peer's queue, and never waits for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from alerts.evaluation.alert import ActiveAlert, alertmanager_fingerprint
from fleetctl.controller.alertmanager.outgoing_alert import (
    ENDS_AFTER_DELAYS,
    OutgoingAlert,
    SentAlert,
    is_due,
    labels_in_alertmanager,
    outgoing,
)
from fleetctl.controller.alertmanager.peer_queue import PeerQueue
from fleetctl.controller.heartbeat import ANNOTATIONS, LABELS, Vitals
from fleetctl.kit.clock import Clock
from fleetctl.wire.alertmanager import AlertmanagerState

RESEND_S = 60.0


class AlertSender:
    """Decides what is due, and to whom; each peer's queue sends it."""

    def __init__(
        self,
        peers: Sequence[PeerQueue],
        alerts: Callable[[], Sequence[ActiveAlert]],
        clock: Clock,
        *,
        is_held_back: Callable[[ActiveAlert], bool],
        is_gone: Callable[[Mapping[str, str]], bool],
        external_labels: Mapping[str, str],
        public_url: str,
        resend_s: float = RESEND_S,
        docs_url: str | None = None,
        vitals: Vitals | None = None,
    ) -> None:
        """`is_held_back`: nobody is to be called for it, e.g. we drain its node. `is_gone`: its node was taken out.
        `vitals`: when to say that the controller is alive; None: never."""
        self._vitals = vitals
        self._alive_since = clock.now()
        self._peers = peers
        self._alerts = alerts
        self._clock = clock
        self._is_held_back = is_held_back
        self._is_gone = is_gone
        self._external_labels = external_labels
        self._public_url = public_url
        self._resend_s = resend_s
        self._docs_url = docs_url
        self._sent: dict[str, SentAlert] = {}
        self._sent_alive: SentAlert | None = None
        self._gone_at: dict[str, float] = {}

    async def queue_due(self) -> None:
        """Queue what is due. Waits for nothing."""
        now = self._clock.now()
        alerts = self._alerts()
        present = {alert.fingerprint for alert in alerts}
        for known in (self._sent, self._gone_at):
            for fingerprint in known.keys() - present:
                del known[fingerprint]
        due: list[OutgoingAlert] = []
        for alert in alerts:
            sent = self._sent.get(alert.fingerprint)
            form = self._form(alert, now)
            # Once said, it is said until it ends: Alertmanager would else call it resolved by itself.
            if form is None or (sent is None and not form.is_resolved and self._is_held_back(alert)):
                continue
            if is_due(form, sent, now, self._resend_s):
                due.append(form)
                self._sent[alert.fingerprint] = SentAlert(now, form.is_resolved, form.starts_at)
        if (alive := self._alive(now)) is not None and is_due(alive, self._sent_alive, now, self._resend_s):
            due.append(alive)
            self._sent_alive = SentAlert(now, False, alive.starts_at)
        for peer in self._peers:
            peer.offer(due)

    def states(self) -> list[AlertmanagerState]:
        """What became of our alerts at each peer."""
        return [peer.state() for peer in self._peers]

    async def stop(self) -> None:
        """End what is being sent."""
        for peer in self._peers:
            await peer.stop()

    def _alive(self, now: float) -> OutgoingAlert | None:
        """The alert that always fires, while it is true. It is never sent as resolved: it ends by not being sent."""
        if self._vitals is None or self._vitals.why_not:
            return None
        labels = labels_in_alertmanager(LABELS, self._external_labels)
        return OutgoingAlert(
            fingerprint=alertmanager_fingerprint(labels),
            labels=labels,
            annotations=ANNOTATIONS,
            starts_at=self._alive_since,
            ends_at=now + ENDS_AFTER_DELAYS * self._resend_s,
            is_resolved=False,
            generator_url=self._public_url,
        )

    def _form(self, alert: ActiveAlert, now: float) -> OutgoingAlert | None:
        gone_at = None
        if self._is_gone(alert.labels):
            gone_at = self._gone_at.setdefault(alert.fingerprint, now)
        url = f"{self._public_url}/v1/alerts#{alert.fingerprint}"
        return outgoing(
            alert,
            now,
            external_labels=self._external_labels,
            generator_url=url,
            resend_s=self._resend_s,
            ended_at=gone_at,
            docs_url=self._docs_url,
        )
