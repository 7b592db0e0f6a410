"""A tree as a person reads it, and what is wrong with content that loads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from alerts.evaluation.builtin import builtin_signal_files
from alerts.evaluation.rules import load_rule_files
from alerts.review.coverage import answering_engines
from diagnostics.cause import Cause
from diagnostics.evidence.knowledge import Knowledge
from diagnostics.evidence.question import Question
from diagnostics.expectation import Expectation
from diagnostics.tree import CONTINUE, END, Limit, Tree, Verdict
from diagnostics.tree import Question as Step
from diagnostics.tree_lint import EnginesOf, lint_trees
from diagnostics.tree_view import ascii_view, mermaid


def question(name: str, **changes: object) -> Question:
    fields: dict[str, object] = {
        "id": name,
        "ask": f"Is {name} <so>?",
        "query": "avg(llm:step_seconds:mean{{{scope}}})",
        "pool_query": None,
        "when": Limit(">", 2.0),
        "unless": None,
        "unit": "times",
        "because": "twice is beyond any noise that was seen",
    }
    return Question(**fields | changes)  # type: ignore[arg-type]


def cause(name: str, **changes: object) -> Cause:
    expects = Expectation("{{where}} is slow", frozenset({"latency"}), (("slow",),), ("waits",))
    fields: dict[str, object] = {
        "name": name,
        "title": name,
        "means": "m",
        "signals": ("llm:step_seconds:mean",),
        "confused_with": (),
        "page": "replace-node",
        "no_page": "",
        "file": "causes.yaml",
        "line": 3,
        "expects": expects,
    }
    return Cause(**fields | changes)  # type: ignore[arg-type]


QUESTIONS = {name: question(name) for name in ("slow", "waits")}
TREE = Tree(
    name="latency",
    title="The first token is late",
    symptoms=("LLMNodeSlow",),
    stands_alone=frozenset(),
    max_age_s=60,
    questions=(),
    verdicts={},
    ask=("slow", "waits"),
    onset=("avg(llm:ttft_seconds:mean{{{scope}}})",),
)
GPU = Expectation("{{where}}: a fault", frozenset({"latency"}), (("slow",),), never=("waits",), prior=0.1)
CAUSES = {"slow_node": cause("slow_node"), "gpu_fault": cause("gpu_fault", expects=GPU)}


def knowledge(causes: dict[str, Cause] | None = None, questions: dict[str, Question] | None = None) -> Knowledge:
    return Knowledge(
        QUESTIONS if questions is None else questions,
        {name: one.expects for name, one in (causes or CAUSES).items() if one.expects is not None},
    )


@pytest.fixture(scope="module")
def engines_of() -> EnginesOf:
    return answering_engines(load_rule_files(builtin_signal_files()))


def said(
    engines_of: EnginesOf,
    tree: Tree = TREE,
    causes: dict[str, Cause] | None = None,
    questions: dict[str, Question] | None = None,
) -> list[str]:
    causes = CAUSES if causes is None else causes
    found = lint_trees({tree.name: tree}, causes, knowledge(causes, questions), engines_of)
    return [f"{one.severity}: {one.place}: {one.reason}" for one in found]


def test_content_that_fits_together_has_no_findings(engines_of: EnginesOf) -> None:
    assert said(engines_of) == []


def test_a_tree_shows_its_questions_in_order_with_limits_reasons_and_what_they_say_of_each_cause() -> None:
    text = ascii_view(TREE, knowledge())
    assert " 1. slow  Is slow <so>?  (> 2.0×)" in text
    assert "because twice is beyond any noise" in text
    assert "must: slow_node, gpu_fault" in text
    assert "rules out: gpu_fault" in text
    assert text.index("  slow_node") < text.index("  gpu_fault  (prior 0.1)")


def test_a_flowchart_has_only_text_of_ours_in_it() -> None:
    drawn = mermaid(TREE, knowledge())
    assert "q_slow ==>|yes| c_slow_node" in drawn
    assert "q_waits --x|yes| c_gpu_fault" in drawn
    assert "<so>" not in drawn


def test_a_question_that_no_engine_answers_and_one_that_only_ours_does_are_found(engines_of: EnginesOf) -> None:
    none = question("slow", query="avg(llm:no_such_signal{{{scope}}})")
    ours = question("waits", query="max(llm:core_stuck{{{scope}}})")
    assert said(engines_of, questions={"slow": none, "waits": ours}) == [
        "error: question slow: its query reads what no engine gives together",
        "warning: question waits: its query is answered by our own engine only",
    ]
    told = replace(ours, optional=True)
    fleet = question("slow", query='fleet_node_phase{node="{{node}}"} * on (node) llm:gpu_unhealthy')
    assert said(engines_of, questions={"slow": fleet, "waits": told}) == []


def test_limits_without_reason_and_questions_and_causes_that_nobody_uses_are_found(engines_of: EnginesOf) -> None:
    questions = {**QUESTIONS, "waits": question("waits", because="it is so"), "spare": question("spare")}
    causes = {
        **CAUSES,
        "loose": cause("loose", expects=None, page="", no_page=""),
        "twin": cause("twin"),
    }
    assert said(engines_of, causes=causes, questions=questions) == [
        "error: cause loose: no page, and no word why",
        "warning: cause loose: nothing can name it",
        "warning: cause twin: expects what slow_node expects",
        "warning: question spare: nobody asks it",
        "warning: question waits: its limit has no reason: 'it is so'",
    ]


def test_a_cause_that_no_deploy_brings_about_and_that_expects_one_is_found(engines_of: EnginesOf) -> None:
    rollout = question("waits", query='fleet_change_timestamp_seconds{kind="deploy",{{scope}}} and on () llm:up')
    causes = {
        **CAUSES,
        "slow_node": cause("slow_node", not_by_deploy=True),
        "gpu_fault": cause("gpu_fault", expects=GPU),
    }
    expected = ["error: cause slow_node: `not_by_deploy`, and expects waits"]
    assert said(engines_of, causes=causes, questions={**QUESTIONS, "waits": rollout}) == expected
    causes["gpu_fault"] = replace(causes["gpu_fault"], not_by_deploy=True)  # there a deploy rules it out
    assert said(engines_of, causes=causes, questions={**QUESTIONS, "waits": rollout}) == expected


def test_a_yes_and_a_no_that_overlap_are_found(engines_of: EnginesOf) -> None:
    questions = {**QUESTIONS, "slow": question("slow", unless=Limit("<", 3.0))}
    assert said(engines_of, questions=questions) == ["error: question slow: its yes and its no overlap"]


def test_branches_that_nothing_leads_to_are_found(engines_of: EnginesOf) -> None:
    def step(name: str, if_yes: str, other: str) -> Step:
        return Step(name, "?", "llm:up", None, Limit(">", 1), "count", None, if_yes, other, other)

    verdicts = {name: Verdict(name, "slow_node", "t", "confirmed") for name in ("v", "w")}
    walked = replace(
        TREE,
        ask=(),
        questions=(step("a", "v", END), step("b", "w", CONTINUE)),
        verdicts=verdicts,
    )
    found = [one for one in said(engines_of, walked) if one.startswith("error")]
    assert found == [
        "error: tree latency: no branch leads to question b",
        "error: tree latency: no branch leads to verdict w",
    ]
    assert "└─ unknown: (no cause)" in ascii_view(walked, knowledge())
