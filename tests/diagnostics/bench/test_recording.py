"""A case as a fleet's scrapes: each engine's own names, through our signals."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.promql import evaluate
from diagnostics.bench.case import BadCaseError, Case, load_case
from diagnostics.bench.recording import ONSET, record


def case_of(tmp_path: Path, text: str) -> Case:
    path = tmp_path / "case.yaml"
    path.write_text(f"title: t\nbefore: 10m\nafter: 6m\n{text}", "utf-8")
    return load_case(path)


def test_lower_hits_make_first_tokens_later_as_in_the_incident_of_the_seeds(tmp_path: Path) -> None:
    text = "extends: vllm-chat-3\nchanges: [{what: hit_ratio, to: 0.45}]\nexpect: {cause: prefix_cache_broken}"
    store = record(case_of(tmp_path, text)).store
    ttft = "sum(rate(vllm:time_to_first_token_seconds_sum[3m])) / sum(rate(vllm:time_to_first_token_seconds_count[3m]))"

    before, after = (evaluate(ttft, store, ONSET + at)[0].value for at in (-10.0, 300.0))

    assert 0.12 < before < 0.25
    assert 1.5 < after / before < 3


@pytest.mark.parametrize(
    ("engine", "running", "tokens"),
    [
        ("vllm", "vllm:num_requests_running", "vllm:generation_tokens_total"),
        ("fleetctl", "vllm:num_requests_running", "vllm:generation_tokens_total"),
        ("sglang", "sglang:num_running_reqs", "sglang:generation_tokens_total"),
        ("trtllm", "trtllm_num_requests_running", "trtllm_generation_tokens_total"),
        ("tgi", "tgi_batch_current_size", "tgi_request_generated_tokens_sum"),
        ("llamacpp", "llamacpp:requests_processing", "llamacpp:tokens_predicted_total"),
    ],
)
def test_every_engine_speaks_its_own_names(tmp_path: Path, engine: str, running: str, tokens: str) -> None:
    store = record(case_of(tmp_path, f"nodes: {{count: 2, engine: {engine}}}\nexpect: {{none: true}}")).store

    assert sum(one.value for one in evaluate(running, store, ONSET)) > 4
    assert sum(one.value for one in evaluate(f"rate({tokens}[1m])", store, ONSET)) > 400


def test_llamacpp_counts_a_prompt_whole_when_it_was_read(tmp_path: Path) -> None:
    text = """
nodes: {count: 1, engine: llamacpp}
load: {arrivals: 0.05, prompt_tokens: 1000, hit_ratio: 0.5}
expect: {none: true}
"""
    store = record(case_of(tmp_path, text)).store
    prompts, moves = (
        evaluate(f"{asked}(llamacpp:prompt_tokens_total[5m])", store, ONSET)[0].value
        for asked in ("increase", "changes")
    )
    assert moves == evaluate("changes(llamacpp:prompt_seconds_total[5m])", store, ONSET)[0].value
    assert 5 < moves < 30, "and stands still between"
    assert prompts / moves == pytest.approx(500, rel=0.4)


def test_a_node_that_does_not_answer_has_no_series(tmp_path: Path) -> None:
    text = "extends: vllm-chat-3\nchanges: [{what: up, on: node-1, to: 0}]\nexpect: {cause: node_down}"
    store = record(case_of(tmp_path, text)).store

    assert [one.value for one in evaluate('up{node="node-1",job="engine"}', store, ONSET + 10)] == [0.0]
    assert evaluate('vllm:num_requests_running{node="node-1"}', store, ONSET + 10) == []
    assert evaluate('vllm:num_requests_running{node="node-2"}', store, ONSET + 10)[0].value > 0


def test_a_target_that_nobody_scrapes_keeps_its_last_sample_for_the_lookback_and_one_given_up_does_not(
    tmp_path: Path,
) -> None:
    text = """
extends: vllm-chat-3
changes: [{what: scrape, on: node-1, shape: freeze}, {what: scrape, on: node-2, shape: vanish}]
expect: {cause: signals_stale}
"""
    store = record(case_of(tmp_path, text)).store

    assert [one.at for one in evaluate('up{node="node-1",job="engine"}', store, ONSET + 120)] == [ONSET - 5]
    assert evaluate('up{node="node-2",job="engine"}', store, ONSET + 120) == []


def test_what_is_known_of_a_node_is_of_the_revision_that_it_has_by_then(tmp_path: Path) -> None:
    """As the controller writes it: an incident of a revision asks about what is known of that one's nodes."""
    text = """
extends: vllm-chat-3
controller: true
facts: [{kind: deploy, on: node-1, at: 0s, revision: v2}]
expect: {cause: bad_deploy}
"""
    store = record(case_of(tmp_path, text)).store

    def revisions(at: float) -> list[str]:
        found = evaluate('fleet_node_process_up{node="node-1"} == 1', store, ONSET + at)
        return [one.labels["revision"] for one in found]

    assert (revisions(-30), revisions(60)) == (["v1"], ["v2"])


def test_stated_series_take_every_shape(tmp_path: Path) -> None:
    text = """
nodes: {count: 1, engine: vllm}
is_modelled: false
series:
  - {name: level, gauge: 4}
  - {name: events_total, rate: 2}
  - {name: size, histogram: {rate: 3, mean: 10, sigma: 0.3}}
changes:
  - {what: level, shape: ramp, over: 2m, to: 8}
  - {what: events_total, times: 5}
  - {what: size, to: 40}
  - {what: level, shape: vanish, at: 4m}
expect: {unknown: true}
"""
    store = record(case_of(tmp_path, text)).store

    def value(query: str, at: float) -> float:
        return evaluate(query, store, ONSET + at)[0].value

    assert value("level", 60) == pytest.approx(6)
    assert evaluate("level", store, ONSET + 250) == []
    assert value("rate(events_total[2m])", -5) == pytest.approx(2, rel=0.3)
    assert value("rate(events_total[2m])", 200) == pytest.approx(10, rel=0.2)
    assert value("rate(size_sum[2m]) / rate(size_count[2m])", 200) == pytest.approx(40, rel=0.15)


def test_a_change_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    text = "extends: vllm-chat-3\nchanges: [{what: sglang:token_usage, to: 1}]\nexpect: {none: true}"

    with pytest.raises(BadCaseError, match="has a series 'sglang:token_usage'"):
        record(case_of(tmp_path, text))
