"""Two faults that begin together: both are named, and what one of them brings about is no second."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.fixtures.asked_fleet import AT, SINCE, Series, answer_to, judged


def _counted(before: float, after: float) -> Callable[[np.ndarray], np.ndarray]:
    """A counter by its rate before and since it began."""
    return lambda times: before * (times - AT[0]) + (after - before) * np.clip(times - SINCE, 0, None)


def _at_a_gateway(refused: float, again: float) -> list[Series]:
    """Two tenants, of whom one is refused so much a second, while so many of all requests come again."""
    name = "gateway_tenant_requests_total"
    return [
        (name, {"tenant": "web", "result": "admitted"}, _counted(1.5, 1.5)),
        (name, {"tenant": "agents", "result": "tenant_requests"}, _counted(0, refused)),
        ("gateway_asked_again_total", {}, _counted(0.01, again)),
        ("llm:up", {"node": "node-1", "pool": "chat"}, 1.0),
    ]


@pytest.mark.parametrize(("refused", "again", "answer"), [(3.2, 2.4, "yes"), (3.2, 0.1, "no"), (0.1, 2.4, "no")])
def test_what_a_limit_refused_comes_again(refused: float, again: float, answer: str) -> None:
    assert answer_to("refused_come_again", *_at_a_gateway(refused, again)) == answer


def test_where_nobody_counts_refusals_none_comes_again() -> None:
    """So that a fleet without our gateway goes on to rule a storm out by clients of whom none hangs up."""
    assert answer_to("refused_come_again", ("llm:up", {"node": "node-1", "pool": "chat"}, 1.0)) == "no"


def test_a_storm_of_refused_requests_is_named_beside_the_limit_although_nobody_hangs_up() -> None:
    found = judged("gateway", "limits_refuse asked_again refused_come_again", "gateway_refuses")
    assert {found.cause, found.also} == {"gateway_limit", "retry_storm"}


def test_a_limit_that_refuses_whoever_waits_as_told_is_alone() -> None:
    found = judged("gateway", "limits_refuse", "gateway_refuses")
    assert (found.cause, found.also) == ("gateway_limit", None)


def test_tries_of_a_tenant_that_is_refused_take_nobodys_room() -> None:
    found = judged("gateway", "limits_refuse asked_again refused_come_again tenant_grew", "gateway_refuses")
    assert "tenant_flood" not in {found.cause, found.also}
