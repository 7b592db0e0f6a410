"""What a message says of what users felt."""

from __future__ import annotations

import pytest

from diagnostics.record import Impact
from fleetctl.controller.notifications.incident_notice import CLEAR, doing_words, impact_words


@pytest.mark.parametrize(
    ("impact", "said"),
    [
        (
            Impact(requests=43, lost=0, p99_ttft_worst_s=0.039, objective_ttft_s=2.5),
            "0 of 43 requests lost, p99 TTFT up to 39 ms, within the promised 2.5 s",
        ),
        (
            Impact(requests=43, lost=2, p99_ttft_worst_s=4.0, objective_ttft_s=2.5, slo_minutes=0.7),
            "2 of 43 requests lost, p99 TTFT up to 4.0 s, beyond the promised 2.5 s, for 42 s in all",
        ),
        (
            Impact(
                requests=9,
                lost=1,
                no_gateway_s=2.7,
                arrivals_before_per_s=4.14,
                found_no_gateway=11,
                p99_at_gateway_worst_s=4.0,
                objective_ttft_s=2.5,
                slo_minutes=0.7,
                gateway_ends=1,
            ),
            "1 of 9 requests lost, about 11 more found no gateway that answered (4.14/s came before, for 2.7 s; "
            "counted by nobody), p99 TTFT up to 4.0 s, beyond the promised 2.5 s (at the gateway), for 42 s in all",
        ),
        (
            Impact(why_not_counted="the gateway was not scraped before it began", p99_ttft_worst_s=0.03),
            "requests lost: not known (the gateway was not scraped before it began), p99 TTFT up to 30 ms",
        ),
        (
            Impact(requests=9, lost=0, no_gateway_s=2.7),
            "0 of 9 requests lost, no gateway answered for 2.7 s (how many came then is not known)",
        ),
        (
            Impact(requests=9, lost=0, no_gateway_s=2.7, arrivals_before_per_s=0.05, found_no_gateway=0),
            "0 of 9 requests lost, no gateway answered for 2.7 s (0.05/s came before)",
        ),
        (
            Impact(requests=9, lost=0, no_gateway_s=60.0, arrivals_before_per_s=3.0, found_no_gateway=0),
            "0 of 9 requests lost, no gateway answered its controller for 60 s (but requests ended there as before)",
        ),
        (Impact(), "not known"),
    ],
)
def test_harm_is_told_from_a_figure_within_what_is_promised_and_from_what_nobody_counted(
    impact: Impact, said: str
) -> None:
    assert impact_words(impact) == said


def test_where_no_alert_fires_any_more_nobody_is_told_to_act() -> None:
    """A page said "being done: nothing yet" after a proposal had been taken back, as the alerts were clear."""
    assert doing_words((), "by hand: look", is_clear=True) == doing_words((), "", is_clear=True) == CLEAR
    assert (doing_words((), "by hand: look"), doing_words((), "")) == ("by hand: look", "nothing yet")
