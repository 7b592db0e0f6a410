"""The frame around the screens: jumps, back and forward, filter, command line, help, roles."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import pytest
from textual import events
from textual.widgets import Input

from fleetctl.cli.examples import EXAMPLES
from fleetctl.kit.errors import UnreachableError
from fleetctl.tui.app import Cockpit
from fleetctl.tui.place import JUMPS, Place, Trail, Visit
from fleetctl.tui.shell import Printed
from fleetctl.wire.group import GroupBy, GroupLoad, GroupSignal, NodeGroup
from fleetctl.wire.identity import TokenRole
from fleetctl.wire.run import Run, RunStatus
from tests.fixtures.cockpit import NOW, FakeController, make_event, make_incident, make_node, make_run
from tests.fixtures.cockpit_fleet import full_controller
from tests.fixtures.cockpit_screen import WIDE, cockpit, screen, screen_lines, wait_for, wait_for_text

pytestmark = pytest.mark.anyio


async def typed(pilot: object, text: str) -> None:
    keys = ["space" if one == " " else "minus" if one == "-" else one for one in text]
    await pilot.press("colon", *keys)  # type: ignore[attr-defined]


def test_every_screen_has_a_jump() -> None:
    assert set(JUMPS.values()) == set(Place)


def test_a_new_step_forgets_what_came_after() -> None:
    trail = Trail().to(Visit(Place.FLEET)).to(Visit(Place.NODE, "node-1")).moved(-1)
    assert trail.here == Visit(Place.FLEET)
    assert trail.moved(1).here == Visit(Place.NODE, "node-1")
    assert trail.to(Visit(Place.AUDIT)).moved(1).here == Visit(Place.AUDIT)
    assert trail.moved(-9).here == Visit(Place.NOW)


async def test_a_log_that_ended_is_read_on_when_a_person_says_so() -> None:
    """It said "r reads on", and `r` did nothing: the log stood for as long as its screen."""
    controller = FakeController()
    controller.logs_away = UnreachableError("the node's host is silent")
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await typed(pilot, "node node-2")
        await pilot.press("enter")
        await wait_for_text(pilot, "the node's host is silent; r tries again")
        controller.log_lines, controller.logs_away = {"node-2": ["engine ready"]}, None
        await pilot.press("r")
        await wait_for_text(pilot, "Log of node-2, followed", "engine ready")


async def test_a_node_is_opened_and_back_and_forward_lead_through_what_was_seen() -> None:
    controller = FakeController()
    controller.log_lines = {"node-2": ["engine ready"]}
    async with cockpit(controller, size=WIDE) as (app, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-3")
        await pilot.press("down", "enter")
        await wait_for_text(pilot, "node-2  ◐ draining", "requests in flight", "engine ready")
        controller.log_lines["node-2"].append("drain began")
        await wait_for_text(pilot, "drain began")

        await pilot.press("left_square_bracket")
        await wait_for(pilot, lambda: app.here.place is Place.FLEET)
        await pilot.press("right_square_bracket")
        await wait_for_text(pilot, "requests in flight")
        await pilot.press("escape", "escape", "escape")
        await wait_for_text(pilot, "Hurts: 1 incident")


@pytest.mark.parametrize(
    ("keys", "place"), [("gf", Place.FLEET), ("gu", Place.AUDIT), (":alerts\r", Place.ALERTS), ("gagi", Place.INCIDENT)]
)
async def test_keys_that_are_typed_fast_mean_what_they_mean_slowly(keys: str, place: Place) -> None:
    controller = FakeController()
    async with cockpit(controller, size=WIDE) as (app, pilot):
        await wait_for_text(pilot, "a Approve")
        for key in keys:  # all are there before the first is looked at
            app.post_message(events.Key({"\r": "enter", ":": "colon"}.get(key, key), None if key == "\r" else key))
        await wait_for(pilot, lambda: app.here.place is place and len(app.screen_stack) == 1)
    assert (controller.decisions, controller.actions) == ([], [])


async def test_a_filter_that_is_typed_right_behind_a_jump_is_of_the_screen_that_comes() -> None:
    async with cockpit(FakeController(), size=WIDE) as (app, pilot):
        await wait_for_text(pilot, "a Approve")
        for key in ("g", "e", "slash", "v", "e", "enter"):
            app.post_message(events.Key(key, {"slash": "/", "enter": None}.get(key, key)))
        await wait_for(pilot, lambda: app.here.place is Place.EVENTS and "/ve" in screen(app))


async def test_keys_that_come_while_a_jump_leads_on_keep_their_order() -> None:
    """In a terminal "verified" became "verifide": a key in the queue of the jump was told behind a later one."""
    async with cockpit(FakeController(), size=WIDE) as (app, pilot):
        await wait_for_text(pilot, "a Approve")
        for pause in range(12):
            for key in ("g", "e", "slash", *"verified"):
                app.post_message(events.Key(key, {"slash": "/"}.get(key, key)))
                for _ in range(pause):
                    await asyncio.sleep(0)
            await wait_for(pilot, lambda: sorted(filter_of(app)) == sorted("/verified"))
            assert filter_of(app) == "/verified"
            await pilot.press("escape", "g", "n")


def filter_of(app: Cockpit) -> str:
    """What stands in the prompt."""
    return f"/{app.screen_stack[0].query_one('#prompt-input', Input).value}"


async def test_names_of_screens_come_with_room_and_go_without() -> None:
    async with cockpit(FakeController(), size=(80, 24)) as (app, pilot):
        await wait_for(pilot, lambda: screen_lines(app)[1].split()[:3] == ["Now", "f", "a"])
        await pilot.resize_terminal(120, 40)
        await wait_for(pilot, lambda: screen_lines(app)[1].split()[:3] == ["Now", "Fleet", "Alerts"])
        await pilot.resize_terminal(80, 24)
        await wait_for(pilot, lambda: screen_lines(app)[1].split()[:3] == ["Now", "f", "a"])


async def test_a_filter_works_while_it_is_typed_and_escape_ends_it() -> None:
    async with cockpit(FakeController()) as (app, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-1", "node-3")
        await pilot.press("slash", *"unreach")
        await wait_for(pilot, lambda: "node-1  " not in screen(app) and "node-3" in screen(app))
        await pilot.press("enter")
        await wait_for_text(pilot, "/unreach")
        await pilot.press("escape")
        await wait_for_text(pilot, "node-1", "node-3")
        assert app.here.place is Place.FLEET


async def test_a_noun_goes_to_its_screen_and_a_name_to_that_thing() -> None:
    async with cockpit(FakeController(), size=WIDE) as (_, pilot):
        await wait_for_text(pilot, "Hurts")
        await typed(pilot, "get alerts")
        await pilot.press("enter")
        await wait_for_text(pilot, "▲ firing", "LLMNodeSlow")
        await typed(pilot, "describe node node-3")
        await pilot.press("enter")
        await wait_for_text(pilot, "node-3  ✗ unreachable for 10m: connection refused")
        await typed(pilot, "zones")
        await pilot.press("enter")
        await wait_for_text(pilot, "zone a  1/3 ready")


async def test_only_the_groups_that_are_shown_are_asked_for() -> None:
    controller = FakeController()
    load = GroupLoad(running=GroupSignal(value=21.0, known=3, of=3))
    controller.groups_now = {GroupBy.REVISION: [NodeGroup(by=GroupBy.REVISION, name="r41", nodes=3, load=load)]}
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "pool default")
        assert not any(one.startswith("groups") for one in controller.asked)
        await typed(pilot, "revisions")
        await pilot.press("enter")
        await wait_for_text(pilot, "revision r41  1/3 ready  run 21")
        assert {one for one in controller.asked if one.startswith("groups")} == {"groups revision"}


async def test_a_typed_command_is_completed_asked_about_and_sent() -> None:
    controller = FakeController()
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await wait_for(pilot, lambda: "nodes" in controller.asked)
        await typed(pilot, "cord")
        await pilot.press("tab", *"node", "minus", "2", "enter")
        await wait_for_text(pilot, "cordon node-2?")
        await pilot.press("y")
        await wait_for(pilot, lambda: bool(controller.actions))
    assert [(one.command, one.dry_run) for one in controller.actions] == [("cordon node-2", False)]


async def test_a_dry_run_says_that_nothing_was_done() -> None:
    controller = FakeController()
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await wait_for_text(pilot, "Hurts")
        await typed(pilot, "drain node-2 --dry-run")
        await pilot.press("enter")
        await wait_for_text(pilot, "DRY RUN: nothing was done", "would run: fleetctl")
        await pilot.press("escape", "g", "i")
        await wait_for_text(pilot, "x Dry-run")
        await pilot.press("x")
        await wait_for_text(pilot, "DRY RUN: nothing was done", "forecast: TTFT p95 0.4s")
    assert [(one.command, one.dry_run) for one in controller.actions] == [("drain node-2", True)]
    assert [(one.runbook, one.dry_run) for one in controller.started] == [("replace-node", True)]
    assert controller.decisions == []


async def test_who_may_only_look_is_told_so_at_80_columns_too() -> None:
    controller = FakeController()
    controller.role = TokenRole.VIEWER
    async with cockpit(controller) as (_, pilot):
        await wait_for_text(pilot, "Hurts", "read-only (viewer)")


class RecordedShell:
    """What a shell would do: it keeps what it was told to run."""

    commands = frozenset(EXAMPLES)
    kinds = ("gpus",)

    def __init__(self, printed: Printed) -> None:
        self.ran: list[list[str]] = []
        self.is_cancelled = False
        self._printed = printed
        self.may_end = asyncio.Event()

    async def run(self, words: Sequence[str], columns: int) -> Printed:
        self.ran.append(list(words))
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        return self._printed


async def test_any_command_that_looks_is_run_and_what_it_prints_is_shown() -> None:
    shell = RecordedShell(Printed(0, "NODE    GPU  TEMP\nnode-1  0    [71]"))
    async with cockpit(FakeController(), size=WIDE, shell=shell) as (app, pilot):
        await wait_for_text(pilot, "Hurts")
        await typed(pilot, "get gpus")
        await pilot.press("enter")
        await wait_for_text(pilot, "fleetctl get gpus   runs")
        shell.may_end.set()
        await wait_for_text(pilot, "fleetctl get gpus   done", "node-1  0    [71]")
        await pilot.press("y", "escape")
        await wait_for(pilot, lambda: len(app.screen_stack) == 1)
    assert shell.ran == [["get", "gpus"]]


async def test_any_command_that_changes_something_is_run_after_a_yes_and_its_error_is_shown() -> None:
    shell = RecordedShell(Printed(3, "error: bob has the role viewer; this needs operator"))
    shell.may_end.set()
    async with cockpit(FakeController(), size=WIDE, shell=shell) as (_, pilot):
        await wait_for_text(pilot, "Hurts")
        await typed(pilot, "unfreeze")
        await pilot.press("enter")
        await wait_for_text(pilot, "Run unfreeze?", "fleetctl unfreeze")
        assert shell.ran == []
        await pilot.press("n")
        await typed(pilot, "unfreeze")
        await pilot.press("enter")
        await wait_for_text(pilot, "Run unfreeze?")
        await pilot.press("y")
        await wait_for_text(pilot, "exit code 3", "this needs operator")
    assert shell.ran == [["unfreeze"]]


async def test_an_alert_and_an_incident_are_silenced_with_a_reason_after_one_question() -> None:
    shell = RecordedShell(Printed(0, "silence s-1 active"))
    shell.may_end.set()
    async with cockpit(full_controller(), size=WIDE, shell=shell) as (_, pilot):
        await pilot.press("g", "a")
        await wait_for_text(pilot, "Z Silence", "LLMQueueDepth")
        await pilot.press("down")
        await wait_for_text(pilot, "LLMQueueDepth pending")
        await pilot.press("Z")
        await wait_for_text(pilot, "Silence LLMQueueDepth of chat-1 for 1h?")
        await pilot.press(*"known", "enter")
        await wait_for_text(pilot, "silence s-1 active")
        await pilot.press("escape", "g", "i")
        await wait_for_text(pilot, "T Take over")
        await pilot.press("Z")
        await wait_for_text(pilot, "Silence inc-1 for 1h?")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(shell.ran) == 2)
    alert = ["silence", "add", "LLMQueueDepth", "node=chat-1", "pool=chat", "--duration", "1h", "--comment", "known"]
    incident = ["incident", "silence", "inc-1", "--for", "1h", "--comment", "from the cockpit"]
    assert shell.ran == [alert, incident]


async def test_who_may_only_look_and_who_has_no_shell_is_not_offered_a_silence() -> None:
    controller = full_controller()
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await pilot.press("g", "a")
        await wait_for_text(pilot, "LLMQueueDepth")
        await pilot.press("Z")
        assert "Silence" not in screen(pilot.app)  # type: ignore[arg-type]
    controller.role = TokenRole.VIEWER
    async with cockpit(controller, size=WIDE, shell=RecordedShell(Printed(0, ""))) as (app, pilot):
        await pilot.press("g", "a")
        await wait_for_text(pilot, "LLMQueueDepth", "read-only")
        assert "Z Silence" not in screen(app)


async def test_who_leaves_a_command_ends_it() -> None:
    shell = RecordedShell(Printed(0, ""))
    async with cockpit(FakeController(), size=WIDE, shell=shell) as (_, pilot):
        await wait_for_text(pilot, "Hurts")
        await typed(pilot, "doctor")
        await pilot.press("enter")
        await wait_for(pilot, lambda: bool(shell.ran))
        await pilot.press("escape")
        await wait_for(pilot, lambda: shell.is_cancelled)


async def test_an_alert_that_is_named_is_the_one_that_is_shown() -> None:
    async with cockpit(full_controller(), size=WIDE) as (app, pilot):
        await wait_for_text(pilot, "Hurts")
        await typed(pilot, "alerts LLMQueueDepth")
        await pilot.press("enter")
        await wait_for_text(pilot, "LLMQueueDepth pending", "/name=LLMQueueDepth")
        assert "LLMKVCacheFull" not in screen(app)


async def test_whoever_has_a_token_of_their_own_takes_an_incident_under_its_name() -> None:
    controller = FakeController()
    controller.name = "ann"  # by whom: ana, the login name
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await pilot.press("g", "i")
        await wait_for_text(pilot, "T Take over")
        await pilot.press("T")
        await wait_for_text(pilot, "It is told as ann's.")
        await pilot.press("y")
        await wait_for(pilot, lambda: ("inc-1", "ann") in controller.taken)


async def test_a_page_that_is_typed_runs_once_the_node_is_named_again() -> None:
    controller = FakeController()
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await wait_for_text(pilot, "Hurts")
        await typed(pilot, "replace node-2")
        await pilot.press("enter")
        await wait_for_text(pilot, "Run replace-node node=node-2?", "type node-2", "node-2 is draining")
        await pilot.press("enter")
        assert controller.started == []
        await pilot.press(*"node-2", "enter")
        await wait_for(pilot, lambda: bool(controller.started))
    (sent,) = controller.started
    assert (sent.runbook, sent.inputs, sent.dry_run, sent.approve) == ("replace-node", {"node": "node-2"}, False, True)


async def test_control_c_quits_also_while_a_question_is_asked() -> None:
    async with cockpit(FakeController(), size=WIDE) as (app, pilot):
        await wait_for_text(pilot, "Hurts")
        await typed(pilot, "replace node-2")
        await pilot.press("enter")
        await wait_for_text(pilot, "type node-2")
        await pilot.press("ctrl+c")
        await wait_for(pilot, lambda: not app.is_running)


async def test_a_guide_says_above_the_screen_what_to_press() -> None:
    async with cockpit(FakeController()) as (app, pilot):
        await wait_for_text(pilot, "Hurts")
        app.say("4 of 6: your turn", "One node is slow.", "Press a, then y")
        await wait_for_text(pilot, "4 of 6: your turn", "One node is slow.", "Press a, then y", "Hurts")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("drian node-2", "is no kind and no command"),
        ("drain", "takes one node"),
        ("runbook approve run-77", "no run run-77"),
    ],
)
async def test_what_cannot_be_done_is_told_before_it_is_sent(text: str, told: str) -> None:
    controller = FakeController()
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await wait_for_text(pilot, "Hurts")
        await typed(pilot, text)
        await pilot.press("enter")
        await wait_for_text(pilot, "Not done", told)
    assert controller.actions == []


async def test_a_viewer_sees_its_role_and_has_no_key_that_changes_something() -> None:
    controller = FakeController()
    controller.role = TokenRole.VIEWER
    async with cockpit(controller, size=WIDE) as (app, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-3", "read-only (viewer)")
        await pilot.press("c", "a", "D")
        await pilot.pause()
        assert len(app.screen_stack) == 1
        assert "Cordon" not in screen(app)
        assert "Approve" not in screen(app)


async def test_help_lists_the_keys_of_the_screen_that_is_shown() -> None:
    async with cockpit(FakeController(), size=WIDE) as (_, pilot):
        await pilot.press("g", "f")
        await wait_for_text(pilot, "node-3")
        await pilot.press("question_mark")
        await wait_for_text(pilot, "Keys of Fleet", "Order by the next column", "Cordon", "go to a screen")


async def test_every_key_that_is_offered_is_told_in_help() -> None:
    async with cockpit(FakeController(), size=WIDE) as (app, pilot):
        await pilot.press("g", "i")
        await wait_for_text(pilot, "T Take over")
        await pilot.press("question_mark")
        await wait_for_text(pilot, "Keys of Incident", "Take over")
        listed = set(re.findall(r"│  (\S.*?)  +\S", screen(app)))
        assert {"a", "d", "x", "T", "p", "j", "k", "[ and ]"} <= listed


async def test_an_incident_is_taken_over_after_a_yes() -> None:
    controller = FakeController()
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await pilot.press("g", "i")
        await wait_for_text(pilot, "T Take over")
        await pilot.press("T")
        await wait_for_text(pilot, "Take over inc-1?")
        await pilot.press("y")
        await wait_for(pilot, lambda: controller.taken == [("inc-1", "ana"), ("inc-1", "ana")])


def acting() -> Run:
    return make_run(
        status=RunStatus.RUNNING,
        steps=[
            {
                "index": 0,
                "phase": "do",
                "title": "",
                "command": "drain node-2",
                "status": "running",
                "started_at": NOW - 5,
            }
        ],
    )


async def test_a_run_is_paused_with_a_reason_and_cancelled() -> None:
    controller = FakeController()
    controller.incidents_now = [make_incident(runs=[acting()])]
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await pilot.press("g", "r")
        await wait_for_text(pilot, "P Pause", "drain node-2")
        await pilot.press("P")
        await wait_for_text(pilot, "Pause Replace a node?")
        await pilot.press(*"wait", "enter")
        await wait_for(pilot, lambda: controller.orders == [("run-1", "pause", "wait")])
        await pilot.press("X")
        await wait_for_text(pilot, "Cancel Replace a node?")
        await pilot.press("y")
        await wait_for(pilot, lambda: ("run-1", "cancel", "") in controller.orders)


async def test_an_event_is_on_the_screen_as_it_happens_and_opens_what_it_is_about() -> None:
    controller = FakeController()
    controller.events_now = [make_event(1, text="node-1 is ready", node="node-1")]
    async with cockpit(controller, size=WIDE) as (app, pilot):
        await pilot.press("g", "e")
        await wait_for_text(pilot, "node-1 is ready")
        controller.events_now.append(make_event(2, text="node-2 drains", node="node-2"))
        await wait_for_text(pilot, "node-2 drains")
        await pilot.press("home", "enter")
        await wait_for(pilot, lambda: app.here == Visit(Place.NODE, "node-2"))


async def test_a_node_that_is_gone_is_said_to_be_unknown() -> None:
    controller = FakeController()
    controller.nodes_now = [make_node("node-1")]
    async with cockpit(controller, size=WIDE) as (_, pilot):
        await wait_for_text(pilot, "Hurts")
        await typed(pilot, "node node-9")
        await pilot.press("enter")
        await wait_for_text(pilot, "Nothing is known of node-9.", "● controller ok")


async def test_an_alert_is_explained_part_by_part_and_opens_its_incident() -> None:
    async with cockpit(full_controller(), size=WIDE) as (app, pilot):
        await pilot.press("g", "a")
        await wait_for_text(pilot, "fires where this holds for 60s:", "0.061 > 0.05   llm:step_seconds:mean")
        await wait_for_text(pilot, "unless        -   llm:draining")
        await pilot.press("down")
        await wait_for(pilot, lambda: "fires where this holds" not in screen(app))
        await pilot.press("home", "enter")
        await wait_for(pilot, lambda: app.here == Visit(Place.INCIDENT, "inc-1"))


def test_the_cockpit_has_no_key_twice() -> None:
    keys = [key for one in Cockpit.BINDINGS for key in one.key.split(",")]  # type: ignore[union-attr]
    assert len(keys) == len(set(keys))
