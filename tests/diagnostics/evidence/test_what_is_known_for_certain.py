"""What says for certain why something is wrong: a dead card's last word, a way that fails by turns, a picker that holds
requests before idle nodes, a revision that was slow from its first minute; and what is said where nobody can know."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Evidence
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import read_all
from diagnostics.evidence.score import rank_causes
from diagnostics.query import AskedAt, store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 600
AT = np.arange(BEGIN - 2700, NOW + 1, 5.0)
POOL = {"pool": "chat"}
NODE = {"node": "node-1", "pool": "chat"}

Told = Mapping[str, Mapping[str, Floats | float]]
"""Of each node, or "" for what has no node: its series, by name or by name{label=value}."""


def _step(before: float, after: float, at_s: float = 0.0) -> Floats:
    values: Floats = np.where(BEGIN + at_s > AT, before, after)
    return values


def _between(begin_s: float, end_s: float, value: float = 1.0) -> Floats:
    """A series that is told in that time alone."""
    values: Floats = np.where((begin_s + BEGIN <= AT) & (end_s + BEGIN > AT), value, np.nan)
    return values


def _count(rate: Floats | float) -> Floats:
    values: Floats = np.cumsum(5.0 * (np.zeros(len(AT)) + rate))
    return values


def _turns(*away: tuple[float, float]) -> Floats:
    """Whether a node answers that is away in those times after the onset."""
    values: Floats = np.ones(len(AT))
    for begin_s, end_s in away:
        values[(begin_s + BEGIN <= AT) & (end_s + BEGIN > AT)] = 0.0
    return values


def _answer(question: str, told: Told, scope: Mapping[str, str]) -> Evidence:
    store = SeriesStore()
    for node, series in told.items():
        own = {"node": node, "pool": "chat", "model": "m", "engine": "vllm"} if node else {}
        for name, values in series.items():
            bare, _, rest = name.rstrip("}").partition("{")
            more = dict(part.split("=") for part in rest.split(",") if part)
            labels = LabelSet.of({METRIC_NAME: bare, **own, **more})
            points = np.zeros(len(AT)) + values
            there = ~np.isnan(points)
            store.append_matrix([labels], np.round(AT[there] * 1000).astype(np.int64), points[there][np.newaxis, :])
    asked = AskedAt(NOW, BEGIN, BEGIN, kept_since=BEGIN - 2700)
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
    return rank_causes(known.expectations, known.questions, readings, [tree], kind).fits[0].causes


@pytest.mark.parametrize("question", ["gpu_ecc", "gpu_xid"])
@pytest.mark.parametrize(("away", "answer"), [((10.0, 1e9), "yes"), ((400.0, 450.0), "yes"), ((0.0, 0.0), "unknown")])
def test_a_card_that_its_node_tells_of_has_its_last_word_when_the_node_is_away(
    question: str, away: tuple[float, float], answer: str
) -> None:
    told = {"node-1": {"llm:up": _turns(away), "llm:gpu_uncorrected_ecc:increase{gpu=0}": _between(0, 60)}}
    told["node-1"]["llm:gpu_critical_xids{gpu=0}"] = _between(0, 60)
    assert _answer(question, told, NODE).answer == answer


@pytest.mark.parametrize("word", ["gpu_ecc", "gpu_xid gpu_unhealthy"])
def test_a_loop_of_ends_is_its_cards_where_the_card_says_so(word: str) -> None:
    ends = "silent process_ended ended_unasked ended_with_status ends_again ended_thrice nodes_fewer answers_flap"
    assert _named("node", ends, kind="node") == ("crash_loop",)
    assert _named("node", f"{ends} {word}", kind="node") == ("gpu_ecc" if word == "gpu_ecc" else "gpu_fault",)


@pytest.mark.parametrize(("running", "refused", "answer"), [(0.05, 0.0, "yes"), (1.0, 0.0, "no"), (0.05, 1.0, "no")])
def test_what_waits_before_nodes_without_work_is_held_by_who_routes(
    running: float, refused: float, answer: str
) -> None:
    told: Told = {
        "node-1": {"llm:up": 1.0, "llm:running": running, "llm:waiting": 0.0, "llm:first_tokens:rate": 0.6},
        "": {
            "gateway_queue_oldest_wait_seconds": _step(0.0, 9.6),
            "gateway_tenant_requests_total{result=rate}": _count(_step(0.0, refused)),
        },
    }
    assert _answer("held_before_idle", told, {}).answer == answer


def test_neither_a_limit_nor_too_much_work_holds_requests_before_nodes_without_work() -> None:
    seen = "waits_at_gateway lost_on_the_way nodes_work"
    assert _named("gateway", seen, kind="fleet") == ("gateway_limit",)
    assert _named("gateway", f"{seen} held_before_idle", kind="fleet") == ("routing_stale",)


@pytest.mark.parametrize(
    ("begins_anew", "load", "answer"), [(False, 1.0, "yes"), (True, 1.0, "no"), (False, 9.0, "no")]
)
def test_a_way_that_fails_by_turns_fails_for_scrapes_and_ends_no_process(
    begins_anew: bool, load: float, answer: str
) -> None:
    turns = _turns((20, 75), (195, 250), (560, 1e9))
    tokens = _count(100.0)
    if begins_anew:
        tokens = np.where(AT < BEGIN + 80, tokens, tokens - tokens[BEGIN + 80 <= AT][0])
    told: Told = {
        "node-1": {"llm:up": turns, "vllm:prompt_tokens_total": np.where(turns > 0, tokens, np.nan)},
        "node-2": {"llm:up": 1.0, "llm:running": 4.0},
        "": {
            "gateway_requests_total{node=node-1,outcome=failed}": _count(_step(0.0, 0.3)),
            "gateway_requests_total{node=node-1,outcome=finished}": _count(0.2),
        },
    }
    told["node-1"]["llm:running"] = np.where(turns > 0, load, np.nan)  # type: ignore[index]
    assert _answer("fails_by_turns", told, NODE).answer == answer
    assert _answer("silent_for_good", told, NODE).answer == ("yes" if begins_anew else "no")


def test_a_way_that_fails_by_turns_replaces_no_node() -> None:
    seen = "silent answers_flap gone_for_others stays_away fails_for_users lost_on_the_way served_fell tokens_fell"
    assert _named("errors", f"{seen} silent_for_good", kind="node") == ("node_down",)
    assert _named("errors", f"{seen} fails_by_turns", kind="node") == ("network_path",)


@pytest.mark.parametrize(("slow_from_s", "answer"), [(0.0, "yes"), (450.0, "no")])
def test_a_revision_that_is_slow_since_it_came_to_all_is_what_came_whenever_the_alert_began(
    slow_from_s: float, answer: str
) -> None:
    told: Told = {
        node: {
            "llm:up{revision=v1}": _between(-1e9, 0),
            "llm:up{revision=v2}": _between(0, 1e9),
            "llm:step_seconds:mean{revision=v1}": _between(-1e9, 0, 0.01),
            "llm:step_seconds:mean{revision=v2}": _step(np.nan, 0.01) + _step(0.0, 0.012, slow_from_s),
        }
        for node in ("node-1", "node-2")
    }
    assert _answer("slow_since_it_came", told, POOL).answer == answer


def test_tokens_that_are_slow_since_a_revision_came_are_the_deploys() -> None:
    seen = "itl_up steps_slower_than_before steps_far_slower steps_cost_more peers_slower_than_before e2e_up running_up"
    assert _named("cache", seen) == ("decode_slow",)
    assert _named("cache", f"{seen} slow_since_it_came") == ("bad_deploy",)


@pytest.mark.parametrize(("tells_404", "answer"), [(False, "yes"), (True, "no")])
def test_of_statuses_that_are_one_number_nobody_knows_what_is_refused(tells_404: bool, answer: str) -> None:
    told: dict[str, dict[str, Floats | float]] = {"node-1": {"llm:up": 1.0, "llm:requests:rate": 1.0}}
    told["node-1"]["llm:invalid:rate"] = _step(0.0, 0.5)
    if tells_404:
        told["node-1"]["llm:not_found:rate"] = 0.0
    assert _answer("refused_untold", told, POOL).answer == answer


def test_a_name_that_is_not_served_is_as_near_as_a_prompt_that_is_too_long_where_both_are_one_number() -> None:
    known = builtin_knowledge()
    readings = {name: Evidence(name, name, "no") for name in known.questions}
    for name in ("refused_as_invalid", "refused_untold"):
        readings[name] = Evidence(name, name, "yes")
    readings["asked_for_missing"] = Evidence("asked_for_missing", "", "unknown")
    ranked = rank_causes(known.expectations, known.questions, readings, ["errors"], "pool")
    assert ranked.fits[0].causes == ("oversized_request",)
    assert ranked.probability_of("model_missing") > 0.3


@pytest.mark.parametrize(("steps", "answer"), [(0.014, "yes"), (0.02, "no")])
def test_prompts_wait_for_a_store_where_steps_are_as_quick_as_ever(steps: float, answer: str) -> None:
    told: Told = {
        "node-1": {
            "llm:up": 1.0,
            "llm:prefill_seconds:mean": _step(0.5, 1.6),
            "llm:external_hit_ratio": 0.6,
            "llm:prompt_tokens:mean": 9000.0,
            "llm:prompt_tokens:rate": 7000.0,
            "llm:prefix_hit_ratio": 0.4,
            "llm:step_seconds:mean": _step(0.014, steps),
            "llm:arrivals:rate": 0.8,
        }
    }
    assert _answer("waits_for_store", told, POOL).answer == answer


def test_of_rare_requests_those_that_hang_up_are_counted_for_longer_than_a_minute() -> None:
    last_minute_well = np.where(AT > NOW - 70, 0.0, _step(0.0, 0.04))
    told: Told = {"node-1": {"llm:up": 1.0, "llm:requests:rate": 0.14, "llm:aborted:rate": last_minute_well}}
    assert _answer("clients_hang_up", told, POOL).answer == "yes"
    told = {"node-1": {"llm:up": 1.0, "llm:requests:rate": 1.4, "llm:aborted:rate": 10 * last_minute_well}}
    assert _answer("clients_hang_up", told, POOL).answer == "no"


@pytest.mark.parametrize(("scaled", "answer"), [(False, "yes"), (True, "no")])
def test_what_ends_well_while_its_pool_is_scaled_is_no_loop(scaled: bool, answer: str) -> None:
    turns = _turns((0, 100), (200, 300), (400, 1e9))
    told: dict[str, dict[str, Floats | float]] = {"node-1": {"llm:up": 1.0, "fleet_node_process_up": turns}}
    told["node-1"]["fleet_node_exit_status"] = np.where(turns > 0, np.nan, 0.0)
    if scaled:
        told["node-1"]["fleet_change_timestamp_seconds{kind=scale}"] = BEGIN
    assert _answer("ends_again", told, POOL).answer == answer


def test_a_cache_that_twice_the_requests_fill_is_the_requests_doing() -> None:
    seen = "preempts_much preempts kv_full queue_waits queue_everywhere itl_up e2e_up arrivals_up load_fills running_up"
    assert _named("capacity", f"{seen} served_fell") == ("preemption_thrash",)
    assert _named("capacity", f"{seen} served_fell arrivals_doubled") == ("overload",)
