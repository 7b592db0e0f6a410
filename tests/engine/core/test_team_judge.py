"""The number of threads of a step, on machines whose steps take as long as the test says."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from engine.core.team_judge import TeamJudge

StepSeconds = Callable[[int, float], float]  # of so many threads at a time


def _serve(judge: TeamJudge, seconds_of: StepSeconds, *, begin: float = 0.0, lasts: float = 60.0, rows: int = 1) -> int:
    """How many steps are computed until then."""
    now, steps = begin, 0
    while now < begin + lasts:
        threads = judge.num_threads(rows, now)
        seconds = seconds_of(threads, now)
        now, steps = now + seconds, steps + 1
        judge.observe(rows, threads, seconds, now)
    return steps


def _quiet(threads: int, now: float) -> float:
    return 0.006 + 0.008 / threads


def _beside_neighbours(count: int, most: int, rng: random.Random) -> StepSeconds:
    """Steps whose threads have a CPU each that is free are as fast as ever; others wait, now less and now more."""
    return lambda threads, now: _quiet(threads, now) * (1.0 if threads <= most - count else rng.uniform(1.2, 5.0))


@pytest.mark.parametrize("most", [2, 4, 16])
def test_a_quiet_machine_is_as_fast_as_with_all_threads_always(most: int) -> None:
    steps = _serve(TeamJudge(most), _quiet, lasts=120.0)
    assert steps > 0.985 * 120.0 / _quiet(most, 0.0)


def test_one_step_in_a_hundred_or_fewer_is_slow_by_a_trial_that_is_hopeless() -> None:
    """More of them are what clients see as ITL p95, beside those that a prompt holds up."""
    tried: list[int] = []

    def seconds_of(threads: int, now: float) -> float:
        tried.append(threads)
        return {1: 0.014, 2: 0.0095}[threads]

    steps = _serve(TeamJudge(2), seconds_of, lasts=12.0, rows=8)
    assert 0 < tried.count(1) <= 0.01 * steps


@pytest.mark.parametrize(("most", "count"), [(2, 1), (4, 1), (4, 2), (16, 1), (16, 4)])
def test_neighbours_cost_the_threads_that_they_stand_beside(most: int, count: int) -> None:
    judge = TeamJudge(most)
    _serve(judge, _quiet, lasts=30.0)
    beside = _beside_neighbours(count, most, random.Random(1))
    steps = _serve(judge, beside, begin=30.0, lasts=60.0)
    assert steps > 0.88 * 60.0 / _quiet(most - count, 0.0)


def test_a_neighbour_that_comes_is_noticed_within_two_seconds() -> None:
    judge = TeamJudge(2)
    _serve(judge, _quiet, lasts=60.0)
    beside = _beside_neighbours(1, 2, random.Random(2))
    _serve(judge, beside, begin=60.0, lasts=2.0)
    assert _serve(judge, beside, begin=62.0, lasts=4.0) > 0.85 * 4.0 / _quiet(1, 0.0)


def test_all_threads_are_back_when_it_has_gone() -> None:
    judge = TeamJudge(2)
    _serve(judge, _beside_neighbours(1, 2, random.Random(3)), lasts=60.0)
    _serve(judge, _quiet, begin=60.0, lasts=10.0)
    assert _serve(judge, _quiet, begin=70.0, lasts=60.0) > 0.97 * 60.0 / _quiet(2, 0.0)


def test_each_size_of_batch_has_its_own_number() -> None:
    """Few rows wait for memory, many for the CPU: a neighbour costs them not the same."""
    judge, rng = TeamJudge(2), random.Random(4)
    _serve(judge, _beside_neighbours(1, 2, rng), lasts=10.0, rows=1)
    _serve(judge, lambda threads, now: 0.1 / threads, begin=10.0, lasts=10.0, rows=32)
    steps = _serve(judge, lambda threads, now: 0.1 / threads, begin=20.0, lasts=60.0, rows=32)
    assert steps > 0.95 * 60.0 / 0.05, "all threads"
    steps = _serve(judge, _beside_neighbours(1, 2, rng), begin=80.0, lasts=60.0, rows=1)
    assert steps > 0.88 * 60.0 / _quiet(1, 0.0), "one"


def test_one_thread_stays_one() -> None:
    judge = TeamJudge(1)
    _serve(judge, lambda threads, now: random.Random(now).uniform(0.01, 0.1), lasts=20.0)
    assert judge.num_threads(1, 20.0) == 1
