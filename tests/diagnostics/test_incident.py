"""Which alerts make one incident, and when it is over."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from diagnostics.grouping import group_alert
from diagnostics.incident import (
    FiredAlert,
    Incident,
    IncidentStatus,
    clear,
    is_over,
    is_to_say_again,
    join,
    looks_back_s,
    mitigate,
    nodes_of,
    observe,
    open_incident,
    resolve,
    say_again,
    unmitigate,
)

NOW = 1_700_000_000.0


def make_alert(
    name: str = "LLMNodeSlow", node: str | None = "node-2", pool: str | None = "chat", **fields: object
) -> FiredAlert:
    labels = {key: value for key, value in (("node", node), ("pool", pool)) if value is not None}
    alert = FiredAlert(
        fingerprint=f"{name}-{node}-{pool}",
        name=name,
        severity="page",
        state="firing",
        labels=labels,
        summary=f"{name} summary",
        active_at=NOW - 10,
        fired_at=NOW,
    )
    return replace(alert, **fields)  # type: ignore[arg-type]


def test_opens_one_with_the_scope_of_the_alert() -> None:
    incident = open_incident(make_alert(), NOW)

    assert dict(incident.scope) == {"node": "node-2", "pool": "chat"}
    assert incident.title == "LLMNodeSlow summary"
    assert incident.id.startswith("inc-20231114-221320-")
    assert (incident.status, incident.severity) == (IncidentStatus.OPEN, "page")


def test_opening_the_same_alert_twice_gives_the_same_id() -> None:
    assert open_incident(make_alert(), NOW).id == open_incident(make_alert(), NOW + 3).id
    assert open_incident(make_alert(), NOW).id != open_incident(make_alert(node="node-3"), NOW).id


def test_alerts_of_one_node_are_one_incident() -> None:
    first = group_alert(make_alert(severity="ticket"), [], NOW)
    second = group_alert(make_alert("LLMQueueDepth"), [first], NOW + 5)

    assert second.id == first.id
    assert [alert.name for alert in second.alerts] == ["LLMNodeSlow", "LLMQueueDepth"]
    assert dict(second.scope) == {"node": "node-2", "pool": "chat"}
    assert second.severity == "page"  # the gravest of its alerts
    assert second.title == "LLMQueueDepth summary (also LLMNodeSlow)"


def test_the_scope_keeps_the_pool_when_a_later_alert_of_the_node_lacks_it() -> None:
    first = group_alert(make_alert(severity="ticket"), [], NOW)
    second = group_alert(make_alert("LLMGatewayNodeEjected", pool=None), [first], NOW)

    assert dict(second.scope) == {"node": "node-2", "pool": "chat"}
    assert second.title == "LLMGatewayNodeEjected summary (also LLMNodeSlow)"


def test_the_same_alert_on_several_nodes_widens_to_the_pool() -> None:
    first = group_alert(make_alert("LLMQueueDepth"), [], NOW)
    second = group_alert(make_alert("LLMQueueDepth", node="node-3"), [first], NOW)

    assert second.id == first.id
    assert dict(second.scope) == {"pool": "chat"}
    assert second.title == "LLMQueueDepth on pool chat"
    assert nodes_of(second) == ["node-2", "node-3"]


def test_what_one_node_alone_has_in_a_wider_incident_is_told_of_that_node() -> None:
    """ "LLMRequestsLost on the fleet" was all that was said of five requests that node-2 lost."""
    fleet = replace(make_alert("LLMRequestsLost"), labels={}, fingerprint="of the way", summary="lost on the way: 1")
    ended = clear(open_incident(fleet, NOW), "of the way", NOW + 60)
    joined = join(ended, make_alert("LLMRequestsLost"), NOW + 70)
    assert dict(joined.scope) == {}
    assert joined.title == "LLMRequestsLost summary"
    both = join(joined, make_alert("LLMRequestsLost", node="node-3"), NOW + 80)
    assert both.title == "LLMRequestsLost on the fleet"


def test_another_alert_of_a_node_inside_a_pool_incident_joins_it() -> None:
    first = group_alert(make_alert("LLMQueueDepth"), [], NOW)
    pool = group_alert(make_alert("LLMQueueDepth", node="node-3"), [first], NOW)
    third = group_alert(make_alert("LLMNodeDown", node="node-3"), [pool], NOW)

    assert third.id == pool.id
    assert dict(third.scope) == {"pool": "chat"}


def test_prefers_the_incident_of_the_node_over_that_of_the_pool() -> None:
    pool = group_alert(make_alert("LLMQueueDepth", node="node-1"), [], NOW)
    node = group_alert(make_alert("LLMNodeSlow"), [], NOW)

    assert group_alert(make_alert("LLMQueueDepth"), [pool, node], NOW).id == node.id


def test_different_alerts_on_different_nodes_stay_apart() -> None:
    first = group_alert(make_alert("LLMNodeSlow", node="node-1"), [], NOW)
    second = group_alert(make_alert("LLMNodeDown", node="node-2"), [first], NOW)
    other_pool = group_alert(make_alert("LLMNodeSlow", node="node-9", pool="batch"), [first], NOW)

    assert len({first.id, second.id, other_pool.id}) == 3


def test_an_alert_that_fires_again_is_kept_once() -> None:
    incident = group_alert(make_alert(value=3.0), [], NOW)
    again = group_alert(make_alert(value=4.0), [incident], NOW + 5)

    assert [alert.value for alert in again.alerts] == [4.0]


def settled(incident: Incident, now: float) -> Incident:
    for alert in incident.alerts:
        incident = clear(incident, alert.fingerprint, now)
    return incident


def test_is_over_only_when_every_alert_is_clear_and_no_run_acts() -> None:
    incident = join(open_incident(make_alert(), NOW), make_alert("LLMQueueDepth"), NOW)
    half = clear(incident, incident.alerts[0].fingerprint, NOW + 10)
    assert not is_over(half, NOW + 1000)

    done = settled(half, NOW + 20)
    assert is_over(done, NOW + 20)
    assert not is_over(done, NOW + 20, has_active_run=True)
    assert not is_over(done, NOW + 29, quiet_s=10)
    assert is_over(done, NOW + 30, quiet_s=10)
    assert done.alerts[1].resolved_at == NOW + 20


def test_an_alert_without_signal_keeps_it_open() -> None:
    incident = observe(open_incident(make_alert(), NOW), make_alert(state="unknown"), NOW + 5)

    assert incident.cleared_at is None
    assert not is_over(incident, NOW + 10_000)
    assert incident.alerts[0].state == "unknown"


def test_observes_only_its_own_alerts() -> None:
    incident = open_incident(make_alert(), NOW)

    assert observe(incident, make_alert("LLMNodeDown", state="resolved"), NOW + 5) == incident
    assert is_over(observe(incident, make_alert(state="resolved"), NOW + 5), NOW + 5)


def test_firing_again_before_the_end_starts_the_quiet_time_anew() -> None:
    done = settled(open_incident(make_alert(), NOW), NOW + 10)
    again = group_alert(make_alert(), [done], NOW + 15)

    assert again.cleared_at is None
    assert settled(again, NOW + 40).cleared_at == NOW + 40


def test_flapping_reopens_the_same_incident() -> None:
    closed = resolve(settled(open_incident(make_alert(), NOW), NOW + 50), NOW + 60)
    again = group_alert(make_alert(fired_at=NOW + 300), [closed], NOW + 300)

    assert (again.id, again.status, again.reopened) == (closed.id, IncidentStatus.OPEN, 1)
    assert again.resolved_at is None
    assert again.cleared_at is None


def test_a_pool_incident_reopens_for_the_node_that_it_began_with() -> None:
    first = group_alert(make_alert("LLMQueueDepth"), [], NOW)
    pool = group_alert(make_alert("LLMQueueDepth", node="node-3"), [first], NOW)
    closed = resolve(settled(pool, NOW + 50), NOW + 60)

    assert group_alert(make_alert("LLMNodeSlow"), [closed], NOW + 100).id == closed.id


def test_after_ten_minutes_or_elsewhere_it_is_a_new_incident() -> None:
    closed = resolve(settled(open_incident(make_alert(), NOW), NOW + 50), NOW + 60)

    late = group_alert(make_alert(fired_at=NOW + 661), [closed], NOW + 661)
    elsewhere = group_alert(make_alert(node="node-3", fired_at=NOW + 100), [closed], NOW + 100)

    assert closed.id not in (late.id, elsewhere.id)
    assert late.reopened == 0


def test_moves_between_open_and_mitigating() -> None:
    acting = mitigate(open_incident(make_alert(), NOW))
    assert acting.status is IncidentStatus.MITIGATING
    assert unmitigate(acting).status is IncidentStatus.OPEN
    assert resolve(acting, NOW + 9).resolved_at == NOW + 9


def test_what_an_alert_tells_began_as_far_before_it_as_its_expression_looks_back() -> None:
    """A node silent for a minute: its users felt that minute, and the post-mortem has to count it."""
    silent = make_alert("LLMNodeDown", looks_back_s=60.0)

    incident = open_incident(silent, NOW)

    assert incident.onset_at == NOW - 70
    assert join(incident, make_alert("LLMQueueDepth", active_at=NOW - 30), NOW).onset_at == NOW - 70


def test_an_annotation_that_is_no_duration_looks_back_nowhere() -> None:
    assert looks_back_s("1m15s") == 75.0
    assert looks_back_s("<error expanding template>") == 0.0
    assert looks_back_s("") == 0.0


def test_the_title_of_what_is_over_says_what_hurt_most_not_what_cleared_last() -> None:
    slow = make_alert("LLMNodeSlow", severity="page", summary="node-2 is slow: 130ms a decode step")
    ticket = make_alert("LLMTTFTRegression", severity="ticket", summary="node-2: first token after 60.3ms")
    incident = join(open_incident(slow, NOW), ticket, NOW)

    while_one_stands = clear(incident, slow.fingerprint, NOW + 60)
    over = clear(while_one_stands, ticket.fingerprint, NOW + 90)

    assert while_one_stands.title == "node-2: first token after 60.3ms"
    assert over.title == "node-2 is slow: 130ms a decode step (also LLMTTFTRegression)"


def test_the_title_has_the_number_of_now_and_of_what_is_over_the_worst_one_with_when() -> None:
    """ "one in twenty requests waits 2.1s" stood there an hour later, of waits of four minutes."""
    first = make_alert("LLMQueueWait", summary="node-2: one in twenty waits 2s", value=2.0)
    incident = open_incident(first, NOW)
    for after_s, value in ((40.0, 240.0), (80.0, 30.0), (120.0, 3.0)):
        assert is_to_say_again(incident, NOW + after_s)
        again = replace(first, summary=f"node-2: one in twenty waits {value:.0f}s", value=value)
        incident = say_again(incident, again, NOW + after_s, 1)
        assert incident.title == again.summary
        assert not is_to_say_again(incident, NOW + after_s + 10), "each change is a write"
    over = clear(incident, first.fingerprint, NOW + 150)
    at = datetime.fromtimestamp(NOW + 40, UTC).strftime("%H:%M:%S")
    assert over.title == f"node-2: one in twenty waits 240s, at {at} UTC"
    (alert,) = over.alerts
    assert (alert.value, alert.said_at, alert.worst_value) == (3.0, NOW + 120, 240.0)
    lost = join(incident, replace(first, state="unknown"), NOW + 140)
    assert lost.alerts[0].worst_value == 240.0, "what is not known for a moment was seen all the same"
    assert lost.alerts[0].said_at == NOW + 120
    assert join(lost, first, NOW + 160).alerts[0].said_at == NOW + 160, "it is known again, and says this now"


def test_of_what_gets_worse_by_falling_or_nobody_knows_how_the_lowest_or_the_first_is_told_at_the_end() -> None:
    for worsens, told in ((-1, "hits 9%, at "), (0, "hits 40%")):
        incident = open_incident(make_alert("LLMPrefixHitDrop", summary="hits 40%", value=0.4), NOW)
        for after_s, value in ((40.0, 0.09), (80.0, 0.35)):
            again = replace(incident.alerts[0], summary=f"hits {value:.0%}", value=value)
            incident = say_again(incident, again, NOW + after_s, worsens)
        over = clear(incident, incident.alerts[0].fingerprint, NOW + 90)
        assert over.title.startswith(told)
