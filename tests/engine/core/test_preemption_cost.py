"""What past steps say of the next: nothing until measured, then a price."""

from __future__ import annotations

import pytest

from engine.core.preemption_cost import PreemptionCost
from engine.protocol.output_length import OutputLengthForecast


def measured(swap_block_s: float) -> PreemptionCost:
    cost = PreemptionCost()
    for num_tokens in (1, 50, 200, 1):
        cost.observe(num_tokens, 0.01 + 0.001 * num_tokens)
    cost.observe(10, 0.02 + 4 * swap_block_s, num_swapped_blocks=4)
    return cost


def test_price_of_a_token_is_the_slope_of_step_times() -> None:
    cost = measured(0.001)
    assert cost.token_seconds == pytest.approx(0.001)
    assert cost.step_seconds(100) == pytest.approx(0.11)
    assert cost.swap_seconds(10) == pytest.approx(0.01)


def test_nothing_is_known_before_it_was_measured() -> None:
    cost = PreemptionCost()
    assert (cost.token_seconds, cost.step_seconds(1), cost.swap_seconds(1)) == (None, None, None)
    for _ in range(50):
        cost.observe(8, 0.02)
    assert cost.token_seconds is None, "steps of one size say nothing of a token's price"
    assert cost.prefers_swap(4, 64)


@pytest.mark.parametrize(("swap_block_s", "prefers_swap"), [(0.001, True), (0.02, False)])
def test_cheaper_way_is_preferred(swap_block_s: float, prefers_swap: bool) -> None:
    assert measured(swap_block_s).prefers_swap(num_blocks=4, num_tokens=64) is prefers_swap


def test_recent_steps_count_more() -> None:
    cost = measured(0.001)
    for _ in range(500):
        cost.observe(1, 0.01 + 0.002)
        cost.observe(100, 0.01 + 0.2)
    assert cost.token_seconds == pytest.approx(0.002, rel=0.01)


def test_output_length_is_forecast_from_those_that_finished() -> None:
    forecast = OutputLengthForecast()
    assert forecast.remaining_tokens(0, 500, at_least=16) == 16
    for _ in range(10):
        forecast.observe(100)
    assert forecast.remaining_tokens(0, 500, at_least=16) == 100
    assert forecast.remaining_tokens(60, 500, at_least=16) == 40
    assert forecast.remaining_tokens(200, 500, at_least=16) == 16, "it outlived the mean"
    assert forecast.remaining_tokens(0, 30, at_least=16) == 30
    assert forecast.remaining_tokens(28, 30, at_least=16) == 2
