"""Who fails more than its share: never said of little time, and the interval holds what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.controller.failures.lemon import MIN_NODE_HOURS, Exposure, Standing, judge

exposures = st.lists(st.builds(Exposure, st.floats(0.0, 5000.0), st.integers(0, 40)), min_size=1, max_size=12)


def test_a_host_that_fails_ten_times_as_often_is_a_lemon_and_its_neighbours_are_not() -> None:
    hosts = [Exposure(720.0, 20), *[Exposure(720.0, 2)] * 9]
    worst, *others = judge(hosts)
    assert worst.standing is Standing.LEMON
    assert worst.low is not None
    assert worst.low > 2
    assert all(one.standing is not Standing.LEMON for one in others)


def test_a_new_host_that_failed_at_once_is_not_known_and_no_lemon() -> None:
    new, *_ = judge([Exposure(MIN_NODE_HOURS / 2, 3), *[Exposure(720.0, 1)] * 9])
    assert (new.standing, new.why) == (Standing.UNKNOWN, "watched for 12 node-hours: less than 24")


@given(exposures)
def test_little_time_or_few_failures_never_make_a_lemon(groups: list[Exposure]) -> None:
    for group, found in zip(groups, judge(groups), strict=True):
        if group.node_hours < MIN_NODE_HOURS or group.failures < 3:
            assert found.standing is not Standing.LEMON
        if found.ratio is not None:
            assert found.low is not None
            assert found.high is not None
            assert found.low <= found.high
        if found.standing is Standing.UNKNOWN:
            assert found.why, "what is not known has a reason"


@given(exposures)
def test_little_time_is_pulled_towards_the_fleet(groups: list[Exposure]) -> None:
    hours, failures = math.fsum(one.node_hours for one in groups), sum(one.failures for one in groups)
    for group, found in zip(groups, judge(groups), strict=True):
        if found.ratio is not None and group.node_hours > 1:
            own = group.failures / (failures * group.node_hours / hours)
            assert abs(found.ratio - 1) <= abs(own - 1) + 1e-9


def test_hosts_that_fail_alike_are_ordinary_once_they_failed_often_enough() -> None:
    alike = [Exposure(1000.0, count) for count in (19, 21, 20, 18, 22, 20)]
    assert {one.standing for one in judge(alike)} == {Standing.ORDINARY}


def test_two_failures_say_nothing_of_who_is_worse() -> None:
    one, other = judge([Exposure(500.0, 1), Exposure(500.0, 1)])
    for found in (one, other):
        assert found.standing is Standing.UNKNOWN
        assert found.low is not None
        assert found.high is not None
        assert found.low < 0.5
        assert found.high > 1.5


def test_much_time_lets_a_host_speak_for_itself() -> None:
    """With thousands of failures the posterior is that of the count alone: its relative error is 1 / sqrt(failures)."""
    found, _ = judge([Exposure(1000.0, 3000), Exposure(1000.0, 1000)])
    assert found.ratio == pytest.approx(1.5, rel=0.01)
    assert found.low == pytest.approx(1.5 * (1 - 1.645 / 3000**0.5), rel=0.01)
    assert found.high == pytest.approx(1.5 * (1 + 1.645 / 3000**0.5), rel=0.01)


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ([Exposure(1000.0, 0), Exposure(500.0, 0)], "nothing failed"),
        ([Exposure(0.0, 2)], "nothing was watched"),
        ([Exposure(1000.0, 20)], "there is no other to compare with"),
    ],
)
def test_without_anything_to_compare_nothing_is_known(groups: list[Exposure], why: str) -> None:
    assert {(one.standing, one.why, one.ratio) for one in judge(groups)} == {(Standing.UNKNOWN, why, None)}


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    """2,000 hosts of 40 fleets whose true ratios are known."""
    dice = np.random.default_rng(5)
    held = total = called = wrongly = 0
    for _ in range(40):
        ratios = dice.gamma(2.0, 0.5, 50)
        hours = dice.uniform(50.0, 2000.0, 50)
        counts = dice.poisson(ratios * hours * 0.004)
        groups = [Exposure(float(h), int(n)) for h, n in zip(hours, counts, strict=True)]
        for ratio, found in zip(ratios, judge(groups), strict=True):
            assert found.low is not None
            assert found.high is not None
            held += found.low <= ratio <= found.high
            total += 1
            called += found.standing is Standing.LEMON
            wrongly += found.standing is Standing.LEMON and ratio < 1
    assert 0.86 < held / total < 0.94
    assert called > 100
    assert wrongly / called < 0.05


def test_two_failures_are_no_lemon_however_rare_they_are_elsewhere() -> None:
    found, *_ = judge([Exposure(30.0, 2), Exposure(1000.0, 5), *[Exposure(1000.0, 0)] * 30])
    assert found.low is not None
    assert found.low > 1
    assert found.standing is Standing.UNKNOWN
