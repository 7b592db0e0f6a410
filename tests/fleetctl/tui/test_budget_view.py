"""Error budgets on *Now*: what burns comes first, what is not known is said, and nothing else takes room."""

from __future__ import annotations

from fleetctl.tui.budget_view import budget_section
from fleetctl.tui.cell import StorySection, Tone
from fleetctl.tui.snapshot import Budget


def rows(section: StorySection) -> list[list[str]]:
    return [[cell.text for cell in row] for row in section.rows[1:]]


def test_a_budget_that_burns_says_how_fast_and_how_long_a_months_would_last() -> None:
    slow = Budget("batch", "ttft", 0.99, burn_5m=0.2, burn_1h=3.0)
    fast = Budget("chat", "availability", 0.999, burn_5m=31.0, burn_1h=14.4)

    section = budget_section((slow, fast))

    assert section.heading.tone is Tone.BAD
    assert rows(section) == [
        ["chat", "availability", "0.999", "31×", "14.4×", "-", "lasts 2d at the hour's rate"],
        ["batch", "ttft", "0.99", "0.2×", "3×", "-", "lasts 10d at the hour's rate"],
    ]


def test_what_burns_since_minutes_is_told_before_the_hour_is_known() -> None:
    section = budget_section((Budget("chat", "ttft", 0.99, burn_5m=2.0),))

    assert (section.heading.tone, rows(section)[0][3:]) == (
        Tone.WARN,
        ["2×", "-", "-", "lasts 15d at the last minutes' rate"],
    )


def test_calm_budgets_take_one_line_with_the_highest_rate() -> None:
    section = budget_section((Budget("chat", "ttft", burn_1h=0.7), Budget("chat", "availability", burn_1h=0.1)))

    assert section.heading.text == "No error budget burns: the highest rate is 0.7×, chat ttft"
    assert section.rows == ()


def test_a_highest_rate_of_nothing_is_not_told() -> None:
    assert budget_section((Budget("chat", "ttft", burn_1h=0.0),)).heading.text == "No error budget burns"


def test_budgets_that_nobody_measured_are_unknown_and_not_kept() -> None:
    assert "not known" in budget_section((Budget("chat", "ttft", 0.99),)).heading.text
    assert "not known" in budget_section(None).heading.text
