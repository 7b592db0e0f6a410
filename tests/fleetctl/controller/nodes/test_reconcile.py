"""Incidents follow from the alerts as they are, not from how they changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from alerts.evaluation.alert import ActiveAlert, State
from diagnostics.incident import FiredAlert, Incident, IncidentStatus, resolve
from fleetctl.controller.incidents.alerting import reconcile


def make_alert(name: str = "LLMNodeSlow", node: str = "node-2", state: State = "firing") -> ActiveAlert:
    return ActiveAlert(
        fingerprint=f"{name}/{node}",
        name=name,
        state=state,
        annotations={},
        labels={"node": node, "pool": "default", "severity": "page"},
        value=3.0,
        active_at=90.0,
        fired_at=95.0,
    )


def judge(
    incidents: Sequence[Incident], alerts: Sequence[ActiveAlert], *, expected: Sequence[str] = (), settled: bool = True
) -> dict[str, Incident]:
    def is_expected(alert: FiredAlert) -> bool:
        return alert.labels["node"] in expected

    return reconcile(incidents, alerts, is_expected, 100.0, forget_missing=settled)


def open_one(*alerts: ActiveAlert) -> Incident:
    (incident,) = judge([], alerts).values()
    return incident


def test_a_firing_alert_opens_one_incident_and_only_once() -> None:
    incident = open_one(make_alert())
    assert (incident.status, dict(incident.scope)) == (IncidentStatus.OPEN, {"node": "node-2", "pool": "default"})
    assert judge([incident], [make_alert()]) == {}


def test_a_second_alert_of_the_node_joins() -> None:
    incident = open_one(make_alert())
    (changed,) = judge([incident], [make_alert(), make_alert("LLMTTFTRegression")]).values()
    assert changed.id == incident.id
    assert [alert.name for alert in changed.alerts] == ["LLMNodeSlow", "LLMTTFTRegression"]


@pytest.mark.parametrize("state", ["pending", "unknown", "resolved"])
def test_an_alert_that_does_not_fire_opens_nothing(state: State) -> None:
    assert judge([], [make_alert(state=state)]) == {}


def test_an_alert_of_a_node_we_drain_opens_nothing() -> None:
    assert judge([], [make_alert()], expected=["node-2"]) == {}


def test_an_alert_that_is_known_stays_known_while_we_drain_its_node() -> None:
    incident = open_one(make_alert())
    assert judge([incident], [make_alert()], expected=["node-2"]) == {}


def test_a_resolved_alert_clears_and_an_unknown_one_does_not() -> None:
    incident = open_one(make_alert(), make_alert("LLMTTFTRegression"))
    alerts = [make_alert(state="resolved"), make_alert("LLMTTFTRegression", state="unknown")]
    (partly,) = judge([incident], alerts).values()
    assert {alert.name: alert.state for alert in partly.alerts} == {
        "LLMNodeSlow": "resolved",
        "LLMTTFTRegression": "unknown",
    }
    assert partly.cleared_at is None
    (cleared,) = judge([partly], [make_alert("LLMTTFTRegression", state="resolved")]).values()
    assert cleared.cleared_at == 100.0


def test_an_alert_the_engine_does_not_know_clears_only_once_it_has_looked() -> None:
    incident = open_one(make_alert())
    assert judge([incident], [], settled=False) == {}
    (cleared,) = judge([incident], [], settled=True).values()
    assert cleared.cleared_at == 100.0


def test_a_crash_between_alert_and_incident_is_made_good() -> None:
    assert len(judge([], [make_alert(), make_alert("LLMTTFTRegression"), make_alert(node="node-3")])) == 1


def test_an_alert_that_comes_back_soon_reopens_its_incident() -> None:
    incident = resolve(judge([open_one(make_alert())], [])[open_one(make_alert()).id], 100.0)
    (again,) = judge([incident], [make_alert()]).values()
    assert (again.id, again.status, again.reopened) == (incident.id, IncidentStatus.OPEN, 1)


def test_other_alerts_of_a_node_that_is_down_are_over_and_not_unknown() -> None:
    incident = open_one(make_alert())
    (changed,) = judge([incident], [make_alert(state="unknown"), make_alert("LLMNodeDown")]).values()
    assert {one.name: one.state for one in changed.alerts} == {"LLMNodeSlow": "resolved", "LLMNodeDown": "firing"}
    other = make_alert("LLMNodeDown", node="node-9")
    found = judge([incident], [make_alert(state="unknown"), other])
    assert found[incident.id].alerts[0].state == "unknown", "of another node's end it tells nothing"


def test_what_an_alert_says_now_is_taken_over_twice_a_minute_at_most() -> None:
    def saying(number: int) -> ActiveAlert:
        alert = make_alert()
        return replace(alert, value=float(number), annotations={"summary": f"{number} requests wait"})

    incident = open_one(saying(81))
    told = []
    for second in range(1, 121):
        changed = reconcile([incident], [saying(81 + second)], lambda _: False, 100.0 + second, forget_missing=True)
        if changed:
            (incident,) = changed.values()
            told.append(incident.title)
    assert told == [f"{81 + second} requests wait" for second in (30, 60, 90, 120)]
