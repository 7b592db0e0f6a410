from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.command import parse_command
from runbooks.errors import BadCommandError, BadInputError
from runbooks.fleet_view import Change, FleetView
from runbooks.ports import NodeFacts
from runbooks.target import Target, TargetKind, node_target, parse_target, written_forms

POOL, MODEL, REVISION, TENANT, ROUTE, FLEET = (
    Target(TargetKind.POOL, "decode"),
    Target(TargetKind.MODEL, "meta-llama/Llama-3"),
    Target(TargetKind.REVISION, "r2"),
    Target(TargetKind.TENANT, "acme"),
    Target(TargetKind.ROUTE, "long-context"),
    Target(TargetKind.FLEET, ""),
)
WRITTEN = {
    "node-2": node_target("node-2"),
    "pool/decode": POOL,
    "model/meta-llama/Llama-3": MODEL,
    "revision/r2": REVISION,
    "tenant/acme": TENANT,
    "route/long-context": ROUTE,
    "fleet": FLEET,
    "node/fleet": node_target("fleet"),
}


@pytest.mark.parametrize(("text", "target"), WRITTEN.items())
def test_has_one_written_form_that_is_read_back(text: str, target: Target) -> None:
    assert str(target) == text
    assert parse_target(text) == target


@given(st.text(max_size=40))
def test_any_text_is_a_target_whose_written_form_means_it_or_a_clear_error(text: str) -> None:
    try:
        target = parse_target(text)
    except BadInputError:
        return
    assert parse_target(str(target)) == target


def test_a_bare_name_is_of_the_only_kind_that_a_verb_takes() -> None:
    assert parse_command("scale decode --to 2").target == POOL
    assert parse_command("scale pool/decode --to 2").target == POOL
    assert parse_command("drain node/node-2").target == node_target("node-2")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("drain pool/decode", "drain: 'pool/decode' is not a node; write NODE"),
        ("drain fleet/x", "drain: 'fleet/x' is not a node name"),
        ("scale node/node-2 --to 2", "scale: 'node/node-2' is not a pool; write POOL"),
        ("scale model/decode --to 2", "scale: 'model/decode' is not a pool"),
        ("scale pool/ --to 2", "scale: '' is not a plain string"),
        ("scale --to 2", "scale: takes one pool, got none; write `fleetctl scale POOL`"),
        ("scale decode", "scale: --to is missing; --to: nodes it shall have"),
        ("scale decode --to many", "scale --to: 'many' is not a size; write it like 5, +2, -1 or before"),
        ("scale decode --to 10000", "scale --to: '10000' is not a size"),
        ("scale decode --to 2 --from -1", "scale --from: '-1' is not a count; write a whole number"),
        ("scale decode --to 2 --nodes a,,b", "scale --nodes: '' is not a node name"),
        ("scale decode --to 2 --nodes " + "a," * 100 + "a", "scale --nodes: 101 nodes; name at most 100"),
    ],
)
def test_a_target_or_option_of_the_wrong_kind_is_refused(command: str, message: str) -> None:
    with pytest.raises(BadCommandError) as caught:
        parse_command(command)
    assert str(caught.value).startswith(message)


def test_written_forms_are_what_help_shows() -> None:
    assert written_forms([TargetKind.POOL]) == "POOL"
    assert written_forms([TargetKind.FLEET]) == "fleet"
    assert written_forms([TargetKind.NODE, TargetKind.MODEL, TargetKind.FLEET]) == "NODE or model/NAME or fleet"
    assert [target.words for target in (node_target("n"), POOL, FLEET)] == ["n", "pool decode", "the fleet"]


NODES = [
    NodeFacts("a", "decode", "meta-llama/Llama-3", "r1"),
    NodeFacts("b", "decode", "meta-llama/Llama-3", "r2"),
    NodeFacts("c", "long", "other", "r2"),
    NodeFacts("gone", "decode", "other", "r1", wanted=False),
]
VIEW = FleetView.of(NODES, ["a", "c"])


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (node_target("a"), {"a"}),
        (POOL, {"a", "b"}),
        (MODEL, {"a", "b"}),
        (REVISION, {"b", "c"}),
        (FLEET, {"a", "b", "c"}),
        (TENANT, set()),
        (ROUTE, set()),
        (Target(TargetKind.POOL, "empty"), set()),
    ],
)
def test_a_target_stands_for_its_wanted_nodes(target: Target, names: set[str]) -> None:
    assert VIEW.members(target) == names
    blind = FleetView.of(None, None).members(target)
    assert blind == (names if target.kind is TargetKind.NODE else None)


def test_nodes_that_are_gone_count_where_they_are_named() -> None:
    assert VIEW.members(POOL, also=frozenset({"gone"})) == {"a", "b", "gone"}


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (node_target("a"), node_target("a"), True),
        (node_target("a"), node_target("b"), False),
        (node_target("x"), node_target("y"), False),
        (POOL, node_target("a"), True),
        (POOL, node_target("c"), False),
        (POOL, node_target("gone"), True),
        (POOL, node_target("x"), None),
        (POOL, Target(TargetKind.POOL, "long"), False),
        (POOL, MODEL, True),
        (POOL, REVISION, True),
        (Target(TargetKind.POOL, "long"), MODEL, False),
        (FLEET, node_target("x"), True),
        (FLEET, TENANT, True),
        (TENANT, node_target("a"), False),
        (TENANT, ROUTE, False),
        (TENANT, TENANT, True),
    ],
    ids=lambda value: str(value),
)
def test_what_two_targets_have_in_common_is_the_same_both_ways(one: Target, other: Target, shared: bool | None) -> None:
    assert VIEW.overlap(one, other) is shared
    assert VIEW.overlap(other, one) is shared


def test_without_a_look_at_the_fleet_only_names_tell() -> None:
    blind = FleetView.of(None, ["a"])
    assert blind.overlap(POOL, node_target("a")) is None
    assert blind.overlap(POOL, MODEL) is None
    assert blind.overlap(node_target("a"), node_target("b")) is False
    assert blind.overlap(POOL, POOL) is True


def test_the_fleet_after_a_change() -> None:
    after = VIEW.after(Change(creates={"new": "c", "odd": None, "gone": None, "b": "c"}, removes=frozenset({"a"})))
    assert after.serving == {"b", "c", "new", "odd", "gone"}
    assert after.nodes is not None
    assert after.nodes["new"] == NodeFacts("new", "long", "other", "r2")
    assert after.nodes["gone"].wanted
    assert after.nodes["gone"].pool == "decode", "a node that was stopped comes back as it was"
    assert after.nodes["b"] == NODES[1], "a node that runs is not made another one"
    copied = VIEW.after(Change(creates={"gone": "c"})).nodes
    assert copied is not None
    assert copied["gone"].pool == "long", "unless it is to be a copy"
    assert "odd" not in after.nodes, "what it will be like is not known"
    back = VIEW.after_all(
        [Change(removes=frozenset("ac")), None, Change(adds=frozenset("a")), Change(pauses=frozenset("b"))]
    )
    assert back.serving == {"a", "b"}
    assert FleetView.of(NODES, None).after(Change(adds=frozenset("b"))).serving is None
