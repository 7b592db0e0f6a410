"""An incident that names two causes becomes two, where its alerts tell which is whose; no alert is lost or doubled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnostics.diagnosis import Diagnosis
from diagnostics.grouping import group_alerts
from diagnostics.incident import FiredAlert, Incident, clear, join, mitigate, open_incident, with_diagnosis
from diagnostics.splitting import SPLIT_AFTER_S, CausePair, note_pair, split_incident
from diagnostics.tree import AlertKind

NOW = 1_700_000_000.0
KINDS = {
    "Slow": AlertKind("gray", False),
    "Hits": AlertKind("cache", False),
    "Evicted": AlertKind("cache", False),
    "Queue": AlertKind("capacity", False),
}
EXPLAINS = {"slow_node": frozenset({"gray", "capacity"}), "prefix_broken": frozenset({"cache", "capacity"})}
PAIR = CausePair("slow_node", "prefix_broken", NOW)
KNOWN = {f"node-{i}": {"pool": "chat", "model": "m", "zone": "a", "revision": "r1"} for i in range(1, 9)}


def make_alert(name: str, at: float = NOW, severity: str = "page", node: str = "node-1") -> FiredAlert:
    labels = {"node": node, "pool": "chat"} if node else {"pool": "chat"}
    summary = f"{name} of {node or 'chat'}"
    return FiredAlert(f"{name}{node}@{at}", name, severity, "firing", labels, summary, active_at=at - 10, fired_at=at)


def incident_of(*alerts: FiredAlert) -> Incident:
    incident = open_incident(alerts[0], NOW)
    for alert in alerts[1:]:
        incident = join(incident, alert, NOW)
    return incident


def parts_of(incident: Incident) -> tuple[Incident, Incident]:
    found = split_incident(incident, PAIR, [incident], NOW + 20, KNOWN, KINDS, EXPLAINS)
    assert found is not None
    left, parted = found
    (only,) = parted.values()
    return left, only


def names(incident: Incident) -> set[str]:
    return {one.name for one in incident.alerts}


def test_alerts_that_only_the_second_cause_explains_become_an_incident_of_their_own() -> None:
    slow, hits = make_alert("Slow", severity="ticket"), make_alert("Hits", NOW + 5)
    left, parted = parts_of(incident_of(slow, make_alert("Queue"), hits))
    assert (names(left), names(parted)) == ({"Slow", "Queue"}, {"Hits"})
    assert (parted.title, parted.scope, parted.onset_at) == ("Hits of node-1", left.scope, NOW - 5)
    assert (left.title, left.severity) == ("Queue of node-1 (also Slow)", "page")
    assert parted.diagnosis is None  # it is asked about its own alerts


def test_what_is_over_goes_with_its_fault_and_the_rest_says_when_its_own_began() -> None:
    early = make_alert("Evicted", NOW - 60)
    incident = clear(incident_of(make_alert("Slow"), make_alert("Hits"), early), early.fingerprint, NOW)
    left, parted = parts_of(incident)
    assert names(parted) == {"Hits", "Evicted"}
    assert (left.onset_at, parted.onset_at) == (NOW - 10, NOW - 70)


@pytest.mark.parametrize(
    ("incident", "pair", "after_s"),
    [
        (incident_of(make_alert("Slow"), make_alert("Hits")), None, 20.0),
        (incident_of(make_alert("Slow"), make_alert("Hits")), PAIR, SPLIT_AFTER_S - 1),
        (incident_of(make_alert("Slow"), make_alert("Queue")), PAIR, 20.0),  # both explain the queue
        (incident_of(make_alert("Hits"), make_alert("Evicted")), PAIR, 20.0),  # nothing speaks for the first alone
        (incident_of(make_alert("Queue"), make_alert("Hits")), PAIR, 20.0),  # the second explains all
        (incident_of(make_alert("Slow"), make_alert("Unheard")), PAIR, 20.0),
        (mitigate(incident_of(make_alert("Slow"), make_alert("Hits"))), PAIR, 20.0),
        (clear(incident_of(make_alert("Slow"), make_alert("Hits")), f"Hitsnode-1@{NOW}", NOW), PAIR, 20.0),
    ],
    ids=[
        "one cause",
        "too soon",
        "shared symptom",
        "first unseen",
        "all of the second",
        "unknown alert",
        "a run acts",
        "second is over",
    ],
)
def test_it_stays_one_where_that_is_not_certain(incident: Incident, pair: CausePair | None, after_s: float) -> None:
    assert split_incident(incident, pair, [incident], NOW + after_s, KNOWN, KINDS, EXPLAINS) is None


def test_alerts_of_several_nodes_leave_to_an_incident_of_each_and_join_one_that_is_there() -> None:
    pool = incident_of(make_alert("Slow", node=""), make_alert("Hits"), make_alert("Hits", NOW + 1, node="node-2"))
    there = incident_of(make_alert("Evicted", NOW - 300, node="node-2"))
    found = split_incident(pool, PAIR, [pool, there], NOW + 20, KNOWN, KINDS, EXPLAINS)
    assert found is not None
    left, parted = found
    assert names(left) == {"Slow"}
    assert {one.scope["node"]: names(one) for one in parted.values()} == {
        "node-1": {"Hits"},
        "node-2": {"Hits", "Evicted"},
    }
    assert there.id in parted


def test_the_part_whose_alert_opened_the_incident_gets_an_id_of_its_own() -> None:
    incident = incident_of(make_alert("Hits"), make_alert("Slow", NOW + 5))
    left, parted = parts_of(incident)
    assert (left.id, names(left), names(parted)) == (incident.id, {"Slow"}, {"Hits"})
    assert parted.id != incident.id


def test_two_causes_are_counted_from_the_first_verdict_that_names_them_in_either_order() -> None:
    both = Diagnosis("gray", "slow_node", also="prefix_broken", at=NOW)
    turned = Diagnosis("gray", "prefix_broken", also="slow_node", at=NOW + 5)
    pair = note_pair(turned, note_pair(both, None))
    assert pair == PAIR
    assert note_pair(Diagnosis("gray", "slow_node", at=NOW + 6), pair) is None


def test_a_symptom_that_comes_later_joins_the_incident_of_its_fault_though_both_began_together() -> None:
    left, parted = parts_of(incident_of(make_alert("Slow"), make_alert("Hits")))
    parted = with_diagnosis(parted, Diagnosis("cache", "prefix_broken", confidence="likely"))
    late = make_alert("Evicted", NOW + 60)
    changed = group_alerts([late], [left, parted], NOW + 60, {}, KINDS, EXPLAINS)
    assert list(changed) == [parted.id]


@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=12), st.sets(st.integers(0, 11)))
def test_no_alert_is_lost_or_in_both(held: list[str], over: set[int]) -> None:
    alerts = [make_alert(name, NOW + i) for i, name in enumerate(held)]
    incident = incident_of(*alerts)
    for i in over & set(range(len(alerts))):
        incident = clear(incident, alerts[i].fingerprint, NOW)
    found = split_incident(incident, PAIR, [incident], NOW + 20, KNOWN, KINDS, EXPLAINS)
    if found is None:
        return
    left, parted = found
    after = [one for each in (left, *parted.values()) for one in each.alerts]
    assert sorted(one.fingerprint for one in after) == sorted(one.fingerprint for one in incident.alerts)
    assert left.id not in parted
    assert all(one.cleared_at is None for one in (left, *parted.values()))
