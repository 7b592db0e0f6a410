"""Time that is fit to compute ages with, whatever is done to the machine's wall clock."""

from __future__ import annotations

import pytest

from fleetctl.kit.clock import SLEW_RATIO, SystemClock


class Machine:
    """A wall clock and the seconds that really pass."""

    def __init__(self) -> None:
        self.wall_s, self.passed_s = 1_800_000_000.0, 50.0
        self.clock = SystemClock(lambda: self.wall_s, lambda: self.passed_s)

    def run(self, seconds: float) -> float:
        """So many seconds pass, looked at twice a second. The clock's time then."""
        for _ in range(round(2 * seconds)):
            self.wall_s += 0.5
            self.passed_s += 0.5
            self.clock.now()
        return self.clock.now()


def test_ages_stay_right_when_the_wall_clock_is_set_back() -> None:
    machine = Machine()
    measured_at = machine.run(5)
    machine.wall_s -= 600
    assert machine.clock.now() == measured_at
    assert machine.run(60) - measured_at == pytest.approx(60, rel=SLEW_RATIO + 0.001)
    assert machine.clock.offset_s() == pytest.approx(600 - 60 * SLEW_RATIO)


def test_wall_clock_that_was_set_back_is_met_again() -> None:
    machine = Machine()
    machine.wall_s -= 10
    machine.run(10 / SLEW_RATIO)
    assert machine.clock.offset_s() == pytest.approx(0, abs=0.01)


def test_wall_clock_that_is_set_ahead_is_followed_at_once() -> None:
    machine = Machine()
    machine.wall_s += 600
    assert machine.clock.now() == machine.wall_s


def test_drift_is_followed() -> None:
    machine = Machine()
    for _ in range(1000):
        machine.run(1)
        machine.wall_s += 0.0001
    assert machine.clock.offset_s() == pytest.approx(0, abs=0.001)
