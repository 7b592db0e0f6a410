"""What a node did before and after it got a revision is told in two series, and is one node's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.asked_fleet import SINCE, Series, answer_to, of, then

CHANGED_AT = SINCE - 900  # within the half hour that is compared with


def _rolled(name: str, now: float) -> list[Series]:
    """Two nodes that got a revision a quarter of an hour before it began, and what each does since it began."""

    def old(times: np.ndarray) -> np.ndarray:
        return np.where(times < CHANGED_AT, 4.0, np.nan)

    def new(times: np.ndarray) -> np.ndarray:
        return np.where(times < CHANGED_AT, np.nan, then(4.0, now)(times))

    series = [(name, of(number), old) for number in (1, 2)]
    return [*series, *((name, of(number, revision="v2"), new) for number in (1, 2))]


@pytest.mark.parametrize(
    ("question", "name", "now"),
    [
        ("served_fell", "llm:served:rate", 2.0),
        ("tokens_fell", "llm:generation_tokens:rate", 2.0),
        ("arrivals_up", "llm:arrivals:rate", 6.0),
        ("arrivals_gone", "llm:arrivals:rate", 0.0),
    ],
)
def test_a_node_that_got_a_revision_did_not_do_twice_as_much_before(question: str, name: str, now: float) -> None:
    """A harmless rollout, and a fault of another kind a quarter of an hour later: *bad_deploy*, 90 % sure."""
    assert answer_to(question, *_rolled(name, 4.0)) == "no"
    assert answer_to(question, *_rolled(name, now)) == "yes"
