"""A cause that one answer speaks against: next beside a cause that fits, first where none does, and never acted on."""

from __future__ import annotations

from dataclasses import replace

from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis, Evidence
from diagnostics.evidence.judge import judge
from diagnostics.evidence.knowledge import Knowledge
from diagnostics.evidence.question import Question
from diagnostics.expectation import Expectation
from diagnostics.tree import Limit

NOW = 1_700_000_000.0
NODE = frozenset({"node"})
NAMES = ("ends", "ends_often", "starts_again", "ordered", "slow")
QUESTIONS = {
    name: Question(name, f"Is {name}?", "vector(1)", None, Limit(">", 0), None, "count", "a test") for name in NAMES
}
CAUSES = {
    "crash_loop": Expectation(
        "{{where}} ends again and again", NODE, (("ends",),), often=("ends_often", "starts_again"), never=("ordered",)
    ),
    "slow_node": Expectation("{{where}} is slow", NODE, (("slow",),)),
}


def _judged(*yes: str, certain: str = "") -> Diagnosis:
    readings = {name: Evidence(name, f"Is {name}?", "yes" if name in yes else "no") for name in NAMES}
    scope = {"node": "node-1", "pool": "chat"}
    questions = {name: replace(one, certain=name == certain) for name, one in QUESTIONS.items()}
    return judge(Knowledge(questions, CAUSES), ["node"], [], scope, SeriesStore(), NOW, known=readings)


def test_where_nothing_else_fits_it_is_likely_and_waits_for_a_person_with_what_speaks_against_it() -> None:
    found = _judged("ends", "ends_often", "starts_again", "ordered")
    assert (found.cause, found.confidence) == ("crash_loop", "likely")
    assert found.awaits == "something speaks against it: Is ordered? yes"
    assert "crash_loop" not in found.ruled_out
    assert [one.question for one in found.evidence if one.speaks == "against"] == ["ordered"]


def test_without_that_answer_it_is_confirmed_and_treated() -> None:
    found = _judged("ends", "ends_often", "starts_again")
    assert (found.cause, found.confidence, found.awaits) == ("crash_loop", "confirmed", "")


def test_beside_a_cause_that_fits_it_is_the_runner_up_without_a_probability() -> None:
    found = _judged("slow", "ends", "ordered")
    assert (found.cause, found.runner_up, found.runner_up_probability) == ("slow_node", "crash_loop", None)
    assert found.tells_apart == "What speaks against crash_loop: Is ordered? yes"
    assert "crash_loop" not in found.ruled_out


def test_what_a_certain_answer_rules_out_is_not_doubted() -> None:
    found = _judged("ends", "ends_often", "starts_again", "ordered", certain="ordered")
    assert (found.cause, found.runner_up) == (None, None)
    assert "crash_loop" in found.ruled_out


def test_where_it_is_less_sure_it_is_only_the_nearest() -> None:
    found = _judged("ends", "ordered")
    assert (found.cause, found.runner_up) == (None, "crash_loop")
