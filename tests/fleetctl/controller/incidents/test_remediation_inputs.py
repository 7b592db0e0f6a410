from __future__ import annotations

from dataclasses import replace

import pytest

from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from diagnostics.cause import builtin_causes
from diagnostics.incident import Incident, IncidentStatus
from fleetctl.controller.content.load import load_content
from fleetctl.controller.incidents.by_hand import missing_words
from fleetctl.controller.incidents.new_node_names import fresh_name
from fleetctl.controller.incidents.remediation import (
    blocking_run,
    inputs_from_scope,
    is_for_scope,
    seen_inputs,
)
from fleetctl.controller.metrics import ControllerMetrics
from runbooks.approval import Approval, Approvals
from runbooks.front_matter import InputSpec
from runbooks.page import load_library
from runbooks.run import Run, RunStatus
from runbooks.value import ValueType
from tests.fixtures.runbooks import NOW, make_run

LIBRARY = load_library()


@pytest.mark.parametrize(
    ("name", "used", "expected"),
    [
        ("node-2", {"node-1", "node-2"}, "node-2b"),
        ("node-2", {"node-2", "node-2b"}, "node-2c"),
        ("node-2b", {"node-2", "node-2b"}, "node-2c"),
        ("gpu-a", {"gpu-a"}, "gpu-a-2"),
        ("gpu-a", {"gpu-a", "gpu-a-2"}, "gpu-a-3"),
        ("n1", {f"n1{letter}" for letter in "bcdefghijklmnopqrstuvwxyz"}, "n1-2"),
        ("x" * 62 + "1", set(), "x" * 50 + "-2"),
    ],
)
def test_a_replacement_gets_a_name_that_was_never_used(name: str, used: set[str], expected: str) -> None:
    assert fresh_name(name, used) == expected
    assert len(expected) <= 63


def test_what_a_place_does_not_tell_of_a_page_is_said_with_the_command_for_who_knows_it() -> None:
    words = missing_words(LIBRARY["replace-node"], {"model": "m", "pool": "a b"}, ["node"], "inc-1")
    assert words == (
        "replace-node needs node, which the scope does not give."
        " By hand: fleetctl runbook run replace-node --incident inc-1 'pool=a b' node=NODE"
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("usual", "in_flight", "ended", "over"),
    [
        (450.0, 17_300.0, 460.0, "2800"),  # they all were below 32k, and a rule over 32k moved none of them
        (450.0, 0.0, 36_000.0, "4000"),  # an engine that tells of a prompt when it has ended
        (24_000.0, 100_000.0, 24_500.0, "49000"),
        (450.0, 500.0, 460.0, None),  # none is far longer than usual
        (None, 17_300.0, 460.0, None),  # nobody knows what is usual
    ],
)
async def test_what_is_proposed_as_a_long_prompt_is_one_here(
    usual: float | None, in_flight: float, ended: float, over: str | None
) -> None:
    store = SeriesStore(retention_s=7200.0)
    for node, longest in (("node-1", in_flight), ("node-2", 0.0)):
        of = {"node": node, "pool": "chat"}
        for at in range(-1800, 1, 5):
            p99 = usual if at < -60 else ended
            if p99 is not None:
                store.append({"__name__": "llm:prompt_tokens:p99", **of}, NOW + at, p99)
            store.append({"__name__": "llm:longest_prompt_tokens", **of}, NOW + at, longest if at >= -60 else 0.0)

    async def measured(expression: str) -> float | None:
        found = evaluate(expression, store, NOW)
        return found[0].value if found else None

    page = LIBRARY["reroute-long-context"]
    assert await seen_inputs(page, {"pool": "chat"}, measured) == ({} if over is None else {"over": over})
    assert await seen_inputs(page, {"pool": "chat", "over": "8k"}, measured) == {}, "what somebody said stands"


def test_proposals_are_counted_by_whose_answer_they_need_with_the_age_of_the_oldest() -> None:
    metrics = ControllerMetrics()
    halfway = Approvals(needed=2, given=(Approval("ann", NOW, ""),))
    waiting = [
        make_run(created_at=NOW),
        make_run(created_at=NOW - 30),
        make_run(created_at=NOW - 90, approvals=halfway),
    ]
    metrics.tell_proposals(waiting, NOW + 10)
    text = metrics.exposition().decode()
    assert 'controller_proposals{needs="answer"} 2.0' in text
    assert 'controller_oldest_proposal_seconds{needs="answer"} 40.0' in text
    assert 'controller_proposals{needs="another_person"} 1.0' in text
    assert 'controller_oldest_proposal_seconds{needs="another_person"} 100.0' in text
    metrics.tell_proposals([], NOW)
    assert 'controller_oldest_proposal_seconds{needs="another_person"} 0.0' in metrics.exposition().decode()


def test_replace_node_gets_all_its_inputs_from_a_nodes_scope() -> None:
    page = LIBRARY["replace-node"]
    inputs, missing = inputs_from_scope(page, {"node": "node-2", "pool": "chat"}, {"node-1", "node-2"})
    assert inputs == {"node": "node-2", "replacement": "node-2b", "pool": "chat"}
    assert missing == []


def test_a_scope_without_a_node_lacks_it() -> None:
    assert inputs_from_scope(LIBRARY["replace-node"], {"pool": "chat"}, set())[1] == ["node"]


NODE_PAGES = sorted(name for name, page in LIBRARY.items() if "node" in page.inputs)


@pytest.mark.parametrize("name", NODE_PAGES)
def test_a_nodes_page_never_runs_unasked_for_more_than_a_node(name: str) -> None:
    assert is_for_scope(LIBRARY[name], {"node": "node-2", "pool": "chat"})
    for scope in ({"pool": "chat"}, {"zone": "a"}, {"revision": "r2"}, {}):
        assert not is_for_scope(LIBRARY[name], scope)


def test_a_page_without_a_node_is_for_the_pool_that_it_takes() -> None:
    assert set(LIBRARY) - set(NODE_PAGES) == {
        "even-out-routing",
        "open-overflow",
        "prefix-cache-broken",
        "quality-drop",
        "reroute-long-context",
        "restart-gateway",
        "rollback-pool",
        "scale-pool",
        "shed-load",
        "stop-scaling",
    }
    by_hand = [page for page in LIBRARY.values() if page.is_by_hand]
    assert by_hand
    assert not any(is_for_scope(page, {"pool": "chat"}) for page in by_hand), "what has no step is never started"
    assert is_for_scope(LIBRARY["scale-pool"], {"pool": "chat"})
    for scope in ({"zone": "a"}, {"revision": "r2"}):
        assert not is_for_scope(LIBRARY["scale-pool"], scope)


def test_a_page_of_a_pool_may_run_for_that_pool_and_for_nothing_else() -> None:
    inputs = {"pool": InputSpec(ValueType.STRING, True, None, "the pool")}
    page = replace(LIBRARY["cordon-node"], inputs=inputs)
    assert is_for_scope(page, {"pool": "chat"})
    assert not is_for_scope(page, {"zone": "a"})
    assert not is_for_scope(page, {"pool": "chat", "zone": "a"})


def test_a_slow_node_is_replaced_and_an_unknown_cause_is_not_guessed_at() -> None:
    page = load_content().page_for_cause("slow_node")
    assert page is not None
    assert page.name == "replace-node"
    assert load_content().page_for_cause("phase_of_the_moon") is None


@pytest.mark.parametrize("status", list(RunStatus))
def test_a_remedy_is_proposed_once_per_incident(status: RunStatus) -> None:
    incident = Incident("inc-1", "t", IncidentStatus.OPEN, "page", {"node": "node-2"}, 1.0)
    run = Run("run-1", "replace-node", "t", status, {}, 1.0, 1.0)
    assert blocking_run([run], "replace-node", incident) is run
    assert blocking_run([run], "restart-node", incident) is None
    assert blocking_run([replace(run, dry_run=True)], "replace-node", incident) is None, "a dry run treats nothing"


def test_what_was_taken_back_before_anybody_answered_is_proposed_anew_and_what_a_person_cancelled_is_not() -> None:
    incident = Incident("inc-1", "t", IncidentStatus.OPEN, "page", {"node": "node-2"}, 1.0)
    run = Run("run-1", "replace-node", "t", RunStatus.CANCELLED, {}, 1.0, 1.0, cancelled_by="controller")
    assert blocking_run([run], "replace-node", incident) is None
    by_ann = replace(run, cancelled_by="ann")
    assert blocking_run([by_ann], "replace-node", incident) is by_ann
    answered = replace(run, decided_by="ann")
    assert blocking_run([answered], "replace-node", incident) is answered


def test_a_reopened_incident_may_try_again_what_helped_but_not_what_did_not() -> None:
    incident = Incident("inc-1", "t", IncidentStatus.OPEN, "page", {"node": "node-2"}, 1.0, reopened=1)
    run = Run("run-1", "replace-node", "t", RunStatus.SUCCEEDED, {}, 1.0, 1.0)
    assert blocking_run([run], "replace-node", incident) is None
    for status in (RunStatus.UNDONE, RunStatus.FAILED, RunStatus.DENIED, RunStatus.PROPOSED):
        assert blocking_run([replace(run, status=status)], "replace-node", incident) is not None


def test_what_a_revision_may_ask_for_may_be_taken_back_with_it() -> None:
    told = {name for name, cause in builtin_causes().items() if cause.not_by_deploy}
    assert {"gpu_lost", "long_prompts", "gateway_down"} <= told
    assert not {"unschedulable", "bad_deploy", "prefix_by_upgrade", "limit_lowered", "out_of_memory"} & told
