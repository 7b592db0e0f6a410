"""What a run did is told by what was measured while the fault stood; of a replaced node, at its replacement."""

from __future__ import annotations

import pytest

from diagnostics.key_series import effect_words
from diagnostics.record import AlertRecord, EventRecord, IncidentRecord, RunRecord, StepLine

ONSET, BEGAN, ENDED = 1_000.0, 1_030.0, 1_060.0


def make_record(**scope: str) -> IncidentRecord:
    return IncidentRecord(
        id="inc-1", title="slow", status="resolved", severity="page", scope=scope, opened_at=ONSET + 5, onset_at=ONSET
    )


def make_run(**inputs: str) -> RunRecord:
    step = StepLine(index=0, status="done", started_at=BEGAN, ended_at=ENDED)
    return RunRecord(
        id="run-1",
        runbook="replace-node",
        status="succeeded",
        created_at=BEGAN,
        updated_at=ENDED,
        inputs=inputs,
        steps=[step],
    )


def ttft_of(
    node: str, value: float, since: float, until: float
) -> tuple[dict[str, str], list[tuple[float, float | None]]]:
    labels = {"__name__": "llm:ttft_seconds:p99", "node": node, "pool": "chat"}
    return labels, [(since + step, value) for step in range(0, int(until - since), 5)]


@pytest.mark.parametrize(
    ("scope", "inputs", "words"),
    [
        ({"node": "n2"}, {"node": "n2", "replacement": "n2b"}, "1.9 s before, 200 ms after"),
        ({"node": "n2"}, {"node": "n2"}, "1.9 s before, 2.6 s after"),  # nothing took its place: it is as it is
        ({"pool": "chat"}, {}, "1.9 s before, 1.4 s after"),
    ],
    ids=["replaced", "kept", "pool"],
)
def test_effect_is_measured_where_the_requests_went(scope: dict[str, str], inputs: dict[str, str], words: str) -> None:
    series = [
        ttft_of("n2", 0.1, ONSET - 60, ONSET),  # well, before it began: nothing to compare with
        ttft_of("n2", 1.9, ONSET, BEGAN),
        ttft_of("n2", 2.6, ENDED, ENDED + 60),
        ttft_of("n2b", 0.2, ENDED, ENDED + 60),
    ]
    assert effect_words(make_run(**inputs), series, make_record(**scope)) == f"p99 time to first token {words}"


@pytest.mark.parametrize(
    ("alert", "active_at", "before"),
    [
        ("LLMNodeDown", ONSET + 5, "not measured"),
        ("LLMCoreStuck", ONSET + 5, "not measured"),
        ("LLMNodeSlow", ONSET + 5, "1.9 s"),
        ("LLMNodeDown", ENDED, "1.9 s"),  # it died of what was done to it
    ],
)
def test_the_last_numbers_of_a_dead_or_hung_node_are_no_measure_of_before(
    alert: str, active_at: float, before: str
) -> None:
    fired = AlertRecord(fingerprint="a", name=alert, state="resolved", labels={"node": "n2"}, active_at=active_at)
    record = make_record(node="n2").model_copy(update={"alerts": [fired]})
    series = [ttft_of("n2", 1.9, ONSET, BEGAN), ttft_of("n2b", 0.2, ENDED, ENDED + 60)]

    words = effect_words(make_run(node="n2", replacement="n2b"), series, record)

    assert words == f"p99 time to first token {before} before, 200 ms after"


def test_of_a_pool_with_a_dead_node_the_others_are_measured() -> None:
    fired = AlertRecord(fingerprint="a", name="LLMNodeDown", state="firing", labels={"node": "n2"}, active_at=ONSET)
    record = make_record(pool="chat").model_copy(update={"alerts": [fired]})
    series = [
        ttft_of("n2", 1.9, ONSET, BEGAN),
        ttft_of("n1", 0.5, ONSET, BEGAN),
        ttft_of("n1", 0.2, ENDED, ENDED + 60),
    ]
    assert effect_words(make_run(), series, record) == "p99 time to first token 500 ms before, 200 ms after"


def test_a_rollback_is_measured_once_its_nodes_are_there_and_where_the_requests_went() -> None:
    """It is ordered within a millisecond: "170 ms a step before, 200 ms after", of the node that it took out."""
    step = StepLine(index=0, status="done", started_at=BEGAN, ended_at=BEGAN)
    run = make_run().model_copy(update={"steps": [step], "updated_at": ENDED + 10, "verification": "held for 10 s"})
    stopped = EventRecord(at=ENDED - 5, kind="node.stopped", text="node n2: stopped", node="n2")
    record = make_record(node="n2", pool="chat").model_copy(update={"timeline": [stopped]})
    series = [
        ttft_of("n2", 1.9, ONSET, BEGAN),
        ttft_of("n2", 2.6, BEGAN + 5, ENDED),
        ttft_of("n4", 0.2, ENDED, ENDED + 60),
    ]
    assert effect_words(run, series, record) == (
        "p99 time to first token 1.9 s before, 200 ms after (after it: the rest of pool chat, as n2 was taken out)"
    )
    stays = record.model_copy(update={"timeline": [], "scope": {"pool": "chat"}})
    assert effect_words(run, series, stays) == "p99 time to first token 1.9 s before, 200 ms after"
