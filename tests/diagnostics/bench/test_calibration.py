"""The temperature that makes stated probabilities true."""

from __future__ import annotations

import pytest

from diagnostics.bench.calibration import Stated, fit_temperature, modest_temperature, tempered


def test_verdicts_that_are_too_sure_want_a_higher_temperature() -> None:
    too_sure = [Stated(0.99, is_right) for is_right in (True, True, True, False)]
    not_sure_enough = [Stated(0.6, True) for _ in range(20)]

    assert fit_temperature(too_sure, 2.0) > 3
    assert fit_temperature(not_sure_enough, 2.0) < 1
    assert fit_temperature([], 2.0) == 2.0


def test_a_power_of_one_changes_nothing() -> None:
    assert tempered(0.7, 1.0) == pytest.approx(0.7)


def test_of_temperatures_that_cannot_be_told_apart_the_most_modest_is_taken() -> None:
    right = [Stated(0.8 + 0.02 * (index % 5), index % 20 != 0, f"case-{index}") for index in range(60)]
    modest, best = modest_temperature(right, 2.0), fit_temperature(right, 2.0)

    assert modest > best
    assert modest < 6  # beyond it the cases say no
    # Twenty times as many cases tell more.
    assert (
        modest_temperature(
            [Stated(one.probability, one.is_right, f"{one.case}-{n}") for one in right for n in range(20)], 2.0
        )
        < modest
    )
    assert modest_temperature([], 2.0) == 2.0
