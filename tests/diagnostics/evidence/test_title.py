"""A verdict's title says what was measured, and nothing of what was not."""

from __future__ import annotations

import pytest

from diagnostics.diagnosis import Evidence
from diagnostics.evidence.judge import builtin_knowledge, verdict_title
from diagnostics.evidence.reading import Readings

SCOPE = {"pool": "chat"}


def readings(**values: float | None) -> Readings:
    return {
        name: Evidence(
            name, name, "yes" if value is not None else "unknown", value=value, threshold="> 0", unit="times"
        )
        for name, value in values.items()
    }


@pytest.mark.parametrize(
    ("values", "title"),
    [
        (
            {"arrivals_up": 8.1, "queue_everywhere": 3.0},
            "Pool chat has more work than it can do: 8.1× the usual arrivals, at least 3.0× of waiting on every node",
        ),
        (
            {"arrivals_up": None, "queue_everywhere": 3.0},
            "Pool chat has more work than it can do: at least 3.0× of waiting on every node",
        ),
        ({"arrivals_up": None, "queue_everywhere": None}, "Pool chat has more work than it can do"),
    ],
)
def test_part_of_a_title_that_nobody_measured_is_left_out(values: dict[str, float | None], title: str) -> None:
    knowledge = builtin_knowledge()
    questions = dict.fromkeys(values, knowledge.questions["arrivals_up"])
    assert verdict_title(knowledge.expectations["overload"], questions, SCOPE, readings(**values)) == title
