"""Passive ejection, on a clock of its own: who fails more than its peers gets nothing, and comes back in steps."""

from __future__ import annotations

import pytest

from fleetctl.gateway.nodes.ejection import TRIAL_STEPS, Ejection, Ejections
from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.settings.gateway_health import EjectionSettings
from fleetctl.wire.node import NodePhase
from fleetctl.wire.routing import RouteState

LIMITS = EjectionSettings(min_samples=5, failure_ratio=0.5, max_ejected_ratio=0.34, first_s=10, longest_s=60)


def endpoint(node: str, phase: NodePhase | None = None) -> Endpoint:
    return Endpoint(node, f"http://{node}", RouteState.ACTIVE, "default", "demo", phase)


def ejections_of(*nodes: str, limits: EjectionSettings = LIMITS) -> Ejections:
    made = Ejections(limits)
    made.note_table([endpoint(node) for node in nodes], 0.0)
    return made


def fail(ejections: Ejections, node: str, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        ejections.note_failed(node, Ejection.SERVER_ERROR, now)


def answer(ejections: Ejections, times: int, *nodes: str, now: float = 0.0) -> None:
    for node in nodes:
        for _ in range(times):
            ejections.note_answered(node, now)


def test_a_node_that_fails_while_its_peers_answer_is_ejected_and_says_why() -> None:
    ejections = ejections_of("a", "b", "c")
    answer(ejections, 5, "b", "c")
    fail(ejections, "a", 4)
    assert ejections.ejected(0.0) == {}, "too few to judge"
    fail(ejections, "a", 1)
    assert ejections.ejected(0.0) == {"a": Ejection.SERVER_ERROR}
    assert ejections.why_left_out("a", 0, 0.0) == "ejected"
    assert ejections.why_left_out("b", 0, 0.0) is None


def test_nobody_is_ejected_when_all_fail_alike_or_nothing_is_known_of_peers() -> None:
    ejections = ejections_of("a", "b", "c")
    for _ in range(20):
        for node in "abc":
            ejections.note_failed(node, Ejection.SERVER_ERROR, 0.0)
    assert not ejections.has_any
    alone = ejections_of("a", "b")
    fail(alone, "a", 50)
    assert not alone.has_any, "its peer has answered nothing yet"


def test_a_failure_that_is_forgiven_counts_for_nothing() -> None:
    ejections = ejections_of("a", "b", "c")
    answer(ejections, 9, "b", "c")
    for _ in range(20):
        fail(ejections, "a", 1)
        ejections.forgive("a", 0.0)
    assert not ejections.has_any


def test_at_most_a_share_of_a_models_nodes_is_ejected_and_one_at_least() -> None:
    names = [f"n{i}" for i in range(9)]
    ejections = ejections_of(*names)
    answer(ejections, 50, *names[5:])
    for node in names[:5]:
        fail(ejections, node, 10)
    assert len(ejections.ejected(0.0)) == int(9 * 0.34)
    pair = ejections_of("a", "b")
    answer(pair, 5, "b")
    fail(pair, "a", 5)
    assert list(pair.ejected(0.0)) == ["a"]


def test_old_failures_decay() -> None:
    ejections = ejections_of("a", "b")
    answer(ejections, 50, "b", now=100.0)
    fail(ejections, "a", 4)
    fail(ejections, "a", 1, now=100.0)
    assert not ejections.has_any


def test_ejections_grow_and_a_failure_on_trial_ejects_at_once() -> None:
    ejections = ejections_of("a", "b", "c")
    answer(ejections, 5, "b", "c")
    fail(ejections, "a", 5)
    now = 0.0
    for for_s in (10, 20, 40, 60, 60):
        assert ejections.why_left_out("a", 0, now + for_s - 0.1) == "ejected"
        now += for_s
        assert ejections.why_left_out("a", 0, now) is None
        assert (ejections.on_trial(now), ejections.ejected(now)) == (["a"], {})
        fail(ejections, "a", 1, now)


def test_a_node_on_trial_gets_few_requests_then_more_then_all() -> None:
    ejections = ejections_of("a", "b", "c")
    ejections.begin_trial("a", 0.0)
    held_before = 7  # streams from before the outage are no part of the trial
    for seats, answers in TRIAL_STEPS:
        assert ejections.why_left_out("a", held_before + seats - 1, 1.0) is None
        assert ejections.why_left_out("a", held_before + seats, 1.0) == "trial"
        answer(ejections, answers, "a", now=1.0)
    assert ejections.why_left_out("a", 1000, 1.0) is None
    assert not ejections.has_any


def test_a_node_that_the_controller_saw_gone_comes_back_on_trial_and_a_new_one_does_not() -> None:
    ejections = ejections_of("a", "b")
    ejections.note_table([endpoint("a", NodePhase.UNREACHABLE), endpoint("b", NodePhase.READY)], 1.0)
    ejections.note_table([endpoint(n, NodePhase.READY) for n in ("a", "b", "new")], 2.0)
    assert ejections.on_trial(2.0) == ["a"]
    ejections.note_table([endpoint("b", NodePhase.READY)], 3.0)
    assert not ejections.has_any, "what left the table is forgotten"


@pytest.mark.parametrize(("ttft_s", "is_ejected"), [(9.0, True), (4.0, False)], ids=["far slower", "slower"])
def test_first_tokens_far_later_than_the_peers_eject(ttft_s: float, is_ejected: bool) -> None:
    ejections = ejections_of("a", "b", "c")
    for _ in range(12):
        ejections.note_first_token("b", 1.0, 0.0)
        ejections.note_first_token("c", 1.2, 0.0)
        ejections.note_first_token("a", ttft_s, 0.0)
    assert ejections.ejected(0.0) == ({"a": Ejection.SLOW} if is_ejected else {})


def test_first_tokens_within_milliseconds_eject_nobody() -> None:
    ejections = ejections_of("a", "b")
    for _ in range(50):
        ejections.note_first_token("b", 0.01, 0.0)
        ejections.note_first_token("a", 0.5, 0.0)
    assert not ejections.has_any


def test_nothing_is_ejected_when_that_is_off() -> None:
    ejections = ejections_of("a", "b", limits=EjectionSettings(enabled=False))
    answer(ejections, 50, "b")
    fail(ejections, "a", 50)
    assert not ejections.has_any
