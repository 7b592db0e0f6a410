"""The command line of the cockpit: what a typed line means, and what completes it."""

from __future__ import annotations

import shlex

import pytest

from fleetctl.cli.examples import EXAMPLES
from fleetctl.tui.completing import Names, completions
from fleetctl.tui.noun import Jump
from fleetctl.tui.order import Act, Answer, Handle, Said, Simple, Start, Wrong, is_dangerous, parse_order
from fleetctl.tui.place import Place, Visit
from fleetctl.tui.shell import Command, silence_alert, silence_incident
from runbooks.verbs import VERBS
from tests.contract.test_named_commands import why_not

NAMES = Names(
    nodes=["node-1", "node-2"],
    pools=["chat"],
    incidents=["inc-7"],
    runs=["run-3"],
    runbooks=["replace-node"],
    commands=tuple(EXAMPLES),
    kinds=["gpus", "receipts"],
)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("nodes", Jump(Visit(Place.FLEET))),
        ("fleetctl get nodes", Jump(Visit(Place.FLEET))),
        ("get zones", Jump(Visit(Place.FLEET), "zone")),
        ("node node-2", Jump(Visit(Place.NODE, "node-2"))),
        ("logs node-2", Jump(Visit(Place.NODE, "node-2"))),
        ("get pool chat", Jump(Visit(Place.FLEET), "pool", "pool=chat")),
        ("revisions", Jump(Visit(Place.FLEET), "revision")),
        ("top zones", Jump(Visit(Place.FLEET), "zone")),
        ("alerts LLMNodeSlow", Jump(Visit(Place.ALERTS), words="name=LLMNodeSlow")),
        ("incident list", Jump(Visit(Place.INCIDENT))),
        ("node logs node-2", Jump(Visit(Place.NODE, "node-2"))),
        ("incident show inc-7", Jump(Visit(Place.INCIDENT, "inc-7"))),
        ("runbook show replace-node", Jump(Visit(Place.RUNBOOK, "replace-node"))),
        ("describe run run-3", Jump(Visit(Place.RUNBOOK, "run-3"))),
        ("runbook approve run-3", Answer("run-3", approve=True)),
        (
            "runbook approve run-3 --yes --override 'users suffer'",
            Answer("run-3", approve=True, override="users suffer"),
        ),
        ("runbook deny run-3", Answer("run-3", approve=False)),
        ("incident ack inc-7", Handle("ack", "inc-7")),
        ("incident assign inc-7 --to ann", Handle("assign", "inc-7", "ann")),
        ("replace node-2", Start("replace-node", {"node": "node-2"}, "node-2")),
        (
            "replace node-2 --deadline 9s --dry-run",
            Start("replace-node", {"node": "node-2", "deadline": "9s"}, "node-2", Said(dry_run=True)),
        ),
        (
            "runbook run replace-node node=node-2 --reason='it is slow'",
            Start("replace-node", {"node": "node-2"}, "node-2", Said(reason="it is slow")),
        ),
        ("q", Simple("quit")),
    ],
)
def test_a_line_means_what_it_means_after_fleetctl(text: str, order: object) -> None:
    assert parse_order(text, EXAMPLES) == order


@pytest.mark.parametrize(
    ("text", "name", "only_looks"),
    [
        ("get gpus", "get", True),
        ("get nodes -l phase=ready -o wide", "get", True),
        ("describe pool chat", "describe", True),
        ("rollout status chat", "rollout status", True),
        ("canary list", "canary list", True),
        ("alerts explain LLMNodeSlow", "alerts explain", True),
        ("logs gateway", "logs", True),
        ("audit --since 24h", "audit", True),
        ("gateway key list", "gateway key list", True),
        ("freeze --for 2h --reason 'network works'", "freeze", False),
        ("silence add LLMNodeSlow --comment 'being replaced'", "silence add", False),
        ("incident comment inc-7 'the template went out at 14:02'", "incident comment", False),
        ("incident ack inc-7 --comment 'I look at it'", "incident ack", False),
        ("notify test pager", "notify test", False),
    ],
)
def test_every_other_command_is_run_as_it_stands(text: str, name: str, only_looks: bool) -> None:
    order = parse_order(text, EXAMPLES)
    assert isinstance(order, Command)
    assert (order.name, order.only_looks, order.line) == (name, only_looks, f"fleetctl {text}")


def test_a_command_that_asks_on_a_terminal_was_asked_about_here() -> None:
    order = parse_order("drill inject slow-steps node-2", EXAMPLES)
    assert isinstance(order, Command)
    assert order.line == "fleetctl drill inject slow-steps node-2 --yes"


@pytest.mark.parametrize("name", [name for name in EXAMPLES if " " in name])
def test_no_command_of_two_words_is_taken_for_a_name_on_a_screen(name: str) -> None:
    order = parse_order(name, EXAMPLES)
    assert not (isinstance(order, Jump) and order.visit.subject is not None)


def test_what_the_key_for_silences_runs_can_be_typed_in_a_shell() -> None:
    for command in (
        silence_alert("LLMQueueDepth", {"node": "chat-1", "pool": "chat", "revision": "r41"}, "it's known"),
        silence_incident("inc-7", "it's known"),
    ):
        assert why_not(shlex.join(command.words), may_be_a_name=False) is None
        assert not command.only_looks


@pytest.mark.parametrize("text", ["get nodes -w", "events -f", "load --rate 4", "demo", "gateway run"])
def test_what_would_not_end_here_is_told_with_where_it_does(text: str) -> None:
    order = parse_order(text, EXAMPLES)
    assert isinstance(order, Wrong)
    assert order.remedy == f"in a shell: fleetctl {text}"


def test_a_verb_is_sent_as_it_is_typed_and_a_dry_run_is_kept_apart() -> None:
    order = parse_order("drain node-2 --deadline 20s --dry-run --override 'users suffer'")
    assert isinstance(order, Act)
    assert (order.command, order.target) == ("drain node-2 --deadline 20s", "node-2")
    assert order.said == Said(dry_run=True, override="users suffer")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "drian node-2",
        "drain",
        "drain node-2 --dead 3s",
        "drain node-2 --override",
        "drain 'node-2",
        "incident ack",
        "runbook deny",
        "replace",
        "runbook run",
    ],
)
def test_a_mistake_is_told_with_what_to_type(text: str) -> None:
    order = parse_order(text)
    assert isinstance(order, Wrong)
    assert order.why
    assert order.remedy


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_verb_of_the_table_can_be_typed(verb: object) -> None:
    assert isinstance(parse_order(verb.example), Act)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("drain n", ["drain node-1", "drain node-2"]),
        ("drain node-1 --dea", ["drain node-1 --deadline"]),
        ("node st", ["node stop", "node start"]),
        ("incident a", ["incident ack", "incident assign"]),
        ("silence ", ["silence add", "silence list", "silence alert", "silence expire"]),
        ("get gp", ["get gpus"]),
        ("explain rec", ["explain receipts"]),
        ("gateway key ", ["gateway key new", "gateway key list"]),
        ("incident ack ", ["incident ack inc-7"]),
        ("scale ", ["scale chat"]),
        ("get traf", ["get traffic", "get traffic-rule", "get traffic-rules"]),
        ("nothing ", []),
    ],
)
def test_names_that_are_there_complete_a_line(text: str, found: list[str]) -> None:
    assert completions(text, NAMES) == found


@pytest.mark.parametrize(
    ("command", "dangerous"),
    [
        ("drain node-2", True),
        ("node stop node-2", True),
        ("restart node-2", True),
        ("scale chat --to -1", True),
        ("scale chat --to 3", True),
        ("scale chat --to +1", False),
        ("cordon node-2", False),
        ("uncordon node-2", False),
    ],
)
def test_what_ends_or_moves_work_wants_its_name(command: str, dangerous: bool) -> None:
    order = parse_order(command)
    assert isinstance(order, Act)
    assert is_dangerous(order.verb, command) is dangerous
