"""Outside labels mapped to our places; what is unknown stays unknown."""

from __future__ import annotations

from typing import Any

import pytest

from diagnostics.grouping import group_alert
from fleetctl.controller.alertmanager.external_alert import ExternalAlert
from fleetctl.controller.alertmanager.external_scope import FleetMap, as_fired, is_known_scope, scope_labels
from fleetctl.settings.alertmanager import WebhookSettings

NOW = 1000.0
WHERE = {"pool": "chat", "model": "m", "zone": "a", "revision": "r1"}
FLEET = FleetMap({"node-1": WHERE, "node-2": {**WHERE, "zone": "b"}}, {"10.0.0.2:8000": "node-2"})


def external(**changes: Any) -> ExternalAlert:
    values: dict[str, Any] = {
        "fingerprint": "f",
        "is_firing": True,
        "labels": {"alertname": "A"},
        "received_at": NOW,
        "heard_at": NOW,
    }
    return ExternalAlert(**{**values, **changes})


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({"node": "node-1"}, {"node": "node-1", **WHERE}),
        ({"instance": "10.0.0.2:8000"}, {"node": "node-2", **WHERE, "zone": "b"}),
        ({"instance": "node-2:9400", "Hostname": "gpu-7"}, {"node": "node-2", **WHERE, "zone": "b"}),
        ({"node": "k8s-worker-3", "instance": "10.0.0.2:8000"}, {"node": "node-2", **WHERE, "zone": "b"}),
        ({"node": "node-1", "pool": "other"}, {"node": "node-1", **WHERE, "pool": "other"}),
        ({"instance": "db-7:9100"}, {"node": "db-7:9100"}),
        ({"model_name": "m", "availability_zone": "b"}, {"model": "m", "zone": "b"}),
        ({"job": "x"}, {}),
    ],
)
def test_labels_become_places(labels: dict[str, str], wanted: dict[str, str]) -> None:
    found = scope_labels(labels, FLEET, WebhookSettings())
    assert {name: found[name] for name in ("node", "pool", "model", "zone", "revision") if name in found} == wanted
    assert labels.keys() <= found.keys()


def test_the_mapping_is_a_setting() -> None:
    settings = WebhookSettings(scope_labels={"node": ("machine",)}, alert_names={"SlowBox": "LLMNodeSlow"})
    told = external(labels={"alertname": "SlowBox", "machine": "node-1", "instance": "10.0.0.2:8000"})
    alert = as_fired(told, FLEET, settings, NOW)
    assert (alert.name, alert.labels["node"], alert.labels["alertname"]) == ("LLMNodeSlow", "node-1", "SlowBox")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("page", "page"),
        ("critical", "critical"),
        ("P1", "critical"),
        ("warn", "warning"),
        ("strange", "ticket"),
        ("", "ticket"),
    ],
)
def test_severities_are_ours(theirs: str, ours: str) -> None:
    assert as_fired(external(labels={"severity": theirs}), FLEET, WebhookSettings(), NOW).severity == ours


def test_one_not_heard_of_for_long_is_unknown_and_not_over() -> None:
    settings = WebhookSettings(unknown_after_s=60)
    assert as_fired(external(), FLEET, settings, NOW + 60).state == "firing"
    assert as_fired(external(), FLEET, settings, NOW + 61).state == "unknown"
    assert as_fired(external(is_firing=False, resolved_at=NOW), FLEET, settings, NOW + 61).state == "resolved"


@pytest.mark.parametrize(
    ("labels", "known"),
    [
        ({"node": "node-1"}, True),
        ({"node": "node-9"}, False),
        ({"pool": "chat"}, True),
        ({"pool": "none"}, False),
        ({"pool": "chat", "zone": "c"}, False),
        ({"instance": "db-7:9100"}, False),
        ({"job": "x"}, False),
        ({"model_name": "m"}, True),
    ],
)
def test_what_is_not_in_the_fleet_is_no_known_scope(labels: dict[str, str], known: bool) -> None:
    alert = as_fired(external(labels=labels), FLEET, WebhookSettings(), NOW)
    assert is_known_scope(group_alert(alert, [], NOW), FLEET) is known


def test_an_alert_without_a_name_has_one() -> None:
    assert as_fired(external(labels={"a": "b"}), FLEET, WebhookSettings(), NOW).name == "(no alertname)"
