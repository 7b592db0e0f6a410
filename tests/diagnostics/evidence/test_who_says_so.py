"""Whose word a cause rests on: who is left to say that a card is gone, a limit refuses, or a probe ends nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.sample import STALE_NAN
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Evidence
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import AskedAt, read_all
from diagnostics.evidence.score import rank_causes
from diagnostics.query import store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 600
AT = np.arange(BEGIN - 2400, NOW + 1, 5.0)
ALWAYS = np.ones(len(AT))
NEVER = np.zeros(len(AT))
LABELS = {
    "fleet_provider_reasons": {"reason": "Unhealthy", "kind": "liveness"},
    "refused": {"outcome": "refused"},
    "finished": {"outcome": "finished"},
}
NAMES = {"refused": "gateway_requests_total", "finished": "gateway_requests_total"}

Series = Mapping[str, Mapping[str, Floats]]
"""Of each node, or "gateway": what it tells."""


def _since(begin_s: float, end_s: float = np.inf) -> Floats:
    """1 between so long after the onset, and 0 else."""
    values: Floats = np.where((begin_s + BEGIN <= AT) & (end_s + BEGIN > AT), 1.0, 0.0)
    return values


def _until(end_s: float, of: float = 1.0) -> Floats:
    """A series that ends so long after the onset, as of a scrape that fails."""
    values: Floats = np.where(end_s + BEGIN > AT, of, np.nan)
    values[np.flatnonzero(np.isnan(values))[:1]] = STALE_NAN
    return values


def _counted(rate: Floats) -> Floats:
    values: Floats = np.cumsum(5.0 * rate)
    return values


def _answer(question: str, told: Series, scope: Mapping[str, str], begun_s: float = 0.0) -> Evidence:
    store = SeriesStore()
    for place, series in told.items():
        own = {} if place == "gateway" else {"node": place, "pool": "chat", "model": "m", "engine": "vllm"}
        for name, values in series.items():
            labels = LabelSet.of({METRIC_NAME: NAMES.get(name, name), **own, **LABELS.get(name, {})})
            there = ~np.isnan(values) | (values.view(np.int64) == np.array([STALE_NAN]).view(np.int64)[0])
            store.append_matrix([labels], np.round(AT[there] * 1000).astype(np.int64), values[there][np.newaxis, :])
    asked = AskedAt(NOW, BEGIN + begun_s, BEGIN + begun_s, kept_since=BEGIN - 2400)
    known = builtin_knowledge().questions
    return read_all([known[question]], scope, store_query(store, NOW), asked)[question]


def _named(tree: str, yes: str, unknown: str = "", kind: str = "pool") -> tuple[str, ...]:
    """The best hypothesis where all questions are answered no, but those."""
    known = builtin_knowledge()
    assert {*yes.split(), *unknown.split()} <= known.questions.keys()
    readings = {
        name: Evidence(name, name, "yes" if name in yes.split() else "unknown" if name in unknown.split() else "no")
        for name in known.questions
    }
    return rank_causes(known.expectations, known.questions, readings, [tree], kind).fits[0].causes  # type: ignore[arg-type]


POOL = {"pool": "chat"}
NODE = {"node": "node-0", "pool": "chat"}


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        ({"llm:up": 1 - _since(0), "llm:gpu_count": _until(0)}, "no"),
        ({"llm:up": 1 - _since(0), "llm:gpu_count": _until(60)}, "yes"),
        ({"llm:up": 1 - _since(0), "llm:gpu_count": _until(0), "llm:gpu_critical_xids": _since(-30, 5)}, "yes"),
        ({"llm:up": ALWAYS, "llm:gpu_count": _until(0)}, "yes"),
    ],
    ids=["all at once", "the card was told for a minute more", "the driver said so", "the node answers"],
)
def test_a_card_is_gone_by_the_word_of_who_is_still_there(told: dict[str, Floats], answer: str) -> None:
    told = told | {"llm:gpu_cards_missing": np.where(np.isnan(told["llm:gpu_count"]), 1.0, np.nan)}
    assert _answer("gpu_gone", {"node-0": told}, NODE).answer == answer


@pytest.mark.parametrize(("share", "answer"), [(0.08, "unknown"), (0.03, "no"), (0.3, "yes")])
def test_nodes_that_finish_most_of_their_requests_do_not_fail_all_at_once(share: float, answer: str) -> None:
    told = {"llm:up": ALWAYS, "llm:failed:rate": share * _since(0), "llm:served:rate": 1 - share * _since(0)}
    assert _answer("errors_everywhere", {"node-0": told, "node-1": told}, POOL).answer == answer


def test_memory_that_ran_full_is_behind_the_one_in_ten_that_fails() -> None:
    told = {
        "llm:up": ALWAYS,
        "llm:gpu_memory_ratio": 0.9 + 0.095 * _since(0),
        "llm:failed:rate": 0.1 * _since(0),
        "llm:served:rate": 1 - 0.1 * _since(0),
    }
    assert _answer("memory_ran_full", {"node-0": told, "node-1": told}, POOL).answer == "yes"
    named = _named("errors", "memory_full memory_ran_full errors_up errors_everywhere prefill_slower queue_waits")
    assert named == ("out_of_memory",)


GATEWAY = {
    "finished": _counted(1 - 0.4 * _since(0)),
    "refused": _counted(0.4 * _since(0)),
    "gateway_queue_oldest_wait_seconds": NEVER,
    "gateway_shed_orders": NEVER,
}


@pytest.mark.parametrize(
    ("more", "waiting", "answer"),
    [
        ({}, NEVER, "yes"),
        ({"gateway_queue_oldest_wait_seconds": 5 * _since(0)}, NEVER, "no"),
        ({"gateway_shed_orders": _since(0)}, NEVER, "no"),
        ({}, 6 * _since(0), "no"),
        ({"llm:invalid:rate": NEVER}, NEVER, "no"),
    ],
    ids=["nothing else", "a queue at the gateway", "an order to shed", "a queue at the nodes", "nodes count none"],
)
def test_what_no_limit_refuses_is_refused_for_what_it_is(more: dict[str, Floats], waiting: Floats, answer: str) -> None:
    told = {"gateway": GATEWAY | more, "node-0": {"llm:up": ALWAYS, "llm:waiting": waiting}}
    assert _answer("refused_by_none", told, POOL).answer == answer


def test_refusals_that_no_limit_explains_are_of_requests_that_are_too_long() -> None:
    assert _named("errors", "gateway_refuses refused_by_none restarted_before") == ("oversized_request",)
    assert _named("errors", "gateway_refuses limits_refuse") == ("gateway_limit",)


def test_two_effects_of_one_deploy_are_named_by_it() -> None:
    """A fifth fewer hits, of very many, is twice the work; that steps are longer as well is of the same deploy."""
    told = {
        "llm:up": ALWAYS,
        "llm:prefix_hit_ratio": 0.85 - 0.2 * _since(0),
        "llm:first_tokens:rate": ALWAYS,
        "llm:prompt_tokens:rate": 3000 * ALWAYS,
    }
    assert _answer("misses_grew", {"node-0": told, "node-1": told}, POOL).answer == "yes"
    yes = "misses_grew prefix_hit_fell hit_fell_everywhere new_revision restarted_before prefill_slower ttft_up itl_up"
    yes += " ttft_median_up steps_slower_than_before peers_slower_than_before e2e_up running_up"
    assert _named("latency", yes, "shared_tokens_fell changed_deploy") == ("prefix_by_upgrade",)


def test_longer_prompts_behind_the_same_beginning_lose_no_hits() -> None:
    told = {
        "llm:up": ALWAYS,
        "llm:prefix_hit_ratio": 0.8 - 0.4 * _since(0),
        "llm:first_prompt_tokens:mean": 1000 * (1 + _since(0)),
        "llm:first_tokens:rate": ALWAYS,
        "llm:prompt_tokens:rate": 3000 * ALWAYS,
    }
    assert _answer("misses_grew", {"node-0": told}, POOL).answer == "no"


def _ended(*at_s: float) -> dict[str, Floats]:
    """A node whose liveness probe failed 5 s before each of these ends; it is back after a minute."""
    away = sum((_since(at, at + 60) for at in at_s), NEVER)
    return {
        "llm:up": 1 - away,
        "fleet_node_process_up": 1 - away,
        "fleet_provider_reasons": sum((_since(at - 5, at + 60) for at in at_s), NEVER),
    }


@pytest.mark.parametrize(
    ("nodes", "answer"),
    [((_ended(100), _ended(560)), "yes"), ((_ended(100, 560), _ended()), "no"), ((_ended(), _ended(560)), "no")],
    ids=["one after the other", "always the same", "once"],
)
def test_nodes_that_their_probes_end_by_turns_have_the_probe_in_common(
    nodes: tuple[dict[str, Floats], ...], answer: str
) -> None:
    told = {f"node-{number}": one for number, one in enumerate(nodes)} | {"node-2": _ended()}
    assert _answer("ended_by_probe", told, POOL).answer == answer
    if answer == "yes":
        told["node-1"]["fleet_node_exit_status"] = 137 * ALWAYS
        assert _answer("ends_again", told, POOL).answer == "no"
        assert _answer("ended_unasked", told, {"node": "node-1", "pool": "chat"}).answer == "no"


def test_a_probe_that_ends_nodes_by_turns_is_named_and_no_node() -> None:
    yes = "ended_by_probe silent process_ended pod_liveness nodes_fewer gone_for_others nodes_work ended_by_memory"
    assert _named("node", yes, kind="node") == ("probe_too_strict",)


@pytest.mark.parametrize("more", ["queue_everywhere queue_waits", "ttft_median_up ttft_up"])
def test_what_all_users_wait_for_is_not_a_node_that_is_an_eighth_slower(more: str) -> None:
    its_own = " ".join(name for group in builtin_knowledge().expectations["straggler"].must for name in group)
    assert "straggler" not in _named("latency", f"{its_own} prefill_slower {more}")
    assert _named("gray", f"{its_own} itl_up") == ("straggler",)


@pytest.mark.parametrize(("before_s", "answer"), [(480, "no"), (60, "yes"), (-30, "yes")])
def test_a_gateway_that_was_back_for_minutes_is_behind_nothing_that_begins(before_s: float, answer: str) -> None:
    begun_s = 540.0
    told = {"gateway": {"fleet_gateway_deaths_total": _since(begun_s - before_s)}, "node-0": {"llm:up": ALWAYS}}
    assert _answer("gateway_died", told, POOL, begun_s).answer == answer


def test_one_node_less_is_missed_where_the_others_are_full() -> None:
    assert "capacity_lost" not in _named("latency", "nodes_fewer ttft_median_up ttft_up")
    assert "capacity_lost" in _named("latency", "nodes_fewer ttft_median_up queue_waits running_up")


def test_what_is_sent_again_fills_the_batch_that_is_slow() -> None:
    seen = "itl_up e2e_up asked_again clients_hang_up running_up seats_taken steps_slower_than_before"
    seen += " peers_slower_than_before"
    assert _named("latency", seen, "steps_cost_more arrivals_up served_fell") == ("retry_storm",)


def test_a_node_that_warms_up_is_late_and_not_wrong() -> None:
    assert "cold_start" not in _named("errors", "started_lately started_after_peers errors_up", kind="node")
    assert _named("latency", "started_lately started_after_peers ttft_up", kind="node") == ("cold_start",)


def test_a_known_prompt_that_fails_is_direct_whatever_else_was_done() -> None:
    """A node that leaves ready over its own answers has no work left: no second fault, and not less of the first."""
    known = builtin_knowledge()
    seen = ["output_wrong", "started_lately", "nodes_more", "changed_size", "served_fell", "tokens_fell"]
    readings = {
        name: Evidence(name, name, "yes" if name in seen else "unknown" if name == "peers_wrong" else "no")
        for name in known.questions
    }
    ranking = rank_causes(known.expectations, known.questions, readings, ["output"], "node")
    assert ranking.probability_of("wrong_output") > 0.9
