"""Columns of the record of failures: each of them, or counted by SKU, zone, host, workload or node."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from fleetctl.cli.output import Column, seconds
from fleetctl.wire.failure import Failure, FailureGroup


def lasted(failure: Failure) -> str:
    """How long it stood; "stands" while it does."""
    return "stands" if failure.ended_at is None else seconds(max(0.0, failure.ended_at - failure.at))


def ratio_words(group: FailureGroup) -> str:
    """Its rate over the fleet's, with the interval that holds it with 90 %."""
    if group.ratio is None or group.ratio_low is None or group.ratio_high is None:
        return "-"
    return f"{group.ratio:.1f}x {group.ratio_low:.2g}-{group.ratio_high:.2g}"


def hours(count: float) -> str:
    """Node-hours: whole ones, where there are many."""
    return f"{count:.0f}" if count >= 100 else f"{count:.3g}"


def kind_words(group: FailureGroup) -> str:
    """How often each kind, the most frequent first."""
    return ", ".join(f"{kind.value} {count}" for kind, count in group.kinds.items()) or "none"


FAILURE_COLUMNS = [
    Column("time", lambda f: dt.datetime.fromtimestamp(f.at, dt.UTC).strftime("%m-%d %H:%M"), sort_key=lambda f: f.at),
    Column("node", lambda f: f.node),
    Column("kind", lambda f: f.kind.value),
    Column("lasted", lasted, right=True, is_volatile=True),
    Column("host", lambda f: f.host or "-"),
    Column("sku", lambda f: f.sku or "-", wide=True),
    Column("zone", lambda f: f.zone or "-", wide=True),
    Column("pool", lambda f: f.pool or "-", wide=True),
    Column("model", lambda f: f.model or "-", wide=True),
    Column("revision", lambda f: f.revision or "-", wide=True),
    Column("incident", lambda f: f.incident_id or "-", wide=True),
    Column("episode", lambda f: f.episode, wide=True),
    Column("reason", lambda f: f.reason),
]

FAILURE_GROUP_COLUMNS = [
    Column("name", lambda g: g.name or "-"),
    Column("nodes", lambda g: str(g.nodes), right=True, sort_key=lambda g: g.nodes),
    Column("hours", lambda g: hours(g.node_hours), right=True, sort_key=lambda g: g.node_hours),
    Column("failed", lambda g: str(g.failures), right=True, sort_key=lambda g: g.failures),
    Column(
        "per 1000h",
        lambda g: "-" if g.per_1000_node_hours is None else f"{g.per_1000_node_hours:.3g}",
        right=True,
        sort_key=lambda g: g.per_1000_node_hours,
        wide=True,
    ),
    Column("rate/fleet", ratio_words, right=True, sort_key=lambda g: g.ratio),
    Column("standing", lambda g: g.standing),
    Column("why", lambda g: g.why, wide=True),
    Column("kinds", kind_words),
]


def failure_labels(failure: Failure) -> Mapping[str, str]:
    """What failures are selected by."""
    return {
        "node": failure.node,
        "kind": failure.kind.value,
        "host": failure.host,
        "sku": failure.sku,
        "zone": failure.zone,
        "pool": failure.pool,
        "model": failure.model,
        "revision": failure.revision,
        "incident": failure.incident_id or "",
        "stands": "yes" if failure.ended_at is None else "no",
    }
