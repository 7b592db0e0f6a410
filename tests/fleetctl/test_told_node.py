"""What the stream of nodes tells comes to what the list has, whatever happened, and whoever was away how long."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.controller.nodes import node_board
from fleetctl.controller.nodes.node_board import NodeBoard
from fleetctl.told_node import SIGNALS, KnownNodes
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.node import DeepCheck, Node, NodeChanges, NodePhase, Signal

NOW = 1_700_000_000.0
NAMES = [f"node-{number}" for number in range(4)]


def told_to(reader: KnownNodes, board: NodeBoard, version: int | None, now: float) -> int:
    """The reader hears, as JSON, what happened since a version. The version that it knows then."""
    is_whole = version is None or not board.knows(version)
    since = 0 if is_whole or version is None else version
    told = board.tell(board.changed(since), since, now)
    told = told.model_copy(update={"whole": is_whole, "gone": board.gone(since)})
    reader.take(NodeChanges.model_validate_json(told.model_dump_json(exclude_defaults=True)), f"life-{board.version}")
    return board.version


def shown(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def assert_same(told: Node, listed: Node) -> None:
    """All that a list shows of a node; of a signal's digits those that are shown."""
    for name in SIGNALS:
        one, other = getattr(told, name), getattr(listed, name)
        assert one.value == shown(other.value), name
    apart = {"gpus", "deep_check", "signal_age_s", "probe_age_s", *SIGNALS}
    assert told.model_dump(exclude=apart) == listed.model_dump(exclude=apart)
    assert (told.deep_check.result, told.deep_check.detail) == (listed.deep_check.result, listed.deep_check.detail)
    assert [card.gpu for card in told.gpus] == [card.gpu for card in listed.gpus]
    for card, other in zip(told.gpus, listed.gpus, strict=True):
        assert card.throttled == other.throttled
        assert card.temperature_c == shown(other.temperature_c)


def make_node(name: str = "node-1", **fields: Any) -> Node:
    return Node(**{"name": name, "url": "http://n", "phase": NodePhase.READY, **fields})


signals = st.builds(
    Signal,
    value=st.none() | st.floats(0, 1e6, allow_nan=False),
    age_s=st.none() | st.floats(0, 40),
)
cards = st.lists(
    st.builds(
        Gpu,
        node=st.just("?"),
        gpu=st.sampled_from("012"),
        temperature_c=st.none() | st.floats(20, 110),
        throttled=st.none() | st.lists(st.sampled_from(["sw_thermal", "power_brake"]), max_size=2),
    ),
    max_size=3,
    unique_by=lambda card: card.gpu,
)
nodes = st.builds(
    Node,
    name=st.sampled_from(NAMES),
    url=st.just("http://n"),
    phase=st.sampled_from(NodePhase),
    reason=st.sampled_from(["", "why"]),
    facts=st.dictionaries(st.sampled_from(["host", "sku"]), st.sampled_from("ab")),
    machine_problems=st.none() | st.lists(st.just("ecc"), max_size=1),
    alerts=st.lists(st.sampled_from(["A", "B"]), max_size=2),
    since=st.none() | st.floats(0, 1e9),
    signal_age_s=st.none() | st.floats(0, 40),
    probe_age_s=st.none() | st.floats(0, 40),
    deep_check=st.builds(DeepCheck, result=st.sampled_from(["passed", "unknown"]), age_s=st.none() | st.floats(0, 60)),
    gpus=cards,
    running=signals,
    kv_ratio=signals,
    ttft_p99_s=signals,
)
fleets = st.lists(nodes, max_size=4, unique_by=lambda node: node.name)


def of_its_node(node: Node) -> Node:
    gpus = [card.model_copy(update={"node": node.name}) for card in sorted(node.gpus, key=lambda one: one.gpu)]
    return node.model_copy(update={"gpus": gpus})


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(fleets, st.booleans(), st.booleans()), max_size=8))
def test_changes_come_to_the_list_after_any_sequence_for_who_hears_all_and_for_who_was_away(
    steps: list[tuple[list[Node], bool, bool]],
) -> None:
    board, always, seldom = NodeBoard(), KnownNodes(), KnownNodes()
    version = seldom_version = None
    for number, (fleet, hears, restarts) in enumerate(steps):
        now, fleet = NOW + 2.0 * number, [of_its_node(node) for node in fleet]
        if restarts:
            board, version, seldom_version = NodeBoard(), None, None  # its ids are of another life: all comes anew
        board.look(fleet, now)
        version = told_to(always, board, version, now)
        if hears or number == len(steps) - 1:
            seldom_version = told_to(seldom, board, seldom_version, now)
            for reader in (always, seldom):
                assert reader.nodes.keys() == {node.name for node in fleet}
                for node in fleet:
                    assert_same(reader.nodes[node.name], node)


def quiet(now: float, scraped_s: float, evaluated_s: float, probed_s: float, value: float = 0.1234) -> Node:
    fresh = Signal(value=value, age_s=evaluated_s)
    return make_node(kv_ratio=fresh, ttft_s=fresh, signal_age_s=scraped_s, probe_age_s=probed_s)


def test_nothing_is_told_while_only_ages_and_unseen_digits_change() -> None:
    board = NodeBoard()
    board.look([quiet(NOW, 0.5, 1.0, 0.2)], NOW)
    version = board.version
    board.look([quiet(NOW + 2, 2.5, 3.0, 2.2, value=0.12341)], NOW + 2)
    assert board.version == version
    board.look([quiet(NOW + 3, 3.5, 0.5, 0.1)], NOW + 3)
    assert board.version == version, "evaluated and probed anew, which is less than an age may be off"


def test_a_scrape_is_told_with_what_is_known_of_time_and_no_value_again() -> None:
    board, reader = NodeBoard(), KnownNodes()
    board.look([quiet(NOW, 0.5, 1.0, 0.2)], NOW)
    version = told_to(reader, board, None, NOW)
    board.look([quiet(NOW + 5, 0.4, 1.1, 0.2)], NOW + 5)

    changes = board.tell(board.changed(version), version, NOW + 5)
    assert changes.new == {}
    assert changes.changed["node-1"].keys() == {"at"}
    told_to(reader, board, version, NOW + 5)
    node = reader.nodes["node-1"]
    assert math.isclose(node.signal_age_s or 0.0, 0.4, abs_tol=0.11)
    assert math.isclose(node.kv_ratio.age_s or 0.0, 1.1, abs_tol=0.11)


def test_a_value_that_nobody_measures_any_more_grows_old_beside_one_that_is() -> None:
    board, reader, version = NodeBoard(), KnownNodes(), None
    for second in range(0, 60, 5):
        now = NOW + second
        node = make_node(
            kv_ratio=Signal(value=0.5, age_s=1.0),
            ttft_p99_s=Signal(value=0.2, age_s=1.0 + second),
            signal_age_s=0.5,
        )
        board.look([node], now)
        version = told_to(reader, board, version, now)
        told = reader.nodes["node-1"]
        assert math.isclose(told.ttft_p99_s.age_s or 0.0, 1.0 + second, abs_tol=2.7)
        assert math.isclose(told.kv_ratio.age_s or 0.0, 1.0, abs_tol=0.2)


def test_an_age_is_never_off_by_more_than_a_few_seconds_whoever_tells_it() -> None:
    """A node that is probed and not scraped, as one whose metrics are not to be had."""
    board, reader, version = NodeBoard(), KnownNodes(), None
    for second in range(40):
        now = NOW + second
        board.look([make_node(signal_age_s=100.0 + second, probe_age_s=0.5)], now)
        version = told_to(reader, board, version, now)
    told_s = reader.nodes["node-1"].probe_age_s
    assert told_s is not None
    assert told_s <= 0.5 + node_board.AGES_TO_S


def test_who_knows_of_more_that_is_gone_than_is_kept_begins_anew(monkeypatch: Any) -> None:
    monkeypatch.setattr(node_board, "MAX_GONE", 2)
    board, reader = NodeBoard(), KnownNodes()
    board.look([make_node(f"node-{number}") for number in range(5)], NOW)
    version = told_to(reader, board, None, NOW)
    for left in range(4, -1, -1):
        board.look([make_node(f"node-{number}") for number in range(left)], NOW)
    assert not board.knows(version)
    told_to(reader, board, version, NOW)
    assert reader.nodes == {}


def test_what_is_not_known_any_more_is_told_so() -> None:
    board, reader = NodeBoard(), KnownNodes()
    card = Gpu(node="node-1", gpu="0", throttled=["sw_thermal"])
    board.look([make_node(reason="held", kv_ratio=Signal(value=0.5, age_s=1.0), gpus=[card])], NOW)
    version = told_to(reader, board, None, NOW)
    board.look([make_node()], NOW)
    told_to(reader, board, version, NOW)
    node = reader.nodes["node-1"]
    assert (node.reason, node.kv_ratio.value, node.kv_ratio.age_s, node.gpus) == ("", None, None, [])


def test_a_node_that_came_back_under_its_name_has_nothing_of_the_one_before() -> None:
    board, reader = NodeBoard(), KnownNodes()
    board.look([make_node(reason="held", facts={"host": "h1"})], NOW)
    version = told_to(reader, board, None, NOW)
    board.look([], NOW)
    board.look([make_node(zone="b")], NOW)
    version = told_to(reader, board, version, NOW)
    board.look([make_node(zone="c")], NOW)
    told_to(reader, board, version, NOW)
    assert (reader.nodes["node-1"].reason, reader.nodes["node-1"].facts) == ("", {})
