"""The cockpit driven as a person drives it: snapshots in, keys pressed, texts on the screen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

import pytest
from textual.pilot import Pilot

from fleetctl.kit.errors import BadInputError, RefusedError, UnreachableError
from fleetctl.told_node import KnownNodes
from fleetctl.tui.app import Cockpit
from fleetctl.tui.live_table import LiveTable
from fleetctl.tui.messages import SnapshotTaken
from fleetctl.tui.place import JUMPS, Place
from fleetctl.tui.reader import SnapshotReader
from fleetctl.tui.run import run_cockpit
from fleetctl.tui.snapshot import Part, Snapshot, Wanted
from fleetctl.wire.incident import IncidentStatus
from fleetctl.wire.node import NodePhase
from fleetctl.wire.run import RunStatus
from tests.fixtures.cockpit import NOW, FakeController, make_incident, make_node, make_run, make_status
from tests.fixtures.cockpit_screen import NARROW, WIDE, cockpit, screen, screen_lines, wait_for, wait_for_text

pytestmark = pytest.mark.anyio


async def test_shows_the_fleet_at_a_glance() -> None:
    async with cockpit(FakeController()) as (app, pilot):
        await pilot.press("g", "f")
        header = ("▲ 1 firing  1 incident  2/3 ready  policy ask", "● controller ok")
        await wait_for_text(pilot, "node-3", *header)
        text = screen(app)

        assert re.search(r"pool default  1/3 ready", text)
        assert re.search(r"node-1 +● ready +7 +0 +██▌ +42% +210ms +- +1s", text)
        assert re.search(r"node-2 +◐ draining .* 97% +1\.4s .*▲ 1", text)
        assert re.search(r"node-3 +✗ unreachable +3\? +- +- +300ms\? +- +95s", text)


async def test_nodes_are_shown_as_they_change_and_read_as_a_list_only_while_nobody_tells_of_them() -> None:
    controller = FakeController()
    async with cockpit(controller) as (app, pilot):
        await pilot.press("g", "f")
        await wait_for(pilot, lambda: "node events" in controller.asked and "node-3" in screen(app))
        controller.nodes_now[0] = make_node("node-1", phase=NodePhase.NOT_READY)
        await wait_for(pilot, lambda: re.search(r"node-1 +\S+ not ready", screen(app)))
        lists = controller.asked.count("nodes")
        del controller.nodes_now[1]
        await wait_for(pilot, lambda: "node-2" not in screen(app))
        assert controller.asked.count("nodes") == lists

        controller.away = UnreachableError("no answer")
        await wait_for_text(pilot, "controller unreachable")
        assert "node-3" in screen(app)
        controller.away = None
        controller.nodes_now.append(make_node("node-4"))
        await wait_for_text(pilot, "node-4")
        assert controller.asked.count("node events") > 1


async def test_a_controller_without_a_stream_of_nodes_is_read_as_before() -> None:
    class Older(FakeController):
        async def follow_nodes(self, known: KnownNodes | None = None) -> AsyncGenerator[KnownNodes, None]:
            raise BadInputError("Not Found")
            yield

    controller = Older()
    async with cockpit(controller) as (_app, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-3")
        controller.nodes_now.append(make_node("node-4"))
        await wait_for_text(pilot, "node-4")


async def test_traffic_rules_have_a_line_of_their_own_while_there_are_any() -> None:
    controller = FakeController()
    canary = {"kind": "canary", "revisions": {"r2": 0.05}}
    shadow = {"kind": "shadow", "revision": "r3", "share": 0.1}
    rules = [
        {"id": "canary", "spec": canary, "made_by": "ann", "made_at": NOW, "expires_at": NOW + 3600},
        {"id": "r3", "spec": shadow, "made_by": "bob", "made_at": NOW},
    ]
    controller.status_now = make_status(traffic_rules=rules)
    async with cockpit(controller) as (app, pilot):
        await wait_for_text(pilot, "traffic rules")
        first, second, *_ = screen_lines(app)
        assert first.endswith("● controller ok")
        assert second.strip() == "2 traffic rules  canary 22:13–23:13 by ann  shadow r3 22:13 by bob"
        controller.status_now = make_status(
            traffic_rules=[{**one, "id": f"rule-{i}"} for i, one in enumerate(rules * 4)]
        )
        await wait_for(pilot, lambda: "8 traffic rules" in screen(app))
        assert screen_lines(app)[1].rstrip().endswith("…")
        controller.status_now = make_status()
        await wait_for(pilot, lambda: "traffic rules" not in screen(app))
        assert screen_lines(app)[1].split()[:3] == ["Now", "f", "a"]


async def test_a_freeze_comes_first_in_the_header_and_at_what_it_holds_up() -> None:
    controller = FakeController()
    frozen = {"id": "freeze-1", "reason": "launch", "made_by": "ann", "made_at": NOW, "expires_at": NOW + 3600}
    controller.status_now = make_status(freezes=[frozen])
    controller.incidents_now = [make_incident(runs=[make_run(held="the fleet is frozen until noon")])]
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await wait_for_text(pilot, "❄ fleet frozen –23:13  ▲ 1 firing")
        await pilot.press("g", "i")
        await wait_for_text(pilot, "held", "the fleet is frozen until noon")


async def test_says_that_nothing_is_known_before_the_first_answer() -> None:
    async with cockpit(FakeController(), polling=False) as (app, pilot):
        await wait_for_text(pilot, "Nothing is known yet", "◔ connecting")
        assert " 0 " not in screen(app)
        await pilot.press("g", "f")
        await wait_for_text(pilot, "Nothing is known yet")
        assert " 0 " not in screen(app)


async def test_says_so_when_the_fleet_is_empty() -> None:
    controller = FakeController()
    controller.nodes_now, controller.incidents_now = [], []
    async with cockpit(controller) as (_, pilot):
        await wait_for_text(pilot, "Nothing hurts")
        await pilot.press("g", "f")
        await wait_for_text(pilot, "The fleet has no nodes.")
        await pilot.press("g", "i")
        await wait_for_text(pilot, "No incidents. All quiet.")


async def test_moves_through_the_nodes_and_shows_the_rest_of_each() -> None:
    async with cockpit(FakeController()) as (_, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "http://127.0.0.1:9000/node-1  probed 1s ago  instance 4f1c9a")
        await pilot.press("down", "down")
        await wait_for_text(pilot, "node-3  ✗ unreachable for 10m: connection refused")


async def test_draws_only_the_lines_that_changed() -> None:
    controller = FakeController()
    async with cockpit(controller) as (app, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-3")
        table = app.query_one("#nodes", LiveTable)
        drawn: list[int] = []
        render_line = table.render_line
        table.render_line = lambda y: (drawn.append(y), render_line(y))[1]  # type: ignore[method-assign]
        controller.nodes_now[0] = make_node("node-1", waiting=make_node().running)
        await wait_for(pilot, lambda: bool(drawn))

        assert set(drawn) == {2}, "below the header and the pool's heading"


async def test_ages_of_a_large_fleet_are_drawn_as_often_as_it_is_read() -> None:
    controller, time_now = FakeController(), [NOW]
    controller.nodes_now = [make_node(f"node-{number:03}") for number in range(300)]
    snapshot = await SnapshotReader(controller, lambda: time_now[0]).read(Wanted(frozenset(Part)))
    async with cockpit(controller, polling=False, clock=lambda: time_now[0]) as (app, pilot):
        await pilot.press("g", "f")
        app.post_message(SnapshotTaken(snapshot))
        await wait_for_text(pilot, "node-000")
        row = next(line for line in screen_lines(app) if "node-000" in line)
        for later, is_as_before in ((2.0, True), (7.0, False)):
            time_now[0] = NOW + later
            app.post_message(SnapshotTaken(snapshot))
            await pilot.pause()
            await pilot.pause()
            assert (row in screen_lines(app)) is is_as_before


async def test_keeps_the_cursor_on_its_node_when_others_come_and_go() -> None:
    controller = FakeController()
    async with cockpit(controller) as (_, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-3")
        await pilot.press("down")
        await wait_for_text(pilot, "9000/node-2")
        controller.nodes_now = [make_node("node-0"), controller.nodes_now[1], make_node("node-4")]
        await wait_for_text(pilot, "node-0", "node-4")
        await wait_for_text(pilot, "9000/node-2")


async def test_shows_the_incident_with_its_evidence() -> None:
    async with cockpit(FakeController(), size=WIDE) as (app, pilot):
        await pilot.press("g", "i")
        await wait_for_text(pilot, "replace-node waits")
        text = screen(app)

        assert "PROPOSED: Replace a node, 56m left" in text
        assert "drain node-2 --deadline 20s" in text
        assert "Diagnosis: slow_node (confirmed)." in text
        assert re.search(r"✗ +Has the prefix hit ratio fallen\? +1% +limit > 20 % +1s", text)
        assert "Not known: 1 question: no series has data" in text
        assert re.search(r"✓ +Are its steps slower than those of its peers\? +3\.4× +limit > 2\.0× +1s", text)
        assert "Ruled out: prefix_cache_broken" in text
        assert text.index("22:12:40  replace-node waits") < text.index("22:12:38  LLMNodeSlow fires")


async def test_the_runbook_is_its_steps_and_its_page_without_front_matter() -> None:
    async with cockpit(FakeController(), size=WIDE) as (app, pilot):
        await pilot.press("g", "r")
        await wait_for_text(pilot, "A node that is slower than its peers is replaced by a fresh one.")
        text = screen(app)
        assert "Run run-1: Replace a node, proposed" in text
        assert "node start {{replacement}} --like {{node}}" in text
        assert "risk: medium" not in text


@pytest.mark.parametrize(("key", "decision", "after"), [("a", "approve", "approved"), ("d", "deny", "denied")])
async def test_a_decision_is_asked_twice_and_sent_once(key: str, decision: str, after: str) -> None:
    controller = FakeController()
    async with cockpit(controller) as (_, pilot):
        await wait_for_text(pilot, "a Approve")
        await pilot.press(key)
        await wait_for_text(pilot, "replace-node?", "(y)", "slow_node is confirmed on node-2")
        assert controller.decisions == []

        await pilot.press("y")
        await wait_for(pilot, lambda: bool(controller.decisions))
        await wait_for_text(pilot, f"Run: Replace a node, {after}, by ana")  # it went to the incident

    [(run_id, answer)] = controller.decisions
    assert (run_id, answer.decision, answer.by) == ("run-1", decision, "ana")


async def test_enter_approves_what_is_shown() -> None:
    controller = FakeController()
    async with cockpit(controller) as (_, pilot):
        await wait_for_text(pilot, "a Approve")
        await pilot.press("a")
        await wait_for_text(pilot, "1. fleetctl node start node-4 --like node-2 --wait 180s")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(controller.decisions) == 1)


@pytest.mark.parametrize("key", ["n", "escape"])
async def test_stepping_back_sends_nothing(key: str) -> None:
    controller = FakeController()
    async with cockpit(controller) as (app, pilot):
        await wait_for_text(pilot, "a Approve")
        await pilot.press("a")
        await wait_for_text(pilot, "Run replace-node?")
        await pilot.press("d", "q")  # keys of the screen below do nothing here
        await pilot.press(key)
        await wait_for(pilot, lambda: "Run replace-node?" not in screen(app))

    assert controller.decisions == []


async def test_tells_why_a_decision_was_not_taken() -> None:
    controller = FakeController()
    controller.refuses = RefusedError("run run-1 was denied by bo", remedy="fleetctl run list")
    async with cockpit(controller) as (_, pilot):
        await wait_for_text(pilot, "a Approve")
        await pilot.press("a")
        await wait_for_text(pilot, "Run replace-node?")
        await pilot.press("y")
        await wait_for_text(pilot, "Not done", "was denied by bo", "fleetctl run list")


async def test_offers_no_approval_where_nothing_waits() -> None:
    controller = FakeController()
    controller.incidents_now = [make_incident(runs=[make_run(status=RunStatus.RUNNING)])]
    async with cockpit(controller) as (app, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-3", "c Cordon")
        await pilot.press("a", "d")
        await pilot.pause()

        assert "a Approve" not in screen(app)
        assert len(app.screen_stack) == 1
    assert controller.decisions == []


@pytest.mark.parametrize(
    ("key", "command", "name"),
    [
        ("c", "cordon node-2", ""),
        ("u", "uncordon node-2", ""),
        ("D", "drain node-2 --deadline 30s", "node-2"),
        ("plus", "scale pool/default --to +1", ""),
        ("minus", "scale pool/default --to -1", "default"),
    ],
)
async def test_acts_on_the_chosen_node_after_a_yes_and_takes_nodes_out_after_their_name(
    key: str, command: str, name: str
) -> None:
    controller = FakeController()
    async with cockpit(controller) as (app, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-3")
        await pilot.press("down")
        await wait_for_text(pilot, "9000/node-2")
        await pilot.press(key)
        await wait_for_text(pilot, f"fleetctl {command}")
        assert controller.actions == []
        if name:
            await pilot.press("y", "enter")
            await wait_for(pilot, lambda: "fleetctl " + command in screen(app))
            assert controller.actions == [], "a yes is not enough"
            await pilot.press("backspace", *name, "enter")
        else:
            await pilot.press("y")
        await wait_for(pilot, lambda: bool(controller.actions))

    assert [(action.command, action.requested_by) for action in controller.actions] == [(command, "ana")]


async def test_an_unreachable_controller_is_a_state_on_screen() -> None:
    controller = FakeController()
    time_now = [NOW]
    async with cockpit(controller, size=WIDE, clock=lambda: time_now[0]) as (app, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-3", "● controller ok")
        controller.away = UnreachableError("no answer")
        await wait_for_text(pilot, "✗ controller unreachable for 0s")
        time_now[0] = NOW + 12
        await wait_for_text(pilot, "✗ controller unreachable for 12s", "● ready?", "▲ 1 firing?")
        # Its age grew, and is not too old yet; header and table are drawn one after the other.
        await wait_for(pilot, lambda: re.search(r"node-1 .* 42% .* 13s", screen(app)) is not None)

        time_now[0] = NOW + 20
        await wait_for(pilot, lambda: bool(re.search(r"node-1 .* 42%\? +210ms\? .* 21s", screen(app))))

        controller.away = None
        await wait_for_text(pilot, "● reconnected after 20s")
        time_now[0] = NOW + 40
        await wait_for_text(pilot, "● controller ok")
        assert "● ready?" not in screen(app)


async def test_a_new_incident_announces_itself() -> None:
    controller = FakeController()
    incidents, controller.incidents_now = controller.incidents_now, []
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await wait_for_text(pilot, "Nothing hurts")
        controller.incidents_now = incidents
        await wait_for_text(pilot, "node-2 decodes slower than its peers  (g i opens it)")


async def test_stays_with_a_chosen_incident_and_follows_a_new_one_when_it_is_over() -> None:
    controller = FakeController()
    older = make_incident(id="inc-0", title="KV cache is full", opened_at=NOW - 500, runs=[], diagnosis=None)
    controller.incidents_now.append(older)
    async with cockpit(controller, size=WIDE) as (app, pilot):
        await pilot.press("g", "i")
        await wait_for_text(pilot, "PROPOSED", "KV cache is full")
        await wait_for(pilot, lambda: app.query_one("#incidents").has_focus)
        await pilot.press("down")
        await wait_for_text(pilot, "Diagnosis: not made yet")
        assert "incident inc-0" in controller.asked

        controller.incidents_now.insert(0, make_incident(id="inc-2", title="Another one", opened_at=NOW - 1))
        await wait_for_text(pilot, "Another one", "Diagnosis: not made yet")

        controller.incidents_now[2] = older.model_copy(
            update={"status": IncidentStatus.RESOLVED, "resolved_at": NOW - 2}
        )
        await wait_for_text(pilot, "PROPOSED")


async def test_what_is_over_can_be_read_while_another_is_open_until_one_comes_anew() -> None:
    controller = FakeController()
    past = make_incident(
        id="inc-0", title="KV cache is full", status=IncidentStatus.RESOLVED, resolved_at=NOW - 2, diagnosis=None
    )
    controller.incidents_now.append(past)
    async with cockpit(controller, size=WIDE) as (app, pilot):
        await pilot.press("g", "i")
        await wait_for_text(pilot, "PROPOSED", "KV cache is full")
        await pilot.press("down")
        await wait_for_text(pilot, "● resolved", "Diagnosis: not made yet")
        controller.asked.clear()
        await wait_for(pilot, lambda: controller.asked.count("status") >= 3)
        assert "● resolved" in screen(app)
        assert "T Take over" not in screen(app)

        await pilot.press("g", "i")
        await wait_for_text(pilot, "PROPOSED")


async def test_an_incident_that_is_gone_does_not_cut_off_the_rest() -> None:
    controller = FakeController()

    async def gone(incident_id: str) -> None:
        raise BadInputError(f"no incident {incident_id}")

    controller.incident = gone  # type: ignore[assignment,method-assign]
    async with cockpit(controller) as (_, pilot):
        await wait_for_text(pilot, "● controller ok")


def crowded() -> FakeController:
    controller = FakeController()
    controller.nodes_now = [make_node(f"node-{number}-with-a-long-name") for number in range(1, 40)]
    controller.nodes_now[0] = controller.nodes_now[0].model_copy(update={"alerts": ["LLMNodeSlow", "LLMQueueDepth"]})
    title = "Queue depth of pool default is above eighty for two minutes on several nodes (+3 more)"
    controller.incidents_now += [make_incident(id=f"inc-{number}", title=title) for number in range(2, 12)]
    return controller


@pytest.mark.parametrize(("size", "crowd"), [(NARROW, False), (NARROW, True), (WIDE, False), ((220, 60), True)])
async def test_nothing_overflows(size: tuple[int, int], crowd: bool) -> None:
    controller = crowded() if crowd else FakeController()
    async with cockpit(controller, size=size) as (app, pilot):
        app.post_story("a long line of the story " * 8)
        await wait_for_text(pilot, "a long line of the story")
        for place in Place:
            await pilot.press("g", next(key for key, one in JUMPS.items() if one is place))
            await wait_for(pilot, lambda place=place: app.here.place is place)  # type: ignore[misc]
            await pilot.pause()
            lines = screen_lines(app)
            assert all(len(line) <= size[0] for line in lines)
            assert "q Quit" in lines[-1] or size[0] < 120
            for name in ("Sections", "VerticalScroll", "LiveTable"):
                assert all(one.max_scroll_x == 0 for one in app.query(name) if one.is_on_screen)


async def test_scrolls_the_details_with_letters_and_jumps_to_the_page() -> None:
    async with cockpit(FakeController()) as (app, pilot):
        await pilot.press("g", "i")
        await wait_for_text(pilot, "p Page", "PROPOSED")
        await pilot.press("j")
        await wait_for(pilot, lambda: app.query_one("#detail").scroll_y > 0)
        await pilot.press("k")
        await wait_for(pilot, lambda: app.query_one("#detail").scroll_y == 0)
        await pilot.press("p")
        await wait_for_text(pilot, "is replaced by a fresh one.")


async def test_only_the_newest_waiting_snapshot_is_drawn() -> None:
    newer, older = SnapshotTaken(Snapshot(error="b")), SnapshotTaken(Snapshot(error="a"))
    assert older.can_replace(newer)

    async with cockpit(FakeController(), polling=False) as (app, pilot):
        for ready in range(20):
            app.post_message(SnapshotTaken(Snapshot(status=make_status(nodes_ready=ready), known_at=NOW)))
        await wait_for_text(pilot, "19/3 ready")


async def test_leaves_when_its_story_is_over_and_closes_the_client() -> None:
    controller = FakeController()
    told: list[str] = []

    is_ready = asyncio.Event()

    async def story() -> None:
        await is_ready.wait()
        ready[0].post_story("the end")
        await wait_for_text(pilots[0], "told before the start", "the end")
        told.append("the end")

    ready: list[Cockpit] = []
    app = Cockpit(lambda: controller, until=story(), on_ready=ready.append, by="ana", now=lambda: NOW)
    app.post_story("told before the start")
    pilots: list[Pilot[None]] = []
    async with app.run_test(size=NARROW) as pilot:
        pilots.append(pilot)
        is_ready.set()
        await wait_for(pilot, lambda: not app.is_running)

    assert told == ["the end"]
    assert controller.closed


async def test_what_the_story_raises_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        raise RuntimeError("node-2 did not start")

    run_async = Cockpit.run_async
    monkeypatch.setattr(Cockpit, "run_async", lambda self: run_async(self, headless=True))

    with pytest.raises(RuntimeError, match="node-2 did not start"):
        await run_cockpit(lambda: FakeController(), until=story(), by="ana")
