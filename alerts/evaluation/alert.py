"""One alert instance and how its state changes: Prometheus' rules, and `unknown` for a signal that was lost.

    inactive -> pending -> firing -> resolved      pending that clears vanishes; resolved is kept 15 minutes
                   |          |
                   +-> unknown <-+                 no sample, and the target gives no trustworthy signal

Pure: the time comes in as an argument.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from alerts.evaluation.target_liveness import Liveness
from alerts.labels import LabelSet

RESOLVED_KEPT_S = 15 * 60.0
NEVER_SEEN_KEPT_S = 5 * 60.0  # as long as a point counts: then a target that was never seen is no target
_FNV_OFFSET, _FNV_PRIME, _FNV_MASK = 0xCBF29CE484222325, 0x100000001B3, 0xFFFFFFFFFFFFFFFF
_SEPARATOR = b"\xff"  # no byte of UTF-8

State = Literal["inactive", "pending", "firing", "unknown", "resolved"]


@dataclass(frozen=True, slots=True)
class ActiveAlert:
    """Times are Unix seconds. `value` is the last one the expression gave, also while unknown or resolved."""

    fingerprint: str
    name: str
    state: State
    labels: dict[str, str]
    annotations: dict[str, str]
    value: float
    active_at: float  # since when the expression has given a sample
    fired_at: float | None = None
    resolved_at: float | None = None
    keep_firing_since: float | None = None
    unknown_since: float | None = None


@dataclass(frozen=True, slots=True)
class AlertChange:
    """`previous` is the state before, "inactive" for a new alert. A pending alert that cleared is "inactive" now."""

    alert: ActiveAlert
    previous: str


@dataclass(frozen=True, slots=True)
class AlertSample:
    """What the expression says about one instance now."""

    value: float
    annotations: dict[str, str]


def fingerprint_of(labels: Mapping[str, str]) -> str:
    """The same for the same labels (alertname included), on every machine and after every restart."""
    return hashlib.sha256(json.dumps(sorted(labels.items())).encode()).hexdigest()[:16]


def alertmanager_fingerprint(labels: Mapping[str, str]) -> str:
    """64-bit FNV-1a over the sorted labels, in 16 hex digits: what Alertmanager puts beside an alert."""
    digest = _FNV_OFFSET
    for name in sorted(labels):
        for byte in name.encode() + _SEPARATOR + labels[name].encode() + _SEPARATOR:
            digest = ((digest ^ byte) * _FNV_PRIME) & _FNV_MASK
    return f"{digest:016x}"


def advance(
    name: str,
    active: Mapping[LabelSet, ActiveAlert],
    found: Mapping[LabelSet, AlertSample],
    now: float,
    *,
    for_s: float,
    keep_firing_for_s: float,
    liveness_of: Callable[[ActiveAlert], Liveness],
) -> tuple[dict[LabelSet, ActiveAlert], list[AlertChange]]:
    """The instances after this evaluation, and what changed."""
    after: dict[LabelSet, ActiveAlert] = {}
    changes: list[AlertChange] = []
    for key in [*active, *(key for key in found if key not in active)]:
        before = active.get(key)
        sample = found.get(key)
        alert: ActiveAlert | None
        if sample is not None:
            alert = _matched(name, key, before, sample, now, for_s)
        else:
            assert before is not None
            alert = _unmatched(before, now, keep_firing_for_s, liveness_of)
        if alert is None:
            continue
        if alert.state != "inactive":
            after[key] = alert
        previous: State = "inactive" if before is None else before.state
        if alert.state != previous:
            # A resolved alert that comes back is a new one: it starts from inactive.
            changes.append(AlertChange(alert, "inactive" if previous == "resolved" else previous))
    return after, changes


def _matched(
    name: str, key: LabelSet, before: ActiveAlert | None, sample: AlertSample, now: float, for_s: float
) -> ActiveAlert:
    if before is None or before.state == "resolved":
        labels = key.as_dict()
        alert = ActiveAlert(
            fingerprint=fingerprint_of(labels),
            name=name,
            state="pending",
            labels=labels,
            annotations=sample.annotations,
            value=sample.value,
            active_at=now,
        )
    else:
        alert = replace(
            before, value=sample.value, annotations=sample.annotations, keep_firing_since=None, unknown_since=None
        )
        if before.state == "unknown":
            # Firing goes on as the same page. Pending starts again: nobody saw whether it held in between.
            firing = before.fired_at is not None
            alert = replace(
                alert, state="firing" if firing else "pending", active_at=before.active_at if firing else now
            )
    if alert.state == "pending" and now - alert.active_at >= for_s:
        alert = replace(alert, state="firing", fired_at=now)
    return alert


def _unmatched(
    before: ActiveAlert, now: float, keep_firing_for_s: float, liveness_of: Callable[[ActiveAlert], Liveness]
) -> ActiveAlert | None:
    """None when the instance is to be forgotten."""
    if before.state == "resolved":
        assert before.resolved_at is not None
        return None if now - before.resolved_at > RESOLVED_KEPT_S else before
    liveness = liveness_of(before)
    unknown_since = now if before.unknown_since is None else before.unknown_since
    if liveness is Liveness.NEVER_SEEN and now - unknown_since > NEVER_SEEN_KEPT_S:
        liveness = Liveness.REMOVED
    if liveness in (Liveness.LOST, Liveness.NEVER_SEEN):
        return replace(before, state="unknown", unknown_since=unknown_since)
    if before.fired_at is None:
        return replace(before, state="inactive", unknown_since=None)
    if keep_firing_for_s > 0 and liveness is Liveness.LIVE:
        since = now if before.keep_firing_since is None else before.keep_firing_since
        if now - since < keep_firing_for_s:
            return replace(before, state="firing", keep_firing_since=since, unknown_since=None)
    return replace(before, state="resolved", resolved_at=now, keep_firing_since=None, unknown_since=None)
