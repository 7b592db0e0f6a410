"""From an outside alert's labels to ours: which node, pool, model, zone and revision, which name, how grave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from diagnostics.incident import LOOKS_BACK, FiredAlert, Incident, looks_back_s
from fleetctl.controller.alertmanager.external_alert import ExternalAlert
from fleetctl.controller.nodes.fleet import NodeState
from fleetctl.settings.alertmanager import WebhookSettings

SOURCE = "alertmanager"
NO_NAME = "(no alertname)"
PLACES = ("pool", "model", "zone", "revision")
_OURS = ("ticket", "warning", "page", "critical")


@dataclass(frozen=True, slots=True)
class FleetMap:
    """What of the fleet a label may name. Addresses are host:port."""

    nodes: Mapping[str, Mapping[str, str]]  # name to the places it is in
    addresses: Mapping[str, str]  # to the node's name

    @classmethod
    def of(cls, states: Iterable[NodeState]) -> FleetMap:
        """The map of these nodes."""
        nodes: dict[str, Mapping[str, str]] = {}
        addresses: dict[str, str] = {}
        for state in states:
            nodes[state.name] = places_of(state)
            if address := urlsplit(state.url or state.row.url or "").netloc:
                addresses[address] = state.name
        return cls(nodes, addresses)

    def node(self, value: str) -> str | None:
        """The node that a label's value names: by name, by address, or by name with a port."""
        if value in self.nodes:
            return value
        if value in self.addresses:
            return self.addresses[value]
        name = value.rpartition(":")[0]
        return name if name in self.nodes else None

    def knows(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels name a place of this fleet: its node, or without one all else they name. {} does not."""
        if node := labels.get("node"):
            return node in self.nodes
        named = {place: labels[place] for place in PLACES if labels.get(place)}
        return bool(named) and any(
            all(where.get(place) == value for place, value in named.items()) for where in self.nodes.values()
        )


def places_of(state: NodeState) -> dict[str, str]:
    """The places that a node is in, by label."""
    spec = state.row.spec
    return {"pool": spec.pool, "model": spec.model, "zone": spec.zone, "revision": spec.revision}


def as_fired(alert: ExternalAlert, fleet: FleetMap, settings: WebhookSettings, now: float) -> FiredAlert:
    """The alert as incidents take it. One that was not heard of for too long is unknown: neither firing nor over."""
    labels = scope_labels(alert.labels, fleet, settings)
    theirs = alert.labels.get("alertname", "")
    is_stale = now - alert.heard_at > settings.unknown_after_s
    return FiredAlert(
        fingerprint=f"am-{alert.fingerprint}",  # never that of one of our own
        name=settings.alert_names.get(theirs, theirs) or NO_NAME,
        severity=labels.get("severity", "ticket"),
        state=("unknown" if is_stale else "firing") if alert.is_firing else "resolved",
        labels=labels,
        summary=alert.annotations.get("summary") or alert.annotations.get("message") or "",
        description=alert.annotations.get("description", ""),
        active_at=alert.began_at,
        fired_at=alert.began_at,
        resolved_at=alert.resolved_at,
        looks_back_s=looks_back_s(alert.annotations.get(LOOKS_BACK, "")),
        source=SOURCE,
        source_url=alert.generator_url or alert.alertmanager,
    )


def scope_labels(labels: Mapping[str, str], fleet: FleetMap, settings: WebhookSettings) -> dict[str, str]:
    """The labels with ours added. What the fleet knows of a node fills in what the alert does not say."""
    found = dict(labels)
    given = {
        scope: [labels[name] for name in names if labels.get(name)] for scope, names in settings.scope_labels.items()
    }
    node = next((name for value in given["node"] if (name := fleet.node(value)) is not None), None)
    if node is not None:
        found |= {place: value for place, value in fleet.nodes[node].items() if value and not labels.get(place)}
    if node is not None or given["node"]:
        found["node"] = node or given["node"][0]
    for place in PLACES:
        if given[place]:
            found[place] = given[place][0]
    severity = labels.get("severity", "").lower()
    found["severity"] = severity if severity in _OURS else settings.severities.get(severity, "ticket")
    return found


def is_known_scope(incident: Incident, fleet: FleetMap) -> bool:
    """Whether one of its alerts points at something of ours to look at."""
    return any(fleet.knows(one.labels) for one in incident.alerts)
