"""Who is told what, in which thread, when it is held back, and who is told when nobody answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics.incident import IncidentStatus
from diagnostics.severity import severity_rank
from fleetctl.controller.notifications.notice import NoticeKind
from fleetctl.controller.notifications.notification import TRANSITIONS, NotificationState
from fleetctl.controller.notifications.quiet_hours import quiet_until
from runbooks.run import RunStatus
from tests.fixtures.notifying import (
    NIGHT,
    World,
    acknowledged,
    make_incident,
    make_settings,
    pager,
    resolved,
    slack,
    with_cause,
)
from tests.fixtures.runbooks import make_run

QUIET = {"start": "22:00", "end": "07:00", "time_zone": "UTC", "unless": "critical"}


def kinds(rows: list) -> list[str]:
    return [row.kind.value for row in rows]


def test_an_incident_is_told_once_and_then_only_what_is_new_about_it_in_the_same_thread() -> None:
    world = World(make_settings(slack()))
    incident = world.put(make_incident())
    (first,) = world.turn()
    assert (first.kind, first.thread, world.turn()) == (NoticeKind.OPENED, incident.id, [])
    incident = world.put(with_cause(incident, "slow_node"))
    (cause,) = world.turn()
    assert cause.notice.news == ("cause found: slow_node (confirmed)",)
    incident = world.put(with_cause(incident, "gpu_fault"))
    (replaced,) = world.turn()
    assert replaced.notice.news == ("cause replaced: gpu_fault (confirmed), not slow_node",)
    run = make_run(incident_id=incident.id, reason="its steps are slow")
    for status, said in (
        (RunStatus.PROPOSED, "approval asked: replace-node: its steps are slow"),
        (RunStatus.RUNNING, "replace-node has begun"),
        (RunStatus.SUCCEEDED, "mitigated: replace-node is done"),
    ):
        world.runs[incident.id] = (replace(run, status=status),)
        (told,) = world.turn()
        assert told.notice.news[0].startswith(said)
    incident = world.put(acknowledged(incident))
    (seen,) = world.turn()
    assert (seen.kind, seen.notice.news) == (NoticeKind.ACKNOWLEDGED, ("ann has acknowledged it",))
    world.put(resolved(incident))
    (last,) = world.turn()
    assert (last.kind, last.is_last_of_thread) == (NoticeKind.RESOLVED, True)
    assert {row.thread for row in world.rows.values()} == {incident.id}
    assert world.wait(7200) == []


def test_the_first_message_waits_for_a_cause_and_not_for_long() -> None:
    world = World(make_settings(slack(), wait_for_cause_s=5))
    incident = world.put(make_incident())
    assert world.turn() == []
    world.put(with_cause(incident, "slow_node"))
    assert [row.notice.news[-1] for row in world.turn()] == ["cause found: slow_node (confirmed)"]
    world.put(make_incident("node-3"))
    world.now += 5
    assert len(world.turn()) == 1


def test_routes_choose_by_severity_pool_and_team_and_the_first_that_fits_decides() -> None:
    routes = [
        {"severity": "critical", "receivers": ["pager"], "more": True},
        {"pools": ["chat"], "teams": ["search"], "receivers": ["search"]},
        {"pools": ["batch"], "receivers": []},
        {"receivers": ["rest"]},
    ]
    receivers = [pager(), slack("search"), slack("rest")]
    for incident, names in (
        (make_incident(severity="critical", team="search"), {"pager", "search"}),
        (make_incident(team="search"), {"search"}),
        (make_incident(team="ads"), {"rest"}),
        (make_incident(pool="batch"), set()),
    ):
        world = World(make_settings(*receivers, routes=routes))
        world.put(incident)
        assert {row.receiver for row in world.turn()} == names


def test_who_was_told_hears_the_end_even_where_no_route_names_him_any_more() -> None:
    world = World(make_settings(slack(), routes=[{"severity": "page", "receivers": ["chat"]}]))
    incident = world.put(make_incident())
    world.turn()
    world.put(replace(resolved(incident), severity="ticket"))
    assert kinds(world.turn()) == ["resolved"]


def test_what_mended_it_the_last_time_is_no_news_of_one_that_comes_back() -> None:
    """ "Mitigated: reroute-long-context is done" came a second after it was there again."""
    world = World(make_settings(pager()))
    incident = world.put(make_incident())
    world.turn()
    helped = make_run(RunStatus.SUCCEEDED, incident_id=incident.id)
    world.runs[incident.id] = (replace(helped, updated_at=world.now),)
    world.put(resolved(incident))
    world.turn()
    world.now += 60.0
    world.put(replace(incident, reopened=1, clock_at=world.now))
    (told,) = world.turn()
    assert told.notice.news[0] == "it came back"
    assert not any("mitigated" in one for one in told.notice.news)


def test_one_that_comes_back_is_a_new_thread_and_is_resolved_there() -> None:
    world = World(make_settings(pager()))
    incident = world.put(make_incident())
    world.turn()
    world.put(resolved(incident))
    world.turn()
    again = world.put(replace(incident, reopened=1))
    (told,) = world.turn()
    assert (told.kind, told.thread, told.notice.news[0]) == (NoticeKind.OPENED, f"{incident.id}.1", "it came back")
    world.put(resolved(again))
    assert [(row.kind, row.thread) for row in world.turn()] == [(NoticeKind.RESOLVED, f"{incident.id}.1")]


def test_what_was_not_sent_yet_goes_into_the_next_message_which_says_all_of_it() -> None:
    world = World(make_settings(slack()))
    incident = world.put(make_incident())
    world.look()
    world.put(acknowledged(with_cause(incident, "slow_node")))
    world.look()
    waiting = [row for row in world.rows.values() if row.state is NotificationState.WAITING]
    (row,) = waiting
    assert row.kind is NoticeKind.OPENED
    assert row.notice.news == ("opened", "cause found: slow_node (confirmed)", "ann has acknowledged it")
    assert Counter(one.state.value for one in world.rows.values()) == {"waiting": 1, "merged": 1}


def test_what_is_being_sent_is_left_alone() -> None:
    world = World(make_settings(slack()))
    incident = world.put(make_incident())
    (first,) = world.look()
    world.put(with_cause(incident, "slow_node"))
    (second,) = world.look(in_flight=[first.id])
    assert (world.rows[first.id].state, second.kind) == (NotificationState.WAITING, NoticeKind.UPDATE)


def test_a_pager_is_not_called_for_what_was_over_before_it_could_be() -> None:
    world = World(make_settings(pager(quiet_hours=QUIET), slack(quiet_hours=QUIET)))
    incident = world.put(make_incident())
    world.turn()
    world.put(resolved(incident))
    world.turn()
    of_pager = [row for row in world.rows.values() if row.receiver == "pager"]
    assert [(row.state, row.why) for row in of_pager] == [(NotificationState.DROPPED, "it was over before it was told")]
    (told,) = world.wait(10 * 3600)
    assert (told.receiver, told.kind) == ("chat", NoticeKind.RESOLVED)


def test_quiet_hours_hold_messages_back_and_end_in_one_digest() -> None:
    world = World(make_settings(slack(quiet_hours=QUIET)))
    for number in range(3):
        world.put(make_incident(f"node-{number}"))
    assert world.wait(8 * 3600) == [], "it is 06:13"
    (digest,) = world.wait(3600)
    assert digest.kind is NoticeKind.DIGEST
    assert len(digest.notice.lines) == 3
    assert "3 incidents in quiet hours" in digest.notice.headline
    held = [row for row in world.rows.values() if row.incident_id]
    assert {(row.state, row.merged_into) for row in held} == {(NotificationState.MERGED, digest.id)}
    assert {row.thread for row in held} == {digest.id}
    first = next(iter(world.incidents.values()))
    world.put(resolved(first))
    (told,) = world.turn()
    assert (told.thread, told.is_last_of_thread) == (digest.id, False), "two of its thread stand"


def test_what_is_new_about_one_of_a_digest_calls_nobody_at_a_pager_until_all_are_over() -> None:
    world = World(make_settings(pager(quiet_hours=QUIET)))
    one, other = world.put(make_incident("node-1")), world.put(make_incident("node-2"))
    (digest,) = world.wait(9 * 3600)
    world.put(acknowledged(with_cause(one, "slow_node")))
    assert world.wait(600) == []
    world.put(replace(one, severity="critical"))
    assert [(row.kind, row.thread) for row in world.turn()] == [(NoticeKind.UPDATE, digest.id)]
    world.put(resolved(one))
    assert world.wait(600) == []
    world.put(resolved(other))
    (last,) = world.turn()
    assert (last.kind, last.thread, last.is_last_of_thread) == (NoticeKind.RESOLVED, digest.id, True)


def test_that_a_silenced_incident_is_over_is_told_all_the_same() -> None:
    world = World(make_settings(pager()))
    incident = world.put(make_incident())
    world.turn()
    handling = replace(incident.handling, silenced_until=NIGHT + 7200)
    world.put(resolved(replace(incident, handling=handling)))
    assert kinds(world.turn()) == ["resolved"]


def test_what_is_grave_enough_is_told_in_quiet_hours_and_so_is_what_becomes_so() -> None:
    world = World(make_settings(slack(quiet_hours=QUIET)))
    world.put(make_incident("node-1", "critical"))
    calm = world.put(make_incident("node-2", "page"))
    assert [row.incident_id for row in world.turn()] != [calm.id]
    world.put(replace(calm, severity="critical"))
    (told,) = world.turn()
    assert (told.incident_id, told.kind) == (calm.id, NoticeKind.OPENED)


def test_a_storm_is_a_few_messages_and_a_digest() -> None:
    world = World(make_settings(slack(), pager(), max_messages=5, window_s=60))
    for number in range(100):
        world.put(make_incident(f"node-{number}", "critical" if number == 99 else "page"))
    out = world.turn()
    assert Counter(row.receiver for row in out) == {"chat": 5, "pager": 5}
    assert out[0].notice.severity == "critical", "the gravest first"
    late = world.wait(60)
    assert Counter((row.receiver, row.kind.value) for row in late) == {("chat", "digest"): 1, ("pager", "digest"): 1}
    assert len(late[0].notice.lines) == 95
    for incident in list(world.incidents.values()):
        world.put(resolved(incident))
    over = [row for row in world.wait(600) if row.receiver == "chat"]
    assert len(over) <= 6
    threads = {row.thread for row in world.rows.values() if row.receiver == "pager"}
    closed = [row for row in world.rows.values() if row.receiver == "pager" and row.is_last_of_thread]
    assert {row.thread for row in closed} == threads, "nothing stays open at the pager"
    assert len(closed) == len(threads), "and a digest is closed once"


def test_a_wider_incident_that_explains_one_is_told_alone() -> None:
    world = World(make_settings(slack()))
    wide = world.put(make_incident("zone-a"))
    world.put(replace(make_incident("node-7"), part_of=wide.id))
    assert [row.incident_id for row in world.turn()] == [wide.id]


def test_a_silenced_incident_is_not_told_until_that_is_over() -> None:
    world = World(make_settings(slack()))
    incident = make_incident()
    world.put(replace(incident, handling=replace(incident.handling, silenced_until=NIGHT + 600)))
    assert world.wait(540) == []
    assert kinds(world.wait(120)) == ["opened"]


ESCALATION = {"after_s": 600, "to": ["lead", "boss"]}


def test_the_chain_is_told_one_after_the_other_until_it_ends() -> None:
    routes = [{"receivers": ["chat"], "escalation": ESCALATION}]
    world = World(make_settings(slack(), slack("lead"), slack("boss"), routes=routes))
    incident = world.put(make_incident())
    out = world.wait(7200)
    assert [(row.receiver, row.kind.value, row.created_at - NIGHT) for row in out] == [
        ("chat", "opened", 0.0),
        ("lead", "escalated", 600.0),
        ("boss", "escalated", 1200.0),
    ]
    assert out[1].notice.news[0] == "nobody has acknowledged it for 10 min; told: chat"
    world.put(resolved(incident))
    assert {row.receiver for row in world.turn()} == {"chat", "lead", "boss"}


def test_the_next_of_the_chain_hears_whom_no_message_has_reached() -> None:
    routes = [{"receivers": ["chat", "mail"], "escalation": ESCALATION}]
    world = World(make_settings(slack(), slack("mail"), slack("lead"), slack("boss"), routes=routes))
    world.put(make_incident())
    for row in world.look():
        world.rows[row.id] = row.moved(NotificationState.DELIVERED, NIGHT) if row.receiver == "mail" else row
    world.now += 600
    (told,) = [row for row in world.look() if row.receiver == "lead"]
    assert told.notice.news[0] == "nobody has acknowledged it for 10 min; told: mail; not reached: chat"


def test_whose_message_is_held_back_in_quiet_hours_was_not_out_of_reach() -> None:
    routes = [{"receivers": ["chat", "ann"], "escalation": ESCALATION}]
    asleep = slack("ann", quiet_hours=QUIET)
    world = World(make_settings(slack(), asleep, slack("lead"), slack("boss"), routes=routes))
    world.put(make_incident())
    (told,) = [row for row in world.wait(660) if row.receiver == "lead"]
    assert told.notice.news[0] == "nobody has acknowledged it for 10 min; told: chat; held back in quiet hours: ann"


def test_a_proposal_gives_its_reason_where_it_is_not_the_cause_that_the_message_says_anyway() -> None:
    world = World(make_settings(slack()))
    incident = world.put(with_cause(make_incident(), "slow_node"))
    world.runs[incident.id] = (make_run(incident_id=incident.id, reason=incident.diagnosis.title),)
    (told,) = world.turn()
    assert told.notice.news[-1] == "approval asked: replace-node"


@pytest.mark.parametrize("change", [acknowledged, resolved])
def test_nobody_more_is_told_once_somebody_has_it_or_it_is_over(change) -> None:
    routes = [{"receivers": ["chat"], "escalation": ESCALATION}]
    world = World(make_settings(slack(), slack("lead"), slack("boss"), routes=routes))
    incident = world.put(make_incident())
    world.wait(660)
    world.put(change(incident))
    assert "boss" not in {row.receiver for row in world.wait(7200)}


def test_nobody_is_blamed_for_not_answering_what_was_held_back() -> None:
    routes = [{"receivers": ["chat"], "escalation": ESCALATION}]
    world = World(make_settings(slack(quiet_hours=QUIET), slack("lead"), slack("boss"), routes=routes))
    world.put(make_incident())
    assert world.wait(8 * 3600) == []
    out = world.wait(2 * 3600)
    assert [row.receiver for row in out] == ["chat", "lead", "boss"]


def test_a_receiver_that_is_gone_from_the_settings_gets_nothing_more() -> None:
    world = World(make_settings(slack(), slack("other")))
    world.put(make_incident())
    world.look()
    world.settings = make_settings(slack())
    world.look()
    assert {row.receiver: row.state.value for row in world.rows.values()} == {"chat": "waiting", "other": "dropped"}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 9), st.sampled_from(["ticket", "page", "critical"])),
        st.tuples(st.sampled_from(["ack", "resolve", "reopen", "cause", "graver"]), st.integers(0, 9), st.just("")),
        st.tuples(st.just("wait"), st.integers(1, 240), st.just("")),
        st.tuples(st.sampled_from(["send", "fail", "fly"]), st.just(0), st.just("")),
    ),
    max_size=40,
)


def act(world: World, step: tuple[str, int, str]) -> None:
    what, number, severity = step
    name = f"node-{number}"
    found = next((one for one in world.incidents.values() if one.scope.get("node") == name), None)
    match what:
        case "open" if found is None:
            world.put(make_incident(name, severity, world.now))
        case "ack" if found is not None:
            world.put(acknowledged(found, at=world.now))
        case "resolve" if found is not None:
            world.put(resolved(found, world.now))
        case "reopen" if found is not None and found.status is IncidentStatus.RESOLVED:
            handling = found.handling.after_reopening()
            world.put(replace(found, status=IncidentStatus.OPEN, reopened=found.reopened + 1, handling=handling))
        case "cause" if found is not None:
            world.put(with_cause(found, f"cause-{len(world.history) % 3}"))
        case "graver" if found is not None:
            world.put(replace(found, severity="critical"))
        case "wait":
            world.now += 60.0 * number
        case "send":
            world.send()
        case "fail":
            world.send(NotificationState.FAILED)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_whatever_happens_rows_end_once_limits_hold_and_a_second_look_finds_nothing_to_do(steps) -> None:
    routes = [{"receivers": ["chat", "pager"], "escalation": {"after_s": 600, "to": ["lead", "chat"], "most": 3}}]
    world = World(
        make_settings(slack(quiet_hours=QUIET), pager(), slack("lead"), routes=routes, max_messages=3, window_s=300)
    )
    for step in steps:
        before = dict(world.rows)
        act(world, step)
        flying = [row.id for row in world.rows.values() if row.state is NotificationState.WAITING]
        in_flight = flying if step[0] == "fly" else []
        changed = world.look(in_flight)
        assert world.look(in_flight) == [], "what was planned is what there is to do"
        for row in changed:
            was = before.get(row.id)
            assert was is None or row.state is was.state or row.state in TRANSITIONS[was.state]
        quiet = world.settings.receiver("chat").quiet_hours  # type: ignore[union-attr]
        for row in changed:
            if row.receiver == "chat" and row.state is NotificationState.WAITING:
                assert quiet_until(quiet, row.notice.severity, world.now) is None
        check(world)
    drain(world)


def check(world: World) -> None:
    rows = world.rows.values()
    told = [row for row in rows if row.escalation]
    per_incident = Counter((row.incident_id, world.incidents[row.incident_id or ""].reopened) for row in told)
    assert all(count <= 3 * (1 + reopened) for (_, reopened), count in per_incident.items())
    for receiver in ("chat", "lead", "pager"):
        now = [
            row
            for row in rows
            if row.receiver == receiver
            and row.kind is not NoticeKind.DIGEST
            and row.due_at > world.now - 300
            and row.state in (NotificationState.WAITING, NotificationState.DELIVERED, NotificationState.FAILED)
            and (row.kind.calls or receiver != "pager")
        ]
        assert len(now) <= 3 + sum(row.next_at != row.created_at for row in now), receiver
    merged = [row for row in rows if row.state is NotificationState.MERGED]
    assert all(row.merged_into in world.rows for row in merged), "where it went can be looked up"


def drain(world: World) -> None:
    """All is resolved, time goes on: each row has its end, and everybody who was told of one knows that it is over."""
    for incident in list(world.incidents.values()):
        world.put(resolved(incident, world.now))
    for _ in range(30):
        world.turn()
        world.now += 3600
    assert all(row.state.is_terminal for row in world.rows.values())
    assert all(row.ended_at is not None for row in world.rows.values())
    for receiver in ("chat", "pager", "lead"):
        for incident in world.incidents.values():
            mine = [row for row in world.rows.values() if (row.receiver, row.incident_id) == (receiver, incident.id)]
            assert not mine or "resolved" in mine[-1].said
    opened = {row.thread for row in world.rows.values() if row.receiver == "pager" and row.state.value == "delivered"}
    closed = {row.thread for row in world.rows.values() if row.receiver == "pager" and row.is_last_of_thread}
    assert opened <= closed, "nothing stays open at the pager"
    assert severity_rank("critical") == 3
