"""Alert state as plain JSON, and what a restart means for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from alerts.evaluation.alert import ActiveAlert

OUTAGE_TOLERANCE_S = 3600.0  # as Prometheus: after a longer blind time, what was pending is no longer news

_NUMBERS = ("active_at", "fired_at", "resolved_at", "keep_firing_since", "unknown_since")


def alert_to_json(alert: ActiveAlert) -> dict[str, Any]:
    """A value that JSON cannot write (NaN, infinity) is written as text. Labels and annotations are the alert's own."""
    return {
        "fingerprint": alert.fingerprint,
        "name": alert.name,
        "state": alert.state,
        "labels": alert.labels,
        "annotations": alert.annotations,
        "value": alert.value if math.isfinite(alert.value) else str(alert.value),
        **{name: getattr(alert, name) for name in _NUMBERS},
    }


def alert_from_json(raw: Mapping[str, Any]) -> ActiveAlert:
    """Raises ValueError naming the missing key."""
    try:
        return ActiveAlert(
            fingerprint=raw["fingerprint"],
            name=raw["name"],
            state=raw["state"],
            labels=dict(raw["labels"]),
            annotations=dict(raw["annotations"]),
            value=float(raw["value"]),
            **{name: raw[name] for name in _NUMBERS},
        )
    except KeyError as error:
        raise ValueError(f"alert snapshot: {error} is missing") from None


def check_version(snapshot: Mapping[str, Any], version: int) -> None:
    """Raises ValueError when the snapshot is of another version than this program reads."""
    found = snapshot.get("version")
    if found != version:
        raise ValueError(f"alert snapshot: version {found!r}, this program reads {version}")


def restored(alert: ActiveAlert, taken_at: float | None, now: float) -> ActiveAlert | None:
    """The alert as it goes on after a blind time; None when it is too old to mean anything."""
    blind_s = max(0.0, now - taken_at) if taken_at is not None else 0.0
    is_pending = alert.fired_at is None
    if is_pending and blind_s > OUTAGE_TOLERANCE_S:
        return None
    if is_pending:
        return replace(alert, active_at=alert.active_at + blind_s)
    if alert.state == "firing" and blind_s > OUTAGE_TOLERANCE_S:
        return replace(alert, state="unknown", unknown_since=now)
    return alert
