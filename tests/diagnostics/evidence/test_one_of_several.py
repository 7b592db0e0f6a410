"""What one of several nodes, or a few requests of many, have: lost in a mean, and not the others' doing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.fixtures.asked_fleet import AT, NODE, NOW, Level, Series, answer_to, judged, of, then


@pytest.mark.parametrize(
    ("age_s", "peer", "prompts", "answer"),
    [(300.0, 0.9, 0.04, "yes"), (3000.0, 0.9, 0.04, "no"), (300.0, 0.1, 0.04, "no"), (300.0, 0.9, 0.0, "no")],
    ids=["one of two started", "started long ago", "its peer finds as little", "it has read none since"],
)
def test_an_empty_cache_of_one_node_is_seen_by_a_few_prompts(
    age_s: float, peer: float, prompts: float, answer: str
) -> None:
    told: list[Series] = [("llm:up", of(number), 1.0) for number in (1, 2)]
    told += [("llm:first_tokens:rate", of(number), prompts) for number in (1, 2)]
    told += [("llm:prefix_hit_ratio", of(1), then(0.9, peer)), ("llm:prefix_hit_ratio", of(2), then(0.9, 0.1))]
    told += [("llm:deploy_age_seconds", of(1), 80000.0), ("llm:deploy_age_seconds", of(2), age_s)]
    assert answer_to("node_finds_less", *told) == answer


def test_a_start_that_left_one_cache_empty_is_a_cold_cache_until_it_has_filled() -> None:
    seen = "node_finds_less node_promise_broken restarted_before prefill_slower"
    assert judged("", f"{seen} started_lately started_after_peers").cause == "cold_cache"
    assert judged("", seen, "started_lately started_after_peers").cause == "cold_cache", "twenty minutes, not ten"


@pytest.mark.parametrize(("left", "answer"), [(0.0, "yes"), (0.02, "no")])
def test_what_is_cut_off_lets_nothing_through(left: float, answer: str) -> None:
    """Of two nodes with two requests a second each, five in four minutes still come."""
    since = NOW - 400
    told: list[Series] = [("llm:arrivals:rate", of(number), then(2.0, left / 2, since)) for number in (1, 2)]
    assert answer_to("arrivals_gone", *told, since=since) == answer


@pytest.mark.parametrize(("ended", "answer"), [(1.0, "yes"), (0.02, "unknown")])
def test_of_two_answers_one_is_half(ended: float, answer: str) -> None:
    told = [
        ("llm:requests:rate", of(1), then(2.0, ended)),
        ("llm:length_limited:rate", of(1), then(0.0, ended / 2)),
    ]
    assert answer_to("answers_cut_by_length", *told) == answer


@pytest.mark.parametrize(
    ("age_s", "waiting", "answer"), [(150.0, 0.0, "yes"), (150.0, 40.0, "no"), (90000.0, 0.0, "no")]
)
def test_a_node_that_started_and_is_well_explains_no_queue_of_its_peer(
    age_s: float, waiting: float, answer: str
) -> None:
    told: list[Series] = [("llm:waiting", of(1), waiting), ("llm:waiting", of(2), 900.0)]
    told += [("llm:deploy_age_seconds", of(1), age_s), ("llm:deploy_age_seconds", of(2), 90000.0)]
    told += [("llm:served:rate", of(number), 2.0) for number in (1, 2)]
    assert answer_to("started_and_well", *told) == answer


def test_a_start_that_is_well_is_no_cause_of_what_its_peers_have() -> None:
    seen = "queue_waits seats_taken ttft_up started_after_peers started_lately back_lately idle_peers promise_broken"
    assert judged("capacity", seen).cause == "cold_start"
    assert judged("capacity", f"{seen} started_and_well").cause != "cold_start"


@pytest.mark.parametrize(("ago_s", "answer"), [(300.0, "yes"), (1500.0, "no")])
def test_that_a_full_node_was_told_to_end_is_known_while_it_is_back(ago_s: float, answer: str) -> None:
    ended, back = NOW - ago_s, NOW - ago_s + 120

    def status(times: np.ndarray) -> np.ndarray:
        return np.where((times >= ended) & (times < back), 143.0, np.nan)

    told: list[Series] = [
        ("fleet_node_process_up", NODE, lambda times: np.where((times >= ended) & (times < back), 0.0, 1.0)),
        ("fleet_node_exit_status", NODE, status),
        ("llm:waiting", of(2), 900.0),
        ("llm:running", of(2), 50.0),
    ]
    assert answer_to("ended_when_full", *told) == answer


@pytest.mark.parametrize(
    ("held", "peers", "answer"),
    [(0.6e9, 1.0, "yes"), (74e9, 1.0, "no"), (0.6e9, 1.5, "no")],
    ids=["its cards are empty", "its cards are full", "its peers serve what it did"],
)
def test_a_server_whose_cards_are_empty_has_no_engine(held: float, peers: float, answer: str) -> None:
    told: list[Series] = [("llm:up", of(number, "trtllm"), 1.0) for number in (1, 2, 3)]
    told += [("llm:served:rate", of(number, "trtllm"), then(1.0, peers)) for number in (1, 3)]
    told += [("llm:served:rate", of(2, "trtllm"), then(1.0, 0.0))]
    told += [("llm:gpu_memory_used_bytes", of(2, gpu=gpu), then(74e9, held)) for gpu in ("0", "1")]
    assert answer_to("cards_emptied", *told) == answer


def test_an_engine_that_is_gone_behind_its_server_is_a_node_that_is_down() -> None:
    assert judged("", "cards_emptied tokens_fell served_fell").cause == "node_down"
    assert judged("latency", "cards_emptied node_starved").cause == "node_down", "and no matter of routing"


def _counts(per_second: float, since: float, until: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda times: per_second * (np.clip(times, since, until) - since)


@pytest.mark.parametrize(
    ("fails", "order", "answer"),
    [((60.0, 20.0), 60.0, "yes"), ((22.0, 20.0), 60.0, "no"), ((60.0, 20.0), 4000.0, "no")],
    ids=["it is still asked", "it lost what it held", "nobody ended it"],
)
def test_a_node_that_is_ended_by_an_order_is_not_asked_any_more(
    fails: tuple[float, float], order: float, answer: str
) -> None:
    failed = {"node": "node-2", "outcome": "failed"}
    told: list[Series] = [
        ("llm:up", of(2), then(1.0, 0.0, NOW - 60)),
        ("fleet_change_timestamp_seconds", {"kind": "deploy", **NODE}, NOW - order),
        ("gateway_requests_total", failed, _counts(30 / (fails[0] - fails[1]), NOW - fails[0], NOW - fails[1])),
        ("gateway_requests_total", {"node": "node-1", "outcome": "finished"}, _counts(2.0, AT[0], NOW)),
    ]
    assert answer_to("routed_to_ended", *told) == answer


def test_that_pods_which_end_are_still_asked_is_a_matter_of_routing() -> None:
    seen = "routed_to_ended fails_for_users silent loading started_lately changed_deploy nodes_fewer"
    assert judged("", seen).cause == "routing_stale"


def test_what_misses_scrapes_by_turns_is_not_silent_in_the_moment_in_which_all_of_it_does() -> None:
    by_turns: Level = lambda times: np.where((NOW - times) % 60 < 20, 0.0, 1.0)  # noqa: E731
    told: list[Series] = [("llm:running", of(1), 30.0), ("llm:waiting", of(1), 9.0), ("llm:seats", of(1), 30.0)]
    assert answer_to("seats_taken", *told, ("llm:up", of(1), by_turns)) == "yes"
    assert answer_to("seats_taken", *told, ("llm:up", of(1), then(1.0, 0.0, NOW - 20))) == "unknown"


def test_a_pool_that_nobody_asks_may_give_its_memory_back() -> None:
    told: list[Series] = [("llm:up", of(number), 1.0) for number in (1, 2)]
    told += [("llm:served:rate", of(number), then(1.0, 0.0)) for number in (1, 2)]
    told += [("llm:gpu_memory_used_bytes", of(2, gpu="0"), then(74e9, 1e9))]
    asked = ("gateway_inflight_requests", {"node": "node-2"}, 3.0)
    assert answer_to("cards_emptied", *told) == "no"
    assert answer_to("cards_emptied", *told, asked) == "yes"


@pytest.mark.parametrize(("per_s", "answer"), [(0.2, "no"), (2.0, "yes")])
def test_three_first_tokens_are_no_mean(per_s: float, answer: str) -> None:
    """The last prompts are twice as late; where four came in twenty seconds, the minute is asked."""
    late: list[Series] = [
        ("llm:ttft_seconds:mean", of(1), then(0.4, 0.8, NOW - 5)),
        ("llm:first_tokens:rate", of(1), per_s),
    ]
    assert answer_to("ttft_up", *late) == answer


@pytest.mark.parametrize(("started", "answer"), [((1, 2), "yes"), ((1,), "no")])
def test_half_of_the_nodes_are_half_of_all_that_are_there(started: tuple[int, ...], answer: str) -> None:
    """Two of the four tell no age."""
    told: list[Series] = [("llm:up", of(number), 1.0) for number in (1, 2, 3, 4)]
    told += [
        ("llm:deploy_age_seconds", of(number), (lambda at: at - NOW + 900.0) if number in started else 90000.0)
        for number in (1, 2)
    ]
    assert answer_to("restarted_before", *told) == answer


@pytest.mark.parametrize(("now", "nodes", "answer"), [(0.05, 2, "yes"), (0.4, 2, "no"), (0.05, 1, "unknown")])
def test_a_router_that_forgot_finds_what_chance_finds(now: float, nodes: int, answer: str) -> None:
    told: list[Series] = []
    for number in range(1, nodes + 1):
        told += [("llm:up", of(number), 1.0), ("llm:prefix_hit_ratio", of(number), then(0.9, now))]
    assert answer_to("hits_below_chance", *told) == answer


def test_where_less_is_found_than_by_chance_prompts_stopped_sharing() -> None:
    seen = "shared_tokens_fell prefix_hit_fell hit_fell_everywhere routing_untold ttft_up prefill_slower"
    assert judged("latency", f"{seen} hits_below_chance arrivals_up").cause == "prefix_cache_broken"


@pytest.mark.parametrize(
    ("ordered", "status", "answer"),
    [(600.0, 1.0, "yes"), (600.0, 143.0, "no"), (130.0, 1.0, "no"), (4000.0, 1.0, "no")],
    ids=["it ended as it loaded", "it was told to", "the deploy ended the one before", "it had run for an hour"],
)
def test_a_new_revision_that_ended_once_before_it_answered_is_none_that_runs(
    ordered: float, status: float, answer: str
) -> None:
    ended, back = NOW - 120, NOW - 100
    told: list[Series] = [
        ("llm:up", of(2), then(1.0, 0.0, NOW - min(ordered, 600))),
        ("fleet_change_timestamp_seconds", {"kind": "deploy", **NODE}, NOW - ordered),
        ("fleet_node_process_up", NODE, lambda times: np.where((times >= ended) & (times < back), 0.0, 1.0)),
        ("fleet_node_exit_status", NODE, lambda times: np.where((times >= ended) & (times < back), status, np.nan)),
    ]
    assert answer_to("ends_after_deploy", *told, since=NOW - 600) == answer


def test_of_two_what_may_stand_alone_is_named_before_what_it_brings_about() -> None:
    """A contained memory error may have waited for days; beside a hang, which it rules out alone, it led to it."""
    found = judged("capacity", "gpu_contained no_steps queue_waits idle_peers promise_broken")
    assert (found.cause, found.also) == ("gpu_reset_due", "core_hung")


def test_an_engine_that_says_that_it_sleeps_is_not_gone() -> None:
    told: list[Series] = [("llm:up", of(number), 1.0) for number in (1, 2, 3)]
    told += [("llm:served:rate", of(number), then(1.0, float(number != 2))) for number in (1, 2, 3)]
    told += [("llm:gpu_memory_used_bytes", of(2, gpu="0"), then(74e9, 1e9))]
    assert answer_to("cards_emptied", *told) == "yes"
    assert answer_to("cards_emptied", *told, ("llm:asleep", of(2), 1.0)) == "no"
