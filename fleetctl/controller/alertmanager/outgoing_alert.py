"""Our alerts as Alertmanager takes them: which are due, and in what form. Pure: the time comes in.

As Prometheus does: startsAt is when it fired; a firing alert ends four resend delays from now unless it is sent again;
a resolved one is sent again for as long as the rule engine keeps it, which is 15 minutes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from alerts.evaluation.alert import ActiveAlert, alertmanager_fingerprint
from fleetctl.settings.section import LABEL_NAME

ENDS_AFTER_DELAYS = 4
_NAME = re.compile(LABEL_NAME)


@dataclass(frozen=True, slots=True)
class OutgoingAlert:
    """One alert to send. `fingerprint` is Alertmanager's. Times in Unix seconds."""

    fingerprint: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: float
    ends_at: float
    is_resolved: bool
    generator_url: str = ""

    def to_json(self) -> dict[str, Any]:
        """An element of `POST /api/v2/alerts`."""
        return {
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "startsAt": rfc3339(self.starts_at),
            "endsAt": rfc3339(self.ends_at),
            "generatorURL": self.generator_url,
        }


@dataclass(frozen=True, slots=True)
class SentAlert:
    """What was last said of an alert."""

    at: float
    is_resolved: bool
    starts_at: float


def outgoing(
    alert: ActiveAlert,
    now: float,
    *,
    external_labels: Mapping[str, str],
    generator_url: str,
    resend_s: float,
    ended_at: float | None = None,
    docs_url: str | None = None,
) -> OutgoingAlert | None:
    """The alert as it is to be sent now; None for one that never fired.

    An alert whose signal was lost goes on as firing: left alone, Alertmanager would call it resolved. `ended_at`: when
    it ended for a reason the rules do not know, e.g. its node was taken out.
    """
    if alert.fired_at is None or alert.state in ("inactive", "pending"):
        return None
    resolved_at = alert.resolved_at if alert.state == "resolved" else ended_at
    annotations = with_usable_runbook(alert, docs_url)
    if alert.state == "unknown":
        annotations["fleetctl_state"] = "unknown: its signal is lost"
    labels = labels_in_alertmanager(alert.labels, external_labels)
    return OutgoingAlert(
        fingerprint=alertmanager_fingerprint(labels),
        labels=labels,
        annotations=annotations,
        starts_at=alert.fired_at,
        # Never before its start, which Alertmanager refuses.
        ends_at=max(alert.fired_at, resolved_at) if resolved_at is not None else now + ENDS_AFTER_DELAYS * resend_s,
        is_resolved=resolved_at is not None,
        generator_url=generator_url,
    )


def with_usable_runbook(alert: ActiveAlert, docs_url: str | None) -> dict[str, str]:
    """The alert's annotations, without empty ones. A `runbook_url` that is a path leads nowhere from where it is read:
    it becomes a link under `docs_url`, else the command that explains the alert (`runbook`)."""
    annotations = {name: value for name, value in alert.annotations.items() if value}
    path = annotations.get("runbook_url", "")
    if not path or "://" in path:
        return annotations
    if docs_url:
        return annotations | {"runbook_url": f"{docs_url.rstrip('/')}/{path.lstrip('/')}"}
    del annotations["runbook_url"]
    return annotations | {"runbook": f"fleetctl alerts explain {alert.name}"}


def is_due(alert: OutgoingAlert, sent: SentAlert | None, now: float, resend_s: float) -> bool:
    """Whether it is news, or was last sent a resend delay ago (or in the future: the clock was set back)."""
    if sent is None:
        return True
    if alert.is_resolved != sent.is_resolved or alert.starts_at != sent.starts_at:
        return True
    return not 0 <= now - sent.at < resend_s


def labels_in_alertmanager(labels: Mapping[str, str], external_labels: Mapping[str, str]) -> dict[str, str]:
    """With the external labels where the alert has none of the name, without empty values."""
    merged = {**external_labels, **labels}
    return {name: value for name, value in merged.items() if value and _NAME.match(name)}


def rfc3339(at: float) -> str:
    """Unix seconds in the notation of Alertmanager's API, UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
