"""What came before is not always what brought it: a change that all have, a node that is sent more, an evening."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.fixtures.asked_fleet import AT, NOW, SINCE, Level, Series, answer_to, of, then


def _while(value: float, begins: float, ends: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda times: np.where((times >= begins) & (times < ends), value, np.nan)


def _revised(changed_at: float, slower: tuple[int, ...]) -> list[Series]:
    """Three nodes that got v2 then; those of `slower` are slower since the onset."""
    found: list[Series] = []
    for number in (1, 2, 3):
        for name, before, after in (("llm:ttft_seconds:mean", 0.4, 1.6), ("llm:step_seconds:mean", 0.02, 0.05)):
            now = after if number in slower else before
            found += [
                (name, of(number, revision="v1"), _while(before, 0, changed_at)),
                (
                    name,
                    of(number, revision="v2"),
                    lambda at, b=before, n=now: np.where(at < changed_at, np.nan, np.where(at < SINCE, b, n)),
                ),
            ]
        found += [
            ("llm:up", of(number, revision="v1"), _while(1.0, 0, changed_at)),
            ("llm:up", of(number, revision="v2"), _while(1.0, changed_at, NOW + 10)),
        ]
    return found


@pytest.mark.parametrize(("slower", "answer"), [((2,), "yes"), ((1, 2, 3), "no")])
def test_what_one_of_three_has_did_not_come_with_what_all_three_got(slower: tuple[int, ...], answer: str) -> None:
    assert answer_to("changed_and_well", *_revised(SINCE - 900, slower)) == answer


def _worked(arrivals: dict[int, float], steps: dict[int, float]) -> list[Series]:
    found: list[Series] = []
    for number in (1, 2, 3):
        found += [
            ("llm:up", of(number), 1.0),
            ("llm:arrivals:rate", of(number), then(2.0, arrivals.get(number, 2.0))),
            ("llm:step_seconds:mean", of(number), then(0.02, steps.get(number, 0.02))),
            ("llm:running", of(number), 8.0),
        ]
    return found


def test_node_that_is_sent_more_is_slow_of_that() -> None:
    assert answer_to("fullest_is_slow", *_worked({2: 6.0}, {2: 0.04})) == "yes"
    assert answer_to("fullest_is_slow", *_worked({}, {2: 0.04})) == "no"
    assert answer_to("fullest_is_slow", *_worked({2: 6.0}, {})) == "unknown"  # none is slow
    assert answer_to("fullest_is_slow", *_worked({1: 3.0, 2: 1.0, 3: 3.0}, {2: 0.04})) == "no"  # a slow one gets less


@pytest.mark.parametrize(("hits", "answer"), [(0.7, "yes"), (0.1, "no")])
def test_no_node_fell_behind_of_itself_where_the_pool_finds_none_of_its_prompts(hits: float, answer: str) -> None:
    told = _worked({}, {2: 0.04}) + [("llm:prefix_hit_ratio", of(one), then(0.7, hits)) for one in (1, 2, 3)]
    assert answer_to("fell_far_behind", *told) == answer


def _evening(times: np.ndarray) -> np.ndarray:
    return np.clip(10 * (1 - (times - (SINCE - 1500)) / 2400), 1, 10)


@pytest.mark.parametrize(("level", "answer"), [(then(10.0, 4.0), "yes"), (_evening, "no")])
def test_an_evening_is_no_tool_that_hangs(level: Level, answer: str) -> None:
    found = answer_to("arrivals_dropped", ("llm:up", of(1), 1.0), ("llm:arrivals:rate", of(1), level))
    assert found == answer or (answer == "no" and found == "unknown")


@pytest.mark.parametrize(("kept", "answer"), [(NOW + 10, "no"), (SINCE, "yes")])
def test_tensorrt_node_that_tells_its_ends_no_more_is_missed(kept: float, answer: str) -> None:
    labels = of(1, "trtllm")
    told: list[Series] = [
        ("llm:up", labels, 1.0),
        ("trtllm_num_requests_completed_total", labels, lambda at: np.where(at < kept, at - AT[0], np.nan)),
    ]
    if kept < NOW:
        told.append(("trtllm_num_requests_completed_total", of(2, "trtllm"), lambda at: at - AT[0]))
        told.append(("llm:up", of(2, "trtllm"), 1.0))
    assert answer_to("numbers_missing", *told) == answer


@pytest.mark.parametrize(("waiting", "answer"), [(np.inf, "yes"), (500.0, "no")])
def test_an_infinite_number_of_requests_is_none_that_was_told(waiting: float, answer: str) -> None:
    told = [("llm:up", of(1), 1.0), ("llm:running", of(1), 4.0), ("llm:waiting", of(1), then(0.0, waiting))]
    assert answer_to("numbers_missing", *told) == answer


def _flaps(times: np.ndarray) -> np.ndarray:
    return np.where((np.abs(times - (NOW - 400)) < 12) | (times > NOW - 100), 0.0, 1.0)


@pytest.mark.parametrize(("runs", "answer"), [(1.0, "yes"), (0.0, "no")])
def test_process_that_is_known_to_have_ended_misses_no_scrapes(runs: float, answer: str) -> None:
    labels = of(1)
    told: list[Series] = [
        ("llm:up", labels, _flaps),
        ("vllm:prompt_tokens_total", labels, lambda at: np.where(at < NOW - 100, at - AT[0], np.nan)),
        ("fleet_node_process_up", labels, then(1.0, runs, NOW - 100)),
        ("llm:up", of(2), 1.0),
    ]
    assert answer_to("scrapes_fail", *told) == answer


@pytest.mark.parametrize(("arrivals", "answer"), [(3.0, "no"), (5.0, "yes")])
def test_one_full_cache_is_the_works_where_twice_as_much_comes(arrivals: float, answer: str) -> None:
    told: list[Series] = []
    for number, full in ((1, 0.99), (2, 0.6), (3, 0.7)):
        told += [
            ("llm:arrivals:rate", of(number), then(2.0, arrivals)),
            ("llm:kv_ratio", of(number), then(0.3, full)),
            ("llm:waiting", of(number), 0.0),
        ]
    assert answer_to("load_fills", *told) == answer
