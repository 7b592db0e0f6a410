"""What a sign explains, and what it does not: a share of the requests, an order, a restart, longer prompts, a gap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Evidence
from diagnostics.evidence.judge import judge
from diagnostics.evidence.knowledge import Knowledge, builtin_knowledge
from diagnostics.evidence.question import Question
from diagnostics.expectation import Expectation
from diagnostics.tree import Limit
from tests.fixtures.asked_fleet import AT, NODE, NOW, POOL, Level, Series, answer_to, judged, of, then


def _counts(per_second: float, since: float = 0.0) -> Callable[[np.ndarray], np.ndarray]:
    return lambda times: per_second * np.clip(times - max(since, AT[0]), 0, None)


def _shared(arrivals: float, step_s: float) -> list[Series]:
    """Three nodes; the second is sent so many requests, and takes so long for a step."""
    found: list[Series] = []
    for number in (1, 2, 3):
        found += [
            ("llm:up", of(number), 1.0),
            ("llm:arrivals:rate", of(number), then(2.0, arrivals if number == 2 else 2.0)),
            ("llm:step_seconds:mean", of(number), then(0.02, step_s if number == 2 else 0.02)),
            ("llm:running", of(number), 8.0),
        ]
    return found


@pytest.mark.parametrize(("step_s", "answer"), [(0.04, "yes"), (0.3, "no")])
def test_a_share_that_is_larger_by_half_makes_no_step_ten_times_as_long(step_s: float, answer: str) -> None:
    assert answer_to("slow_by_share", *_shared(6.0, step_s), scope=NODE) == answer
    assert answer_to("fullest_is_slow", *_shared(6.0, step_s)) == answer


@pytest.mark.parametrize(("first_tokens", "answer"), [(1.0, "no"), (0.0, "yes")])
def test_who_waits_and_gets_no_first_token_was_not_served_as_promised(first_tokens: float, answer: str) -> None:
    told = [
        ("llm:backlog_seconds", of(1), 90.0),
        ("llm:waiting", of(1), 4.0),
        ("llm:first_tokens:rate", of(1), first_tokens),
        ("llm:objective_ttft_seconds", {"pool": "chat", "model": "m", "engine": "vllm"}, 2.0),
        ("llm:ttft_seconds:mean", of(2), 0.2),
    ]
    assert answer_to("promise_broken", *told) == answer


@pytest.mark.parametrize(("started", "answer"), [(("node-2",), "yes"), (("node-1", "node-2"), "no"), ((), "unknown")])
def test_who_started_a_node_knows_its_age_where_the_engine_does_not_tell_it(
    started: tuple[str, ...], answer: str
) -> None:
    told: list[Series] = [("llm:up", of(number, "sglang"), 1.0) for number in (1, 2)]
    for node in started:
        labels = {"kind": "restart", "node": node, "pool": "chat"}
        told.append(("fleet_change_timestamp_seconds", labels, NOW - 200))
    assert answer_to("started_after_peers", *told) == answer
    assert answer_to("started_lately", *told) == ("yes" if started else "unknown")


@pytest.mark.parametrize(("since", "answer"), [(NOW - 60, "unknown"), (NOW - 600, "no")])
def test_where_no_limit_is_told_nobody_knows_for_four_minutes_whether_it_is_reached(since: float, answer: str) -> None:
    """What ran before it began is among them: one that runs now is fewer than eight were."""
    told = [("llm:running", of(1), then(8.0, 1.0, NOW - 60)), ("llm:waiting", of(1), 5.0)]
    assert answer_to("seats_taken", *told, since=since) == answer
    assert answer_to("seats_taken", *told, ("llm:seats", of(1), 4.0), since=since) == "no"


@pytest.mark.parametrize(("scraped", "answer"), [(True, "yes"), (False, "unknown")])
def test_of_minutes_without_a_scrape_nobody_knows_what_arrived(scraped: bool, answer: str) -> None:
    """A rate over samples that are missing is nothing, as that of requests that are."""
    up: Level = 1.0 if scraped else (lambda times: np.where(times > NOW - 120, np.nan, 1.0))
    told = [
        ("up", of(1), up),
        ("llm:up", of(1), 1.0),
        ("llm:arrivals:rate", of(1), then(2.0, 0.0, NOW - 240)),
        ("gateway_requests_total", {"outcome": "finished"}, _counts(0.0)),
    ]
    assert answer_to("arrivals_gone", *told, since=NOW - 240) == answer


@pytest.mark.parametrize(("liveness", "answer"), [(0.0, "yes"), (1.0, "no")])
def test_what_its_platform_ended_by_its_probe_did_not_end_by_itself(liveness: float, answer: str) -> None:
    told = [
        ("fleet_node_process_up", NODE, then(1.0, 0.0, NOW - 20)),
        ("fleet_node_exit_status", NODE, 137.0),
        ("fleet_provider_reasons", {"kind": "liveness", **NODE}, liveness),
    ]
    assert answer_to("ended_unasked", *told, scope=NODE) == answer


def test_an_order_of_an_hour_ago_ends_no_process_three_times() -> None:
    assert (
        judged("node", "silent process_ended ends_again ended_thrice restarted_by_us", scope=NODE).cause == "crash_loop"
    )


def test_clients_that_hang_up_on_longer_prompts_that_are_read_as_soon_as_ever_are_no_matter_of_the_prompts() -> None:
    assert judged("errors", "clients_hang_up prompts_longer").cause == "client_disconnects"


def test_a_node_that_is_left_out_by_its_probe_may_have_read_more_than_its_peers() -> None:
    seen = "gateway_ejects nodes_work fell_far_behind peers_slower_than_before queue_waits ttft_up"
    assert judged("gateway", seen).cause == "probe_too_strict"


def test_beside_a_straggler_whose_host_and_card_tell_nothing_its_host_is_looked_at_next() -> None:
    seen = "steps_slower fell_behind slower_beyond_work"
    unknown = "host_steals host_loaded host_throttled gpu_clock_low gpu_clock_fell"
    assert judged("gray", seen, unknown).runner_up == "busy_host"


@pytest.mark.parametrize(("status", "answer"), [(-11.0, "yes"), (143.0, "no"), (None, "no")])
def test_a_status_of_a_fault_is_told_of_a_process_and_not_of_a_machine_that_is_gone(
    status: float | None, answer: str
) -> None:
    told = [("fleet_node_process_up", NODE, then(1.0, 0.0, NOW - 20))]
    told += [("fleet_node_exit_status", NODE, status)] if status is not None else []
    assert answer_to("ended_with_status", *told, scope=NODE) == answer


@pytest.mark.parametrize(("since", "answer"), [(NOW - 30, "unknown"), (NOW - 900, "no")])
def test_one_end_is_no_loop_yet_and_none_only_after_ten_minutes(since: float, answer: str) -> None:
    told = [("fleet_node_process_up", NODE, then(1.0, 0.0, NOW - 30)), ("fleet_node_exit_status", NODE, 1.0)]
    assert answer_to("ends_again", *told, scope=NODE, since=since) == answer
    assert answer_to("ended_thrice", *told, scope=NODE, since=since) == answer


def test_next_beside_a_process_that_ended_with_a_fault_is_that_it_comes_back() -> None:
    seen, machine = "silent process_ended ended_unasked gone_for_others", "machine_silent machine_short machine_faulty"
    too_early = "core_dies_often core_died errors_up ends_again ended_thrice"
    assert judged("node", f"{seen} ended_with_status", f"{machine} {too_early}", NODE).runner_up == "core_crash"
    assert judged("node", seen, f"{machine} core_dies_often", NODE).runner_up == "machine_unhealthy"


def test_a_runner_up_that_nobody_tells_is_told_apart_by_what_is_not_known_of_it() -> None:
    """ "Is a node loading? Yes: cold_start, no: core_hung (it is no)" sent nobody to look."""
    found = judged("node", "no_steps queue_waits ttft_up", "started_after_peers", NODE)
    assert (found.cause, found.runner_up) == ("core_hung", "cold_start")
    assert found.tells_apart.startswith("started_after_peers Yes: cold_start, no: core_hung (it is unknown")


def test_where_requests_wait_without_work_and_nobody_tells_adapters_they_are_nearest() -> None:
    seen = "queue_waits ttft_up waits_without_work"
    found = judged("latency", seen, "adapters_wait adapter_slots_full kv_reserved kv_capacity_fell seats_lowered")
    assert (found.cause, found.runner_up) == (None, "adapter_cold")
    fewer = judged("capacity", "nodes_fewer", "queue_waits ttft_median_up running_up pod_unscheduled")
    assert (fewer.cause, fewer.runner_up) == (None, "capacity_lost"), "which must show it, where nobody tells pods"


@pytest.mark.parametrize("hurt", ["", "ended_and_back"])
def test_a_start_passes_by_itself_where_it_did_not_end_by_itself(hurt: str) -> None:
    found = judged("node", f"loading started_lately started_after_peers {hurt}", scope=NODE)
    assert found.title.startswith("Nothing is wrong") == (not hurt)


def test_nodes_that_miss_scrapes_by_turns_are_not_silent_at_once() -> None:
    seen = "most_silent no_node_answers silent scrapes_fail answers_flap nodes_work"
    assert judged("gateway", seen).cause != "downstream"
    assert judged("gateway", "most_silent no_node_answers silent").cause == "downstream"
    assert builtin_knowledge().questions["scrapes_fail"].symptom, "nobody is alerted of it while scrapes succeed"


@pytest.mark.parametrize(("nodes", "answer"), [(1, "no"), (2, "yes")])
def test_what_a_pool_has_at_once_is_of_more_than_one_node(nodes: int, answer: str) -> None:
    """A pool of one, killed for memory: "nodes of the pool fail at once", and of one that was gone: "the time is lost
    around the nodes"."""
    gone = [("llm:up", of(number), then(1.0, 0.0)) for number in range(nodes)]
    ended = [("fleet_node_process_up", of(number), then(1.0, 0.0)) for number in range(nodes)]
    assert answer_to("no_node_answers", *gone) == answer
    assert answer_to("most_processes_ended", *ended) == answer
    assert answer_to("most_processes_ended", *ended, scope={"node": "node-0", "pool": "chat"}) == answer


NAMES = ("fell", "late", "told")
QUESTIONS = {
    name: Question(name, f"Is {name}?", "vector(1)", None, Limit(">", 0), None, "count", "a test") for name in NAMES
}


@pytest.mark.parametrize(("of_others", "is_named"), [("fell", True), ("late", False)])
def test_of_causes_of_which_one_is_at_work_by_the_sign_that_all_must_show_the_likeliest_is_named(
    of_others: str, is_named: bool
) -> None:
    cache = frozenset({"cache"})
    causes = {name: Expectation("{{where}}", cache, ((of_others,),), alone=True) for name in ("routing", "mix", "salt")}
    causes["template"] = Expectation("{{where}}", cache, (("fell",),), prior=1.1, alone=True)
    readings = {name: Evidence(name, f"Is {name}?", "unknown" if name == "told" else "yes") for name in NAMES}
    found = judge(Knowledge(QUESTIONS, causes), ["cache"], [], POOL, SeriesStore(), NOW, known=readings)
    assert (found.cause, found.confidence) == (("template", "likely") if is_named else (None, "unknown"))
    assert found.runner_up is not None
