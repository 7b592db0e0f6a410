"""The retry budget: a share of the answers of the last ten seconds, and a floor."""

from __future__ import annotations

from fleetctl.gateway.nodes.retry_budget import WINDOW_S, RetryBudget


def test_without_answers_the_floor_is_all() -> None:
    budget = RetryBudget(share=0.2, floor=3)
    assert [budget.withdraw(5.0) for _ in range(5)] == [True, True, True, False, False]
    assert (budget.left(5.0), budget.refused) == (0.0, 2)


def test_a_fifth_of_the_answers_may_be_tried_again() -> None:
    budget = RetryBudget(share=0.2, floor=0)
    for _ in range(100):
        budget.note_answered(5.0)
    assert sum(budget.withdraw(5.5) for _ in range(100)) == 20


def test_answers_and_retries_of_more_than_ten_seconds_ago_count_no_more() -> None:
    budget = RetryBudget(share=0.5, floor=1)
    for _ in range(10):
        budget.note_answered(100.0)
    assert sum(budget.withdraw(101.0) for _ in range(10)) == 6
    assert budget.left(100.0 + WINDOW_S) == 0.0, "the answers are too old, the retries are not"
    assert budget.left(101.0 + WINDOW_S) == 1.0
