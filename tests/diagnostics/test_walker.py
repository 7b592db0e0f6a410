"""What counts as an answer: missing, stale and non-numbers never do."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from diagnostics.query import QueryResult
from diagnostics.tree import Tree
from diagnostics.tree_file import load_trees
from diagnostics.walker import walk

NOW = 5_000.0
FILE = """
tree: sample
title: A sample
symptoms: [SomethingWrong]
max_age_s: 30
questions:
  - id: first
    ask: Is it slow?
    query: max(llm:one{node="{{node}}"})
    when: "> 2"
    unit: times
    rules_out: slow_node
    if_yes: slow
    if_unknown: third
  - id: second
    ask: Is it full?
    query: max(llm:two)
    when: "> 0.9"
    unit: ratio
    rules_out: kv_pressure
    if_yes: full
  - id: third
    ask: Is there more work?
    query: max(llm:three)
    when: ">= 3"
    unit: count
    if_yes: busy
    if_no: end
    if_unknown: end
verdicts:
  - {id: slow, cause: slow_node, title: "{{where}} {{value}}"}
  - {id: full, cause: kv_pressure, title: "{{where}} {{value}} full, {{first}} steps, {{third}}"}
  - {id: busy, cause: overload, title: "{{value}} on {{where}}"}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    path = tmp_path / "sample.yaml"
    path.write_text(FILE, "utf-8")
    return load_trees([path])["sample"]


def answers(**by_name: QueryResult):  # type: ignore[no-untyped-def]
    def ask(query: str) -> QueryResult:
        return next((answer for name, answer in by_name.items() if f"llm:{name}" in query), QueryResult(None, None))

    return ask


FRESH_NO = QueryResult(0.0, NOW - 1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (QueryResult(None, None, "no series matches"), "no series matches"),
        (QueryResult(None, None), "no data"),
        (QueryResult(9.0, NOW - 31), "stale: 31 s old, the limit is 30 s"),
        (QueryResult(math.nan, NOW), "the value is not a number"),
        (QueryResult(math.inf, NOW), "the value is not a number"),
        (QueryResult(9.0, None), "the age of the value is not known"),
    ],
)
def test_answers_unknown_and_says_why(tree: Tree, answer: QueryResult, why: str) -> None:
    found = walk(tree, {"node": "n1"}, answers(one=answer, three=QueryResult(5.0, NOW)), NOW)

    assert (found.evidence[0].answer, found.evidence[0].why_unknown) == ("unknown", why)
    assert [one.question for one in found.evidence] == ["first", "third"]  # its own branch, not that of "no"
    assert (found.cause, found.confidence) == ("overload", "likely")
    assert "slow_node" not in found.ruled_out
    assert found.not_known == (f"Is it slow? ({why})",)


def test_a_value_exactly_at_the_age_limit_still_counts(tree: Tree) -> None:
    found = walk(tree, {"node": "n1"}, answers(one=QueryResult(9.0, NOW - 30)), NOW)

    assert (found.cause, found.confidence) == ("slow_node", "confirmed")
    assert found.title == "n1 9.0×"
    assert found.at == NOW


def test_a_clock_that_runs_ahead_gives_age_zero(tree: Tree) -> None:
    found = walk(tree, {"node": "n1"}, answers(one=QueryResult(9.0, NOW + 5)), NOW)

    assert found.evidence[0].age_s == 0.0


def test_keeps_the_stale_value_as_something_that_was_seen(tree: Tree) -> None:
    found = walk(tree, {"node": "n1"}, answers(one=QueryResult(9.0, NOW - 60), three=FRESH_NO), NOW)

    assert (found.evidence[0].value, found.evidence[0].age_s) == (9.0, 60.0)


def test_rules_out_what_was_asked_and_denied(tree: Tree) -> None:
    found = walk(tree, {"node": "n1"}, answers(one=FRESH_NO, two=FRESH_NO, three=FRESH_NO), NOW)

    assert found.ruled_out == ("slow_node", "kv_pressure")
    assert (found.cause, found.confidence) == (None, "unknown")
    assert found.title == "No known cause fits what was measured"


def test_a_title_quotes_earlier_values_and_admits_what_was_not_asked(tree: Tree) -> None:
    found = walk(tree, {"node": "n1"}, answers(one=QueryResult(1.5, NOW), two=QueryResult(0.97, NOW)), NOW)

    assert found.title == "n1 97 % full, 1.5× steps, not asked"


def test_a_question_about_a_node_is_unknown_without_one(tree: Tree) -> None:
    found = walk(tree, {"pool": "chat"}, answers(three=QueryResult(3.0, NOW)), NOW)

    assert found.evidence[0].why_unknown == "the scope names no node"
    assert found.title == "3 on pool chat"


def test_the_last_numbers_of_a_node_that_does_not_answer_are_no_evidence(tree: Tree) -> None:
    heard = {"one": QueryResult(9.0, NOW), "three": QueryResult(4.0, NOW)}

    silent = walk(tree, {"node": "n1"}, answers(up=QueryResult(0.0, NOW), **heard), NOW)
    assert (silent.cause, silent.confidence) == ("overload", "likely")
    assert silent.evidence[0].why_unknown == "n1 does not answer: its last numbers are no evidence"

    alive = walk(tree, {"node": "n1"}, answers(up=QueryResult(1.0, NOW), **heard), NOW)
    assert alive.cause == "slow_node"
