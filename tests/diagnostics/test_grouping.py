"""How many nodes with the same alert make one incident, and of which place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics.diagnosis import Diagnosis
from diagnostics.grouping import group_alerts
from diagnostics.incident import (
    FiredAlert,
    Incident,
    IncidentStatus,
    clear,
    has_alert,
    mitigate,
    resolve,
    with_diagnosis,
)
from diagnostics.scope import nodes_in_scope, scope_of, scope_text
from diagnostics.tree import AlertKind

NOW = 1_700_000_000.0
# Twelve nodes: two pools, three zones; r2 is rolled out to three nodes of pool chat in different zones.
KNOWN = {
    f"node-{i}": {
        "pool": "chat" if i <= 9 else "batch",
        "model": "m",
        "zone": "abc"[i % 3],
        "revision": "r2" if i <= 3 else "r1",
    }
    for i in range(1, 13)
}


def make_alert(name: str, node: str | None = None, fired_at: float = NOW, **labels: str) -> FiredAlert:
    named = {
        **({"node": node, "pool": KNOWN[node]["pool"]} if node in KNOWN else {"node": node} if node else {}),
        **labels,
    }
    key = f"{name}-{sorted(named.items())}"
    return FiredAlert(key, name, "page", "firing", named, active_at=fired_at - 10, fired_at=fired_at)


def slow(*numbers: int) -> list[FiredAlert]:
    return [make_alert("LLMNodeSlow", f"node-{i}") for i in numbers]


def after(ticks: Sequence[Sequence[FiredAlert]], known: Mapping[str, Mapping[str, str]] = KNOWN) -> list[Incident]:
    book: dict[str, Incident] = {}
    for i, alerts in enumerate(ticks):
        book |= group_alerts(alerts, book.values(), NOW + i, known)
    return list(book.values())


@pytest.mark.parametrize(
    ("numbers", "scope"),
    [
        ((1, 2, 3), {"revision": "r2"}),
        ((3, 6, 9, 12), {"zone": "a"}),
        ((4, 5, 6, 7, 8, 9), {"pool": "chat"}),
        ((10, 11), {"pool": "batch"}),  # two of three
        ((1, 2), {"revision": "r2"}),
        (tuple(range(1, 13)), {"model": "m"}),
    ],
)
def test_nodes_that_share_a_place_are_one_incident_of_the_narrowest(
    numbers: tuple[int, ...], scope: dict[str, str]
) -> None:
    (incident,) = after([slow(*numbers)])
    assert dict(incident.scope) == scope
    assert len(incident.alerts) == len(numbers)
    assert incident.widened_why.startswith(f"LLMNodeSlow on {len(numbers)} of ")
    assert incident.first_scope.get("node") in KNOWN
    assert incident.title == f"LLMNodeSlow on {scope_text(scope)}"


@pytest.mark.parametrize("numbers", [(4, 8), (4, 12)])
def test_two_of_many_nodes_stay_two_incidents(numbers: tuple[int, ...]) -> None:
    incidents = after([slow(*numbers)])
    assert [one.scope["node"] for one in incidents] == [f"node-{i}" for i in sorted(numbers, key=str)]


def test_unrelated_alerts_on_nodes_of_one_revision_stay_apart() -> None:
    alerts = [make_alert(name, f"node-{i}") for i, name in enumerate(("LLMNodeSlow", "LLMNodeDown", "LLMGPUXid"), 1)]
    assert len(after([alerts])) == 3


def test_nodes_of_unknown_places_stay_apart() -> None:
    alerts = [make_alert("HostDown", f"host-{i}") for i in range(2)]
    assert len(after([alerts], {})) == 2


def test_a_storm_of_unrelated_alerts_loses_none() -> None:
    alerts = [make_alert(f"Alert{i}", f"host-{i}") for i in range(600)]
    incidents = after([alerts], {})
    assert len(incidents) == len({one.id for one in incidents}) == 600


def test_the_whole_fleet_is_one_incident() -> None:
    known = {node: {**places, "model": node} for node, places in KNOWN.items()}
    (incident,) = after([slow(*range(1, 13))], known)
    assert dict(incident.scope) == {}
    assert incident.title == "LLMNodeSlow on the fleet"


def test_the_first_incident_widens_and_those_open_since_are_part_of_it() -> None:
    first, second, third = after([slow(4), slow(8)]), slow(9), slow(5)
    assert len(first) == 2
    wide, part = after([slow(4), slow(8), second])
    assert dict(wide.scope) == {"pool": "chat"}
    assert [one.labels["node"] for one in wide.alerts] == ["node-4", "node-9"]
    assert wide.widened_at == NOW + 2
    assert (part.scope["node"], part.part_of, len(part.alerts)) == ("node-8", wide.id, 1)
    again = after([slow(4), slow(8), second, third])
    assert [len(one.alerts) for one in again] == [3, 1]


def test_an_incident_that_a_run_acts_on_keeps_its_scope() -> None:
    (acting,) = (mitigate(one) for one in after([slow(1)]))
    changed = group_alerts(slow(2, 3), [acting], NOW + 1, KNOWN)
    assert changed[acting.id].scope == acting.scope
    assert changed[acting.id].status is IncidentStatus.MITIGATING
    (wide,) = (one for one in changed.values() if one.id != acting.id)
    assert dict(wide.scope) == {"revision": "r2"}
    assert changed[acting.id].part_of == wide.id


def test_alerts_of_a_place_join_its_incident_and_those_inside_it() -> None:
    (zone,) = after([[make_alert("Slow", zone="a")]])
    assert dict(zone.scope) == {"zone": "a"}
    (joined,) = after([[make_alert("Slow", zone="a")], [make_alert("Slow", "node-3", zone="a")]])
    assert dict(joined.scope) == {"zone": "a"}
    (widened,) = after([[make_alert("Slow", "node-3")], [make_alert("Slow", zone="a")]])
    assert dict(widened.scope) == {"zone": "a"}
    assert widened.widened_why == "Slow fires for zone a"
    assert len(after([[make_alert("Slow", "node-3")], [make_alert("Slow", zone="b")]])) == 2
    assert len(after([[make_alert("Slow", "node-3")], [make_alert("Dear", zone="a")]])) == 2


def test_a_wide_incident_that_comes_back_is_reopened_once() -> None:
    (wide,) = after([slow(1, 2, 3)])
    for alert in wide.alerts:
        wide = clear(wide, alert.fingerprint, NOW + 10)
    closed = resolve(wide, NOW + 20)
    (again,) = group_alerts(slow(3, 1, 2), [closed], NOW + 60, KNOWN).values()
    assert (again.id, again.reopened, dict(again.scope)) == (closed.id, 1, {"revision": "r2"})


@pytest.mark.parametrize(
    ("labels", "scope"),
    [
        ({"node": "n", "pool": "p", "zone": "z"}, {"node": "n", "pool": "p"}),
        ({"pool": "p", "model": "m"}, {"pool": "p"}),
        ({"model": "m"}, {"model": "m"}),
        ({"zone": "z", "engine": "vllm"}, {"zone": "z"}),
        ({"revision": "r", "pool": "p"}, {"pool": "p", "revision": "r"}),
        ({}, {}),
    ],
)
def test_an_alert_is_about_what_its_labels_say(labels: dict[str, str], scope: dict[str, str]) -> None:
    assert scope_of(labels) == scope


def place_of(incident: Incident) -> frozenset[str]:
    node = incident.scope.get("node")
    return frozenset({node}) if node else nodes_in_scope(incident.scope, KNOWN)


alerts_any = st.builds(
    make_alert,
    st.sampled_from(["A", "B"]),
    st.sampled_from([None, *KNOWN]),
    fired_at=st.sampled_from([NOW, NOW + 0.5]),
) | st.builds(
    lambda name, place, i: make_alert(name, **{place: KNOWN[f"node-{i}"][place]}),
    st.sampled_from(["A", "B"]),
    st.sampled_from(["pool", "model", "zone", "revision"]),
    st.integers(1, 12),
)
ticks_any = st.lists(st.lists(alerts_any, max_size=12, unique_by=lambda one: one.fingerprint), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(ticks_any, st.randoms(use_true_random=False))
def test_order_within_a_tick_changes_nothing_and_an_alert_is_in_one_open_incident(
    ticks: list[list[FiredAlert]], random: object
) -> None:
    book: dict[str, Incident] = {}
    for i, alerts in enumerate(ticks):
        new = [alert for alert in alerts if not any(has_alert(one, alert) for one in book.values())]
        shuffled, held = list(new), list(book.values())
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        random.shuffle(held)  # type: ignore[attr-defined]
        changed = group_alerts(new, book.values(), NOW + i, KNOWN)
        assert group_alerts(shuffled, held, NOW + i, KNOWN) == changed
        for key, one in changed.items():
            assert key not in book or place_of(one) >= place_of(book[key])
        book |= changed
        for alert in new:
            assert sum(has_alert(one, alert) for one in book.values()) == 1
    for one in book.values():
        assert one.part_of is None or one.part_of in book


KINDS = {
    "LLMQueueDepth": AlertKind("capacity", stands_alone=False),
    "LLMPreemptions": AlertKind("capacity", stands_alone=False),
    "LLMOutOfMemory": AlertKind("memory", stands_alone=False),
    "LLMWrongOutput": AlertKind("output", stands_alone=True),
    "LLMNodeSlow": AlertKind("latency", stands_alone=False),
}


@pytest.mark.parametrize(
    ("name", "minutes", "joins"),
    [
        ("LLMQueueDepth", 4, False),  # an overload four minutes after an OOM is no part of it
        ("LLMQueueDepth", 2, True),  # what an OOM brings with it begins with it
        ("LLMOutOfMemory", 30, True),
        ("LLMWrongOutput", 0, False),
    ],
)
def test_what_begins_later_for_another_reason_is_an_incident_of_its_own(name: str, minutes: int, joins: bool) -> None:
    book = group_alerts([make_alert("LLMOutOfMemory", "node-1")], [], NOW, KNOWN, KINDS)
    at = NOW + 60 * minutes
    book |= group_alerts([make_alert(name, "node-1", at)], book.values(), at, KNOWN, KINDS)
    assert len(book) == (1 if joins else 2)


def test_a_symptom_of_the_same_tree_joins_however_late_it_comes() -> None:
    book = group_alerts([make_alert("LLMQueueDepth", "node-1")], [], NOW, KNOWN, KINDS)
    late = make_alert("LLMPreemptions", "node-1", NOW + 3600)
    (incident,) = (book | group_alerts([late], book.values(), NOW + 3600, KNOWN, KINDS)).values()
    assert [one.name for one in incident.alerts] == ["LLMQueueDepth", "LLMPreemptions"]
    assert incident.onset_at == NOW - 10


def test_wrong_answers_of_a_node_are_no_part_of_its_pools_incident() -> None:
    book = group_alerts(slow(1, 2, 3), [], NOW, KNOWN, KINDS)
    book |= group_alerts([make_alert("LLMWrongOutput", "node-2", NOW + 5)], book.values(), NOW + 5, KNOWN, KINDS)
    assert sorted(one.title for one in book.values()) == ["LLMNodeSlow on revision r2", "LLMWrongOutput on node-2"]


def test_what_comes_back_for_another_reason_reopens_nothing_and_what_reopens_is_asked_anew() -> None:
    (incident,) = group_alerts([make_alert("LLMOutOfMemory", "node-1")], [], NOW, KNOWN, KINDS).values()
    told = with_diagnosis(incident, Diagnosis("memory", "out_of_memory", confidence="confirmed"))
    closed = resolve(clear(told, incident.alerts[0].fingerprint, NOW + 300), NOW + 310)
    other = make_alert("LLMQueueDepth", "node-1", NOW + 400)
    assert closed.id not in group_alerts([other], [closed], NOW + 400, KNOWN, KINDS)
    again = make_alert("LLMOutOfMemory", "node-1", NOW + 400)
    (reopened,) = group_alerts([again], [closed], NOW + 400, KNOWN, KINDS).values()
    assert (reopened.id, reopened.reopened, reopened.diagnosis) == (closed.id, 1, None)
    assert reopened.onset_at == NOW + 390


@pytest.mark.parametrize(("began_s", "is_reopened"), [(250.0, True), (390.0, False)])
def test_another_alert_of_a_pool_that_began_when_all_was_over_is_another_incident(
    began_s: float, is_reopened: bool
) -> None:
    """It would be told with the onset, the severity and the impact of what had been mended."""
    (queue,) = group_alerts([make_alert("LLMQueueDepth", pool="chat")], [], NOW, KNOWN, KINDS).values()
    closed = resolve(clear(queue, queue.alerts[0].fingerprint, NOW + 300), NOW + 310)
    other = replace(make_alert("LLMPreemptions", pool="chat", fired_at=NOW + 400), active_at=NOW + began_s)
    assert (closed.id in group_alerts([other], [closed], NOW + 400, KNOWN, KINDS)) == is_reopened
    again = make_alert("LLMQueueDepth", pool="chat", fired_at=NOW + 400)
    assert closed.id in group_alerts([again], [closed], NOW + 400, KNOWN, KINDS)


def test_what_comes_back_is_as_grave_as_it_is_now() -> None:
    page = make_alert("LLMOutOfMemory", "node-1")
    ticket = replace(make_alert("LLMQueueDepth", "node-1"), severity="ticket")
    (incident,) = group_alerts([page, ticket], [], NOW, KNOWN).values()
    for alert in (page, ticket):
        incident = clear(incident, alert.fingerprint, NOW + 300)
    again = replace(ticket, active_at=NOW + 390, fired_at=NOW + 400)
    (reopened,) = group_alerts([again], [resolve(incident, NOW + 310)], NOW + 400, KNOWN).values()
    assert (reopened.reopened, incident.severity, reopened.severity) == (1, "page", "ticket")


@pytest.mark.parametrize(
    ("minutes", "cause", "joins"), [(10, None, True), (40, None, False), (40, "kv_pressure", True), (40, "xid", False)]
)
def test_a_page_long_after_a_ticket_without_a_cause_is_no_part_of_it(
    minutes: float, cause: str | None, joins: bool
) -> None:
    ticket = replace(make_alert("LLMQueueDepth", pool="chat"), severity="ticket")
    (old,) = group_alerts([ticket], [], NOW, KNOWN, KINDS).values()
    old = named(cause, old) if cause else old
    page = make_alert("LLMPreemptions", pool="chat", fired_at=NOW + 60 * minutes)
    explains = {"kv_pressure": frozenset({"capacity"}), "xid": frozenset({"gpu"})}
    assert (old.id in group_alerts([page], [old], NOW + 60 * minutes, KNOWN, KINDS, explains)) == joins


def test_a_title_names_the_other_alerts() -> None:
    names = ["LLMNodeSlow", "LLMQueueDepth", "LLMOutOfMemory", "LLMPreemptions", "LLMNodeDown"]
    (incident,) = after([[make_alert(name, "node-1") for name in names]])
    assert incident.title.endswith("(also LLMOutOfMemory, LLMNodeSlow, LLMPreemptions and 1 more)")


KINDS_OF_FAULTS = {
    "LLMOverload": AlertKind("capacity", stands_alone=False),
    "LLMTTFTRegression": AlertKind("latency", stands_alone=False),
    "LLMPrefixHitDrop": AlertKind("cache", stands_alone=False),
    "LLMNodeDown": AlertKind("node", stands_alone=False),
}


def named(cause: str, incident: Incident) -> Incident:
    return with_diagnosis(incident, Diagnosis("capacity", cause, "confirmed", cause, (), (), (), NOW))


def joined(second: FiredAlert, *, onset_after_s: float, cause: str | None = None) -> bool:
    """Whether an alert that begins so long after an OOM of its pool is taken for the same incident."""
    (first,) = group_alerts([make_alert("LLMOutOfMemory", pool="chat")], [], NOW, KNOWN, KINDS_OF_FAULTS).values()
    first = named(cause, first) if cause else first
    later = replace(second, active_at=NOW - 10 + onset_after_s, fired_at=NOW + onset_after_s)
    explains = {"kv_pressure": frozenset({"capacity", "latency"}), "xid": frozenset({"gpu"})}
    found = group_alerts([later], [first], NOW + onset_after_s, KNOWN, KINDS_OF_FAULTS, explains)
    return first.id in found


OVERLOAD = make_alert("LLMOverload", pool="chat")


def test_an_overload_four_minutes_after_an_oom_is_another_incident() -> None:
    assert joined(OVERLOAD, onset_after_s=60)
    assert not joined(OVERLOAD, onset_after_s=240)


def test_no_chain_of_alerts_reaches_from_one_fault_to_the_next() -> None:
    (first,) = group_alerts([make_alert("LLMOutOfMemory", pool="chat")], [], NOW, KNOWN, KINDS_OF_FAULTS).values()
    between = make_alert("LLMRejections", pool="chat", fired_at=NOW + 150)
    (first,) = group_alerts([between], [first], NOW + 150, KNOWN, KINDS_OF_FAULTS).values()
    assert len(first.alerts) == 2
    late = make_alert("LLMOverload", pool="chat", fired_at=NOW + 300)
    assert first.id not in group_alerts([late], [first], NOW + 300, KNOWN, KINDS_OF_FAULTS)


def test_what_the_standing_cause_explains_joins_however_late() -> None:
    assert joined(OVERLOAD, onset_after_s=900, cause="kv_pressure")
    assert not joined(OVERLOAD, onset_after_s=900, cause="xid")
    assert not joined(OVERLOAD, onset_after_s=900, cause="unheard_of")


def test_a_prefix_drop_reopens_no_incident_of_numbers_that_stand_still() -> None:
    still = make_alert("LLMSignalFrozen", "node-1")
    (incident,) = group_alerts([still], [], NOW, KNOWN, KINDS_OF_FAULTS).values()
    over = resolve(clear(incident, still.fingerprint, NOW + 100), NOW + 120)
    drop = make_alert("LLMPrefixHitDrop", "node-1", fired_at=NOW + 400)
    assert over.id not in group_alerts([drop], [over], NOW + 400, KNOWN, KINDS_OF_FAULTS)
    again = replace(still, fired_at=NOW + 400)
    assert over.id in group_alerts([again], [over], NOW + 400, KNOWN, KINDS_OF_FAULTS)


def test_the_title_is_what_hurts_users_most_now() -> None:
    slow_node = replace(make_alert("LLMNodeSlow", "node-1"), summary="node-1 is slow")
    wrong = replace(make_alert("LLMWrongOutput", "node-1"), summary="node-1 gives wrong answers")
    down = replace(make_alert("LLMNodeDown", "node-1"), summary="node-1 is down")
    (incident,) = group_alerts([slow_node], [], NOW, KNOWN).values()
    for alert in (down, wrong):
        (incident,) = group_alerts([alert], [incident], NOW + 1, KNOWN).values()
    assert incident.title.startswith("node-1 gives wrong answers")
    incident = clear(incident, wrong.fingerprint, NOW + 60)
    assert incident.title.startswith("node-1 is down"), "what is over is not what hurts"
    incident = clear(incident, down.fingerprint, NOW + 61)
    assert incident.title == "node-1 is slow"
    over = clear(incident, slow_node.fingerprint, NOW + 62)
    assert over.title.startswith("node-1 gives wrong answers"), "the post-mortem's: what hurt most"


def test_queues_of_the_nodes_join_the_overload_of_their_pool() -> None:
    kinds = {name: AlertKind("capacity", False) for name in ("LLMOverload", "LLMQueueDepth")}
    book = group_alerts([make_alert("LLMOverload", pool="chat")], [], NOW, KNOWN, kinds)
    later = [make_alert("LLMQueueDepth", f"node-{i}", NOW + 120) for i in range(1, 10)]

    book |= group_alerts(later, book.values(), NOW + 120, KNOWN, kinds)

    assert [dict(one.scope) for one in book.values()] == [{"pool": "chat"}]


@pytest.mark.parametrize(("cause", "count"), [("gateway_crash", 1), ("controller_storage", 2), (None, 2)])
def test_alert_of_the_whole_fleet_joins_the_incident_whose_cause_explains_it(cause: str | None, count: int) -> None:
    kinds = {"LLMGatewayDied": AlertKind("gateway", False), "LLMRequestsLost": AlertKind("errors", False)}
    explains = {"gateway_crash": frozenset({"gateway", "errors"}), "controller_storage": frozenset({"controller"})}
    (died,) = after([[make_alert("LLMGatewayDied")]])
    died = with_diagnosis(died, Diagnosis("gateway", cause, confidence="likely"))
    lost = make_alert("LLMRequestsLost", fired_at=NOW + 40)
    found = {died.id: died} | group_alerts([lost], [died], NOW + 40, KNOWN, kinds, explains)
    assert len(found) == count


@pytest.mark.parametrize(
    ("cause", "pools", "count"), [("overload", 1, 1), ("overload", 2, 2), ("slow_node", 1, 2), (None, 1, 2)]
)
def test_alert_of_the_whole_fleet_joins_the_only_pool_whose_cause_explains_it(
    cause: str | None, pools: int, count: int
) -> None:
    kinds = {"LLMOverload": AlertKind("capacity", False), "LLMGatewayQueue": AlertKind("gateway", False)}
    explains = {"overload": frozenset({"capacity", "gateway"}), "slow_node": frozenset({"latency"})}
    known = {f"n-{i}": {"pool": f"pool-{i % pools}"} for i in range(4)}
    (pool,) = after([[make_alert("LLMOverload", pool="pool-0")]], known)
    pool = with_diagnosis(pool, Diagnosis("capacity", cause, confidence="likely"))
    queue = make_alert("LLMGatewayQueue", fired_at=NOW + 40)
    found = {pool.id: pool} | group_alerts([queue], [pool], NOW + 40, known, kinds, explains)
    assert len(found) == count


@pytest.mark.parametrize(
    ("cause", "severity", "count"), [("overload", "ticket", 1), ("overload", "page", 2), (None, "ticket", 2)]
)
def test_ticket_of_a_node_joins_the_pool_whose_cause_explains_it(cause: str | None, severity: str, count: int) -> None:
    kinds = {"LLMQueueGrowing": AlertKind("capacity", False), "LLMTTFTRegression": AlertKind("latency", False)}
    explains = {"overload": frozenset({"capacity", "latency"})}
    (pool,) = after([[make_alert("LLMQueueGrowing", pool="chat")]])
    pool = with_diagnosis(pool, Diagnosis("capacity", cause, confidence="likely"))
    late = replace(make_alert("LLMTTFTRegression", "node-3", NOW + 150), severity=severity)
    found = {pool.id: pool} | group_alerts([late], [pool], NOW + 150, KNOWN, kinds, explains)
    assert len(found) == count


def test_queue_of_a_node_joins_the_flood_of_its_pool_however_late() -> None:
    kinds = {"LLMQueueGrowing": AlertKind("capacity", False), "LLMQueueDepth": AlertKind("capacity", False)}
    (pool,) = after([[make_alert("LLMQueueGrowing", pool="chat")]])
    pool = with_diagnosis(pool, Diagnosis("capacity", "tenant_flood", confidence="likely"))
    depth = make_alert("LLMQueueDepth", "node-3", NOW + 400)
    changed = group_alerts([depth], [pool], NOW + 400, KNOWN, kinds, {"tenant_flood": frozenset({"capacity"})})
    assert list(changed) == [pool.id]


@pytest.mark.parametrize(("cause", "count"), [("downstream", 1), ("tenant_flood", 2)])
def test_pool_that_falls_silent_joins_the_incident_of_the_model_that_only_it_serves(cause: str, count: int) -> None:
    kinds = {"LLMGatewayFailOpen": AlertKind("gateway", False), "LLMNodeDown": AlertKind("node", False)}
    explains = {"downstream": frozenset({"gateway", "node"}), "tenant_flood": frozenset({"gateway"})}
    (model,) = after([[make_alert("LLMGatewayFailOpen", model="m")]])
    model = with_diagnosis(model, Diagnosis("gateway", cause, confidence="likely"))
    down = [make_alert("LLMNodeDown", f"node-{i}", NOW + 300) for i in range(1, 10)]
    found = {model.id: model} | group_alerts(down, [model], NOW + 300, KNOWN, kinds, explains)
    assert len(found) == count


def test_what_a_gateway_says_of_a_node_alone_joins_the_incident_of_the_nodes_model() -> None:
    kinds = {name: AlertKind("gateway", False) for name in ("LLMGatewayFailOpen", "LLMGatewayNodeEjected")}
    (model,) = after([[make_alert("LLMGatewayFailOpen", model="m")]])
    model = with_diagnosis(model, Diagnosis("gateway", "downstream", confidence="likely"))
    ejected = FiredAlert("e", "LLMGatewayNodeEjected", "ticket", "firing", {"node": "node-1"})
    explains = {"downstream": frozenset({"gateway"})}
    changed = group_alerts([ejected], [model], NOW + 300, KNOWN, kinds, explains)
    assert list(changed) == [model.id]


FAILING = {"bad_deploy_errors": frozenset({"errors", "gateway", "output"})}
FAILING_KINDS = {
    "LLMErrorRate": AlertKind("errors", False),
    "LLMWrongOutput": AlertKind("output", True),
    "LLMGatewayNodeEjected": AlertKind("gateway", False),
}


@pytest.mark.parametrize(("node", "count"), [("node-1", 1), ("node-2", 2)])
def test_wrong_answers_join_the_cause_that_explains_them_on_their_own_node(node: str, count: int) -> None:
    (failing,) = after([[make_alert("LLMErrorRate", "node-1")]])
    failing = with_diagnosis(failing, Diagnosis("errors", "bad_deploy_errors", confidence="likely"))
    wrong = make_alert("LLMWrongOutput", node, NOW + 5)
    found = {failing.id: failing} | group_alerts([wrong], [failing], NOW + 5, KNOWN, FAILING_KINDS, FAILING)
    assert len(found) == count


@pytest.mark.parametrize(("began_s", "is_reopened"), [(60.0, True), (130.0, False)])
def test_what_began_before_an_incident_was_over_and_is_explained_by_it_opens_it_again(
    began_s: float, is_reopened: bool
) -> None:
    (failing,) = after([[make_alert("LLMErrorRate", "node-1"), make_alert("LLMWrongOutput", "node-1")]])
    told = with_diagnosis(failing, Diagnosis("errors", "bad_deploy_errors", confidence="likely"))
    for alert in told.alerts:
        told = clear(told, alert.fingerprint, NOW + 100)
    closed = resolve(told, NOW + 110)
    labels = {"node": "node-1"}  # no word of its pool
    ejected = FiredAlert(
        "e", "LLMGatewayNodeEjected", "ticket", "firing", labels, active_at=NOW + began_s, fired_at=NOW + 250
    )
    changed = group_alerts([ejected], [closed], NOW + 250, KNOWN, FAILING_KINDS, FAILING)
    assert (closed.id in changed) == is_reopened


@pytest.mark.parametrize(
    ("severity", "node", "began_s", "goes_on"),
    [
        ("ticket", "node-3", 60.0, True),
        ("ticket", "node-3", 130.0, False),  # it began after the overload
        ("ticket", "node-12", 60.0, False),  # of another pool
        ("page", "node-3", 60.0, False),
    ],
)
def test_ticket_of_a_node_that_an_overload_left_behind_is_no_incident_of_its_own(
    severity: str, node: str, began_s: float, goes_on: bool
) -> None:
    kinds = {"LLMQueueGrowing": AlertKind("capacity", False), "LLMQueueWait": AlertKind("capacity", False)}
    (pool,) = after([[make_alert("LLMQueueGrowing", pool="chat", model="m")]])
    told = with_diagnosis(pool, Diagnosis("capacity", "overload", confidence="confirmed"))
    closed = resolve(clear(told, told.alerts[0].fingerprint, NOW + 100), NOW + 110)
    wait = replace(make_alert("LLMQueueWait", node, NOW + 108), severity=severity, active_at=NOW + began_s)
    changed = group_alerts([wait], [closed], NOW + 111, KNOWN, kinds, {"overload": frozenset({"capacity"})})
    assert (closed.id in changed) == goes_on
    if goes_on:  # it is what it was: its queue is worked off
        (again,) = changed.values()
        assert again.diagnosis == closed.diagnosis
        assert again.onset_at == closed.onset_at
