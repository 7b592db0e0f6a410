"""A verdict's title says what was measured, and nothing of what was not."""

from __future__ import annotations

import pytest

from diagnostics.diagnosis import Evidence
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import Readings
from diagnostics.evidence.verdict_title import IF_YES, verdict_title
from diagnostics.expectation import TITLE_NAMES
from diagnostics.query import PLACEHOLDER

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


def said(cause: str, *yes: str, no: tuple[str, ...] = ()) -> str:
    answers = {name: Evidence(name, name, "yes" if name in yes else "no", value=1.0) for name in (*yes, *no)}
    knowledge = builtin_knowledge()
    return verdict_title(
        knowledge.expectations[cause], knowledge.questions, {"node": "node-2", "pool": "chat"}, answers
    )


def test_of_several_ways_only_what_was_seen_is_said() -> None:
    assert said("node_down", "process_ended", "silent", no=("core_gone",)) == (
        "node-2 is down: its process ended, it does not answer"
    )
    assert said("node_down", "core_gone", no=("silent", "process_ended")) == "node-2 is down: its engine core is gone"


@pytest.mark.parametrize(("scope", "where"), [({"pool": "chat"}, "A node of pool chat"), ({}, "A node of the fleet")])
def test_where_more_than_a_node_is_asked_about_one_that_is_down_is_not_told_as_all_of_it(
    scope: dict[str, str], where: str
) -> None:
    knowledge = builtin_knowledge()
    answers = {"silent": Evidence("silent", "silent", "yes", value=0.0)}
    title = verdict_title(knowledge.expectations["node_down"], knowledge.questions, scope, answers)
    assert title == f"{where} is down: it does not answer"


def test_a_core_that_the_node_ended_because_it_stood_still_is_not_told_as_one_that_died_by_itself() -> None:
    assert (
        said("core_crash", "core_died", no=("stood_still",)) == "The engine core of node-2 ended and is started again"
    )
    assert said("core_crash", "core_died", "stood_still") == (
        "The engine core of node-2 ended and is started again: the node ended it because it stood still"
    )


def test_whatever_a_title_hangs_on_or_tells_the_value_of_is_a_question() -> None:
    knowledge = builtin_knowledge()
    known = {*knowledge.questions, *TITLE_NAMES}
    for name, one in knowledge.expectations.items():
        assert {*PLACEHOLDER.findall(one.says), *IF_YES.findall(one.says)} <= known, name


def test_the_head_of_a_title_has_no_value_that_may_be_unknown() -> None:
    """As "limits refuse unknown of the requests": behind the colon a part without its value is left out."""
    knowledge = builtin_knowledge()
    for name, one in knowledge.expectations.items():
        known = {group[0] for group in one.must if len(group) == 1}
        told = set(PLACEHOLDER.findall(one.says.partition(": ")[0])) & knowledge.questions.keys()
        assert told <= known, name
