"""Of how many a share is, what recurs between two looks, and one node of several that has something new."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Evidence
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import AskedAt, read_all
from diagnostics.evidence.score import rank_causes
from diagnostics.query import store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 600
AT = np.arange(BEGIN - 5400, NOW + 1, 5.0)
ALWAYS = np.ones(len(AT))
POOL = {"pool": "chat"}
LABELS = {
    "admitted": {"result": "admitted", "tenant": "a"},
    "refused": {"result": "over_tokens", "tenant": "a"},
    "deployed": {"kind": "deploy"},
}
NAMES = {
    "admitted": "gateway_tenant_requests_total",
    "refused": "gateway_tenant_requests_total",
    "deployed": "fleet_change_timestamp_seconds",
}


def _since(begin_s: float, end_s: float = np.inf) -> Floats:
    """1 between so long after the onset, and 0 else."""
    values: Floats = np.where((begin_s + BEGIN <= AT) & (end_s + BEGIN > AT), 1.0, 0.0)
    return values


def _answer(question: str, told: Mapping[str, Mapping[str, Floats]], engine: str = "vllm") -> Evidence:
    """Of what each node, or the gateway, tells: the pool's answer."""
    store = SeriesStore(retention_s=7200.0)
    for place, series in told.items():
        own = {} if place == "gateway" else {"node": place, **POOL, "model": "m", "engine": engine}
        for name, values in series.items():
            revision = {"revision": "v2" if place == "node-0" and name == "llm:up" else "v1"} if own else {}
            labels = LabelSet.of({METRIC_NAME: NAMES.get(name, name), **own, **revision, **LABELS.get(name, {})})
            store.append_matrix([labels], np.round(AT * 1000).astype(np.int64), values[np.newaxis, :])
    asked = AskedAt(NOW, BEGIN, BEGIN, kept_since=BEGIN - 5400)
    known = builtin_knowledge().questions
    return read_all([known[question]], POOL, store_query(store, NOW), asked)[question]


def _named(tree: str, yes: str, unknown: str = "") -> tuple[str, ...]:
    """The best hypothesis of a pool where all questions are answered no, but those."""
    known = builtin_knowledge()
    assert {*yes.split(), *unknown.split()} <= known.questions.keys()
    readings = {
        name: Evidence(name, name, "yes" if name in yes.split() else "unknown" if name in unknown.split() else "no")
        for name in known.questions
    }
    return rank_causes(known.expectations, known.questions, readings, [tree], "pool").fits[0].causes


@pytest.mark.parametrize(("invalid_rps", "answer"), [(0.05, "no"), (0.2, "yes")])
def test_one_malformed_request_of_a_quiet_minute_is_no_share(invalid_rps: float, answer: str) -> None:
    told = {"llm:up": ALWAYS, "llm:invalid:rate": invalid_rps * _since(560, 580), "llm:requests:rate": 0 * ALWAYS}
    if answer == "yes":
        told["llm:invalid:rate"] = invalid_rps * _since(540)
    assert _answer("refused_as_invalid", {"node-0": told}).answer == answer


def test_a_card_that_has_nothing_to_do_idles_rightly() -> None:
    told = {
        "llm:up": ALWAYS,
        "llm:gpu_utilization_ratio": 0.5 - 0.45 * _since(0),
        "llm:running": 1 - _since(0),
        "llm:prompt_tokens:rate": 3000 * ALWAYS,
    }
    assert _answer("gpu_idler_than_before", {"node-0": told}).answer == "unknown"
    told["llm:running"] = ALWAYS
    assert _answer("gpu_idler_than_before", {"node-0": told}).answer == "yes"


@pytest.mark.parametrize(("tokens", "answer"), [(40.0, "no"), (0.0, "yes")])
def test_a_core_that_puts_out_tokens_takes_steps_whatever_its_engine_counts(tokens: float, answer: str) -> None:
    """TensorRT-LLM counts requests that ended: where each is cut off none ends."""
    told = {
        "llm:up": ALWAYS,
        "llm:running": 3 * ALWAYS,
        "llm:waiting": 0 * ALWAYS,
        "llm:steps:rate": 1 - _since(0),
        "llm:aborted:rate": _since(0),
        "llm:generation_tokens:rate": 300 - (300 - tokens) * _since(0),
    }
    assert _answer("no_steps", {"node-0": told}, "trtllm").answer == answer


def test_clients_that_hang_up_did_come() -> None:
    seen = "clients_hang_up arrivals_down arrivals_dropped tokens_fell served_fell idle_peers"
    assert _named("gateway", seen) == ("client_disconnects",)
    assert _named("gateway", "arrivals_down arrivals_dropped tokens_fell served_fell") == ("slow_tool",)


def test_a_limit_of_so_much_a_minute_refuses_by_turns() -> None:
    refused = _since(120, 500)
    told = {"gateway": {"refused": np.cumsum(5 * refused), "admitted": np.cumsum(5 * (1 - refused))}}
    assert _answer("limits_refuse", told).answer == "yes"


@pytest.mark.parametrize(("slower", "answer"), [(2.1, "yes"), (1.05, "no")])
def test_one_node_of_a_new_revision_is_held_against_those_of_the_one_before(slower: float, answer: str) -> None:
    old = {"llm:up": ALWAYS, "llm:tpot_seconds:mean": 0.02 * ALWAYS}
    new = {
        "llm:up": ALWAYS,
        "llm:tpot_seconds:mean": 0.02 * (1 + (slower - 1) * _since(0)),
        "deployed": (BEGIN - 60) * ALWAYS,
    }
    assert _answer("canary_slower", {"node-0": new, "node-1": old, "node-2": old}).answer == answer


def test_a_canary_that_is_slower_is_its_deploy_though_the_pool_s_mean_does_not_show_it() -> None:
    seen = "changed_deploy new_revision own_new_revision canary_slower restarted_by_us"
    assert _named("latency", seen) == ("bad_deploy",)


@pytest.mark.parametrize(("status", "answer"), [(134.0, "yes"), (143.0, "no")])
def test_the_third_end_within_an_hour_is_no_core_that_ended_once(status: float, answer: str) -> None:
    ends = [_since(-2000, -1900), _since(-900, -800), _since(300, 400)]
    told = {
        f"node-{number}": {
            "llm:up": 1 - away,
            "fleet_node_process_up": 1 - away,
            "fleet_node_exit_status": status * ALWAYS,
        }
        for number, away in enumerate(ends)
    }
    assert _answer("ended_thrice", told).answer == answer
    assert _named("errors", "ended_and_back ended_thrice memory_full") == ("crash_loop",)
    assert _named("errors", "ended_and_back memory_full") == ("core_crash",)


def test_what_is_held_while_nothing_runs_is_a_leak_however_long_prompts_became() -> None:
    seen = (
        "kv_held_idle kv_full prompts_longer prompts_median_longer clients_hang_up queue_waits ttft_up ttft_median_up"
    )
    assert "kv_leak" in _named("latency", f"{seen} e2e_up itl_up steps_slower_than_before prefill_slower")
    assert _named("latency", f"{seen} e2e_up", "kv_by_length") == ("kv_leak",)


def test_a_node_that_ends_again_and_again_while_it_starts_never_becomes_ready() -> None:
    seen = (
        "starts_fail loading silent gone_for_others ends_again ended_thrice ended_and_back pod_liveness changed_deploy"
    )
    assert _named("controller", f"{seen} restarted_by_us") == ("bad_deploy_never_ready",)


@pytest.mark.parametrize(
    ("deployed_s", "status", "peer_runs", "answer"),
    [(-20, 1.0, False, "yes"), (-900, 1.0, False, "no"), (-20, 143.0, False, "no"), (-20, 1.0, True, "no")],
)
def test_a_new_revision_of_which_no_node_runs_ended_with_its_deploy(
    deployed_s: float, status: float, peer_runs: bool, answer: str
) -> None:
    def node(up: Floats) -> dict[str, Floats]:
        return {
            "llm:up": up,
            "fleet_node_process_up": up,
            "fleet_node_exit_status": np.where(up == 0, status, np.nan),
            "deployed": np.where(BEGIN + deployed_s <= AT, BEGIN + deployed_s, np.nan),
        }

    told = {"node-0": node(1 - _since(0)), "node-1": node(ALWAYS if peer_runs else 1 - _since(20))}
    assert _answer("ends_after_deploy", told).answer == answer


@pytest.mark.parametrize(("answers", "status", "answer"), [(0.0, 1.0, "yes"), (1.0, 1.0, "no"), (0.0, 143.0, "no")])
def test_a_node_that_its_platform_starts_anew_after_each_end_does_not_run(
    answers: float, status: float, answer: str
) -> None:
    """A new image wanted a newer driver: between two of its ends the process was up for 18 s, and never answered."""
    ends = sum(_since(at, at + 20) for at in (0, 40, 90, 160, 250, 380))
    old = {"llm:up": ALWAYS, "fleet_node_process_up": ALWAYS}
    new = {
        "llm:up": np.where(BEGIN - 20 > AT, 1.0, answers),
        "fleet_node_process_up": 1 - ends,
        "fleet_node_exit_status": status * ALWAYS,
        "deployed": np.where(BEGIN - 20 <= AT, BEGIN - 20, np.nan),
    }
    assert _answer("ends_after_deploy", {"node-0": new, "node-1": old}).answer == answer
    seen = "silent process_ended ends_again ended_thrice ended_and_back pod_restarts changed_deploy"
    assert _named("node", f"{seen} ends_after_deploy") == ("bad_deploy_never_ready",), "replacing it helps nothing"


def test_a_pool_whose_new_revision_ends_on_every_node_is_rolled_back() -> None:
    """Three servers of a new configuration crashed, and no cause was named: an order, the deploy and the silent pool
    each left it to another."""
    seen = (
        "silent process_ended most_silent most_processes_ended restarted_by_us new_revision changed_deploy "
        "no_node_answers nodes_fewer gone_for_others ended_unasked ended_thrice gpu_idler_than_before pod_restarts"
    )
    assert _named("node", f"{seen} ends_after_deploy") == ("bad_deploy_never_ready",)
