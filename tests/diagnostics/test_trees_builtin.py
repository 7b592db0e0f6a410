"""Each leaf of each built-in tree, reached with hand-made answers."""

from __future__ import annotations

import pytest

from alerts.evaluation.builtin import builtin_rule_files
from alerts.evaluation.rules import load_rule_files
from diagnostics.diagnosis import Diagnosis, undiagnosed
from diagnostics.drawing import mermaid
from diagnostics.query import AskedAt, QueryResult, bind_query, liveness_query
from diagnostics.tree import Tree, tree_for_alert
from diagnostics.tree_file import builtin_no_tree_file, builtin_tree_files, load_no_tree, load_trees
from diagnostics.walker import walk

NOW = 1_000_000.0
NODE = {"node": "node-2", "pool": "chat"}
POOL = {"pool": "chat"}

# What a healthy node answers, unless a case says otherwise.
CALM: dict[str, float | None] = {
    "output_wrong": 1.0,
    "peers_wrong": 1.0,
    "prefix_hit": 0.01,
    "queue_wait": 0.02,
    "load_up": 1.0,
    "slow_steps": 1.1,
    "input_tokens": 1.0,
    "long_context_outlier": 1.0,
    "kv_pressure": 0.5,
    "preemptions": 0.0,
    "gpu_health": 0.0,
    "recent_deploy": 86_400.0,
    "pool_saturated": 0.0,
    "lost_outside": 0.01,
    "core_gone": 1.0,
    "silent": 1.0,
    "peers_silent": 1.0,
    "holds_requests": 4.0,
    "no_steps": 20.0,
    "peers_fell": 0.0,
    "fell_here": 0.0,
    "lost": 0.0,
    "pool_ended": 1.0,
    "process_ended": 1.0,
    "core_stuck": 0.0,
    "core_deaths": 0.0,
    "gateway_deaths": 0.0,
    "worker_deaths": 0.0,
    "just_started": 0.0,
    "gateway_answers": 1.0,
    "gateway_process": 1.0,
    "nodes_answer": 1.0,
}

# Questions on two branches that ask the same: one answer serves both.
SAME = {
    "slow_steps_queued": "slow_steps",
    "outlier_in_mean": "long_context_outlier",
    "queue_everywhere": "pool_saturated",
    "full_everywhere": "pool_saturated",
    "arrivals_doubled": "load_up",
    "core_death": "core_deaths",
    "died_once": "gateway_deaths",
    "worker_died": "worker_deaths",
}


@pytest.fixture(scope="module")
def trees() -> dict[str, Tree]:
    return load_trees(builtin_tree_files())


def diagnose(tree: Tree, scope: dict[str, str], **answers: float | None) -> Diagnosis:
    """Walk with `CALM` changed by `answers`; None is "no data"."""
    heard = CALM | answers
    by_query: dict[str, float | None] = {liveness_query(scope): None}
    for question in tree.questions:
        for template in (question.query, question.pool_query or ""):
            by_query[bind_query(template, scope, AskedAt(NOW, NOW))[0]] = heard[SAME.get(question.id, question.id)]

    def ask(query: str) -> QueryResult:
        return QueryResult(by_query[query], NOW - 2)

    return walk(tree, scope, ask, NOW)


LEAVES = [
    ("latency", "prefix_cache_broken", {"prefix_hit": 0.27}),
    ("latency", "slow_node", {"slow_steps": 3.4}),
    ("latency", "slow_node", {"queue_wait": 1.2, "slow_steps": 3.4}),
    ("latency", "overload", {"queue_wait": 1.2, "load_up": 2.0, "pool_saturated": 0.8}),
    ("latency", "overload", {"queue_wait": 1.2, "pool_saturated": 0.8}),
    ("latency", "long_prompts", {"input_tokens": 2.2}),
    ("latency", "long_prompts", {"queue_wait": 1.2, "load_up": 1.5, "input_tokens": 2.2}),
    ("latency", "long_context_outlier", {"input_tokens": 2.2, "long_context_outlier": 30.0}),
    ("latency", "long_context_outlier", {"long_context_outlier": 9.0}),
    ("latency", "kv_pressure", {"kv_pressure": 0.98}),
    ("latency", "kv_pressure", {"preemptions": 0.2}),
    ("latency", "gpu_fault", {"gpu_health": 1.0}),
    ("latency", "bad_deploy", {"recent_deploy": 300.0}),
    ("latency", "downstream", {"lost_outside": 2.0}),
    ("latency", None, {}),
    ("capacity", "slow_node", {"slow_steps": 3.4, "kv_pressure": 0.99}),
    ("capacity", "gpu_fault", {"gpu_health": 1.0}),
    ("capacity", "prefix_cache_broken", {"prefix_hit": 0.4}),
    ("capacity", "long_context_outlier", {"long_context_outlier": 9.0}),
    ("capacity", "long_prompts", {"input_tokens": 2.0}),
    ("capacity", "overload", {"load_up": 2.0}),
    ("capacity", "overload", {"pool_saturated": 0.8}),
    ("capacity", "overload", {"load_up": 9.0, "pool_saturated": 30.0, "input_tokens": 5.0}),
    ("capacity", "long_prompts", {"load_up": 9.0, "input_tokens": 5.0}),
    ("capacity", "kv_pressure", {"kv_pressure": 0.98}),
    ("capacity", "kv_pressure", {"preemptions": 0.2}),
    ("capacity", None, {}),
    ("node", "node_down", {"silent": 0.0}),
    ("node", "downstream", {"silent": 0.0, "peers_silent": 0.25}),
    ("node", "node_down", {"silent": 0.0, "process_ended": 0.0}),
    ("node", "node_down", {"silent": 0.0, "peers_silent": 0.0, "pool_ended": 0.0}),
    ("node", "node_down", {"no_steps": 0.0}),
    ("node", "node_down", {"core_stuck": 1.0}),
    ("node", "node_down", {"core_gone": 0.0}),
    ("node", "crash_loop", {"core_deaths": 8.0}),
    ("node", "core_crash", {"core_deaths": 1.0}),
    ("node", "gpu_fault", {"gpu_health": 1.0}),
    ("node", None, {}),
    ("output", "wrong_output", {"output_wrong": 0.0}),
    ("output", "bad_deploy", {"output_wrong": 0.0, "peers_wrong": 0.0}),
    ("output", None, {}),
    ("cache", "prefix_cache_broken", {"peers_fell": 0.3}),
    ("cache", "prefix_cache_broken", {"fell_here": 0.3}),
    ("cache", "bad_deploy", {"recent_deploy": 60.0}),
    ("cache", "kv_pressure", {"kv_pressure": 0.98}),
    ("cache", None, {}),
    ("gateway", "gateway_crash", {"gateway_deaths": 3.0}),
    ("gateway", "gateway_crash", {"gateway_deaths": 1.0}),
    ("gateway", "gateway_crash", {"worker_deaths": 3.0}),
    ("gateway", "gateway_crash", {"worker_deaths": 1.0}),
    ("gateway", "gateway_down", {"gateway_answers": 0.0}),
    ("gateway", "gateway_crash", {"gateway_answers": 0.0, "just_started": 1.0}),
    ("gateway", "gateway_down", {"gateway_answers": 0.0, "gateway_process": 0.0}),
    ("gateway", "downstream", {"gateway_answers": 0.0, "nodes_answer": 0.0}),
    ("gateway", None, {}),
    ("gpu", "gpu_fault", {"lost": 1.0}),
    ("gpu", "gpu_fault", {"gpu_health": 1.0}),
    ("gpu", None, {}),
]


@pytest.mark.parametrize(
    ("name", "cause", "answers"),
    LEAVES,
    ids=[f"{name}-{cause}-{'+'.join(answers) or 'calm'}" for name, cause, answers in LEAVES],
)
def test_names_the_cause(
    trees: dict[str, Tree], name: str, cause: str | None, answers: dict[str, float | None]
) -> None:
    assert diagnose(trees[name], NODE, **answers).cause == cause


def test_every_verdict_of_every_tree_is_reached_by_a_case(trees: dict[str, Tree]) -> None:
    for name, tree in trees.items():
        causes = {diagnose(tree, NODE, **answers).cause for case, _, answers in LEAVES if case == name}
        assert {verdict.cause for verdict in tree.verdicts.values()} <= causes


def test_slow_node_is_confirmed_with_its_evidence(trees: dict[str, Tree]) -> None:
    found = diagnose(trees["latency"], NODE, queue_wait=1.2, slow_steps=3.4)

    assert found.confidence == "confirmed"
    assert found.title == "node-2 computes slowly: its steps take 3.4× as long as its peers'"
    assert found.ruled_out == ("prefix_cache_broken",)
    assert [(one.question, one.answer, one.threshold) for one in found.evidence] == [
        ("prefix_hit", "no", "> 20 %"),
        ("queue_wait", "yes", "> 200 ms"),
        ("slow_steps_queued", "yes", "> 2.0×"),
    ]
    assert found.evidence[2].value == 3.4
    assert found.evidence[2].age_s == 2.0
    assert 'node!="node-2"' in found.evidence[2].query


def test_what_not_every_engine_can_tell_does_not_lower_the_confidence(trees: dict[str, Tree]) -> None:
    found = diagnose(trees["node"], NODE, silent=0.0, process_ended=None)

    assert (found.cause, found.confidence, found.not_known) == ("node_down", "confirmed", ())


def test_a_pool_whose_processes_ended_is_not_the_path_to_it(trees: dict[str, Tree]) -> None:
    dead = diagnose(trees["node"], NODE, silent=0.0, peers_silent=0.0, pool_ended=0.0)
    assert dead.title == "The processes of most nodes of pool chat ended: it is not the path to them"
    assert diagnose(trees["node"], NODE, silent=0.0, peers_silent=0.0).cause == "downstream"


def test_is_only_likely_when_an_earlier_question_had_no_answer(trees: dict[str, Tree]) -> None:
    found = diagnose(trees["latency"], NODE, prefix_hit=None, queue_wait=1.2, slow_steps=3.4)

    assert (found.cause, found.confidence) == ("slow_node", "likely")
    assert found.ruled_out == ()
    assert found.not_known == ("Has the prefix hit ratio fallen, with prompts no longer than before? (no data)",)


def test_a_coincident_deploy_is_never_more_than_likely(trees: dict[str, Tree]) -> None:
    assert diagnose(trees["latency"], NODE, recent_deploy=300.0).confidence == "likely"


def test_names_no_cause_when_nothing_could_be_read(trees: dict[str, Tree]) -> None:
    for tree in trees.values():
        found = diagnose(tree, NODE, **dict.fromkeys(CALM))
        assert (found.cause, found.confidence) == (None, "unknown")
        assert found.title.startswith("Could not look")
        assert found.ruled_out == ()


def test_a_pool_wide_incident_is_asked_about_the_pool(trees: dict[str, Tree]) -> None:
    found = diagnose(trees["latency"], POOL, queue_wait=1.2, load_up=2.0, pool_saturated=0.8)

    assert (found.cause, found.confidence) == ("overload", "confirmed")
    assert all('node="' not in one.query for one in found.evidence)


@pytest.mark.parametrize(
    ("alert", "tree"),
    [
        ("LLMTTFTRegression", "latency"),
        ("LLMNodeSlow", "latency"),
        ("LLMTTFTHigh", "latency"),
        ("LLMQueueDepth", "capacity"),
        ("LLMKVCacheSaturated", "capacity"),
        ("LLMPreemptions", "capacity"),
        ("LLMNodeDown", "node"),
        ("LLMCoreDown", "node"),
        ("LLMPrefixHitDrop", "cache"),
        ("LLMGPUXid", "gpu"),
    ],
)
def test_each_alert_has_its_tree(trees: dict[str, Tree], alert: str, tree: str) -> None:
    found = tree_for_alert(trees, alert)
    assert found is not None
    assert found.name == tree


def test_every_alert_of_ours_has_a_tree_or_a_reason_why_not(trees: dict[str, Tree]) -> None:
    groups = load_rule_files(builtin_rule_files())
    alerts = {rule.name for group in groups for rule in group.rules if rule.kind == "alert"}
    explained = {symptom for tree in trees.values() for symptom in tree.symptoms}
    assert explained <= alerts
    no_tree = load_no_tree(builtin_no_tree_file())
    assert explained.isdisjoint(no_tree)
    assert explained | no_tree.keys() == alerts


def test_an_incident_without_a_tree_says_what_to_do_instead() -> None:
    no_tree = load_no_tree(builtin_no_tree_file())
    known = undiagnosed("LLMOutOfMemory", no_tree.get("LLMOutOfMemory"))
    assert (known.tree, known.cause, known.confidence) == ("", None, "unknown")
    assert known.title.startswith("No tree explains LLMOutOfMemory: the alert is the cause; page stop-oom-loop lowers")
    assert undiagnosed("HostOOM", no_tree.get("HostOOM")).title == "No tree explains HostOOM: see its own description"


def test_an_unknown_alert_has_no_tree(trees: dict[str, Tree]) -> None:
    assert tree_for_alert(trees, "SomethingElse") is None


def test_the_drawing_shows_every_question_branch_and_verdict(trees: dict[str, Tree]) -> None:
    for tree in trees.values():
        drawing = mermaid(tree)
        assert drawing.startswith("flowchart TD\n")
        for question in tree.questions:
            assert f'  {question.id}{{"' in drawing
        for verdict in tree.verdicts.values():
            assert f"| v_{verdict.id}\n" in drawing
    latency = mermaid(trees["latency"])
    assert "queue_wait -->|yes| slow_steps_queued" in latency
    assert "queue_wait -->|no, unknown| slow_steps" in latency
    assert "&gt; 200 ms" in latency
