"""The command line of the cockpit: what a typed line means, and what completes it."""

from __future__ import annotations

import pytest

from fleetctl.tui.completing import Names, completions
from fleetctl.tui.order import Act, Answer, Handle, Jump, Simple, Start, Wrong, is_dangerous, parse_order
from fleetctl.tui.place import Place, Visit
from runbooks.verbs import VERBS

NAMES = Names(
    nodes=["node-1", "node-2"], pools=["chat"], incidents=["inc-7"], runs=["run-3"], runbooks=["replace-node"]
)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("nodes", Jump(Visit(Place.FLEET))),
        ("fleetctl get nodes", Jump(Visit(Place.FLEET))),
        ("get zones", Jump(Visit(Place.FLEET), "zone")),
        ("node node-2", Jump(Visit(Place.NODE, "node-2"))),
        ("logs node-2", Jump(Visit(Place.NODE, "node-2"))),
        ("incident show inc-7", Jump(Visit(Place.INCIDENT, "inc-7"))),
        ("runbook show replace-node", Jump(Visit(Place.RUNBOOK, "replace-node"))),
        ("describe run run-3", Jump(Visit(Place.RUNBOOK, "run-3"))),
        ("runbook approve run-3", Answer("run-3", approve=True)),
        ("runbook deny run-3", Answer("run-3", approve=False)),
        ("incident ack inc-7", Handle("ack", "inc-7")),
        ("incident assign inc-7 --to ann", Handle("assign", "inc-7", "ann")),
        ("replace node-2", Start("replace-node", {"node": "node-2"}, "node-2", dry_run=False)),
        (
            "replace node-2 --deadline 9s --dry-run",
            Start("replace-node", {"node": "node-2", "deadline": "9s"}, "node-2", dry_run=True),
        ),
        (
            "runbook run replace-node node=node-2",
            Start("replace-node", {"node": "node-2"}, "node-2", dry_run=False),
        ),
        ("q", Simple("quit")),
    ],
)
def test_a_line_means_what_it_means_after_fleetctl(text: str, order: object) -> None:
    assert parse_order(text) == order


def test_a_verb_is_sent_as_it_is_typed_and_a_dry_run_is_kept_apart() -> None:
    order = parse_order("drain node-2 --deadline 20s --dry-run")
    assert isinstance(order, Act)
    assert (order.command, order.target, order.dry_run) == ("drain node-2 --deadline 20s", "node-2", True)


@pytest.mark.parametrize(
    "text",
    ["", "drian node-2", "drain", "drain node-2 --dead 3s", "incident ack", "runbook deny", "replace", "runbook run"],
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
        ("incident ack ", ["incident ack inc-7"]),
        ("scale ", ["scale chat"]),
        ("get traf", ["get traffic", "get traffic-rules"]),
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
