"""How it goes between us and Alertmanager, both ways."""

from __future__ import annotations

from fleetctl.wire.base import Wire


class AlertmanagerState(Wire):
    """What became of our alerts at one Alertmanager, since the controller started. Counts are alerts, resends too."""

    url: str
    sent: int = 0
    failed: int = 0  # in requests that failed; most are tried again
    dropped: int = 0  # never sent: the queue was full, or they waited for too long
    queued: int = 0
    last_success_at: float | None = None
    last_error: str = ""  # empty since the last success


class WebhookState(Wire):
    """Alertmanager's notifications to us since the controller started."""

    accepted: int = 0
    refused: int = 0  # answered with 4xx: lost
    deferred: int = 0  # answered with 503: sent again
    last_at: float | None = None  # the last accepted one
    last_error: str = ""
