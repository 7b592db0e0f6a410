"""Requests that come no more, that one node gets alone, or that go to a node which has left."""

from __future__ import annotations

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import AskedAt, read_all
from diagnostics.query import store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 600
AT = np.arange(BEGIN - 1800, NOW + 1, 5.0)
ALWAYS = np.ones(len(AT))
PLACE = {"pool": "chat", "engine": "vllm"}


def _answer(question: str, store: SeriesStore, begin: float = BEGIN) -> str:
    asked = AskedAt(NOW, begin, begin, kept_since=BEGIN - 1800)
    known = builtin_knowledge().questions
    return read_all([known[question]], {"pool": "chat"}, store_query(store, NOW), asked)[question].answer


def _put(store: SeriesStore, name: str, labels: dict[str, str], values: Floats, until: float = NOW) -> None:
    there = until >= AT
    store.append_matrix(
        [LabelSet.of({METRIC_NAME: name, **labels})],
        np.round(AT[there] * 1000).astype(np.int64),
        values[np.newaxis, there],
    )


def _pool(*arrivals: Floats) -> SeriesStore:
    """Nodes that answer, with so many requests a second each."""
    store = SeriesStore()
    for number, rate in enumerate(arrivals):
        labels = {"node": f"node-{number}", **PLACE}
        _put(store, "llm:up", labels, ALWAYS)
        _put(store, "llm:arrivals:rate", labels, rate)
        _put(store, "llm:prompt_tokens:rate", labels, 1000 * rate)
    return store


def _fell(to: float, within_s: float) -> Floats:
    """Two requests a second, and from BEGIN on so many times as many, reached within this time."""
    values: Floats = 2 * np.interp(AT, [BEGIN, BEGIN + within_s], [1.0, to])
    return values


@pytest.mark.parametrize(
    ("to", "within_s", "found_after_s", "answer"),
    [(0.0, 1.0, 0, "yes"), (0.0, 480.0, 240, "no"), (0.0, 480.0, 420, "no"), (0.2, 1.0, 0, "no"), (1.0, 1.0, 0, "no")],
    ids=["cut off", "a batch that ends", "a batch's last minute", "far fewer", "as many"],
)
def test_traffic_is_cut_off_where_it_falls_to_nothing_at_once(
    to: float, within_s: float, found_after_s: float, answer: str
) -> None:
    assert _answer("arrivals_gone", _pool(*[_fell(to, within_s)] * 3), BEGIN + found_after_s) == answer


def test_pool_that_few_asked_is_not_missed() -> None:
    assert _answer("arrivals_gone", _pool(_fell(0.0, 1.0) / 10)) == "unknown"


def _skewed(first: float) -> tuple[Floats, Floats]:
    """Of four requests a second the first node gets two, and from BEGIN on so many."""
    values: Floats = np.where(AT < BEGIN, 2.0, first)
    return values, 4 - values


def test_node_is_starved_that_gets_nothing_of_what_its_peer_gets() -> None:
    assert _answer("node_starved", _pool(*_skewed(0.02))) == "yes"
    assert _answer("node_starved", _pool(*_skewed(1.5))) == "no"


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("llm:draining", PLACE, 1.0),
        ("llm:deploy_age_seconds", PLACE, 60.0),
        ("gateway_node_ejected", {"reason": "reset"}, 1.0),
        ("fleet_node_phase", {"phase": "draining", **PLACE}, 1.0),
    ],
)
def test_node_that_is_left_out_for_a_reason_is_not_starved(name: str, labels: dict[str, str], value: float) -> None:
    store = _pool(*_skewed(0.02))
    _put(store, name, {"node": "node-0", **labels}, value * ALWAYS)
    assert _answer("node_starved", store) == "no"


def test_spare_that_never_had_a_share_is_not_starved() -> None:
    assert _answer("node_starved", _pool(0.02 * ALWAYS, 4 * ALWAYS)) == "no"


@pytest.mark.parametrize(
    ("seen_until", "answered", "failing", "answer"),
    [
        (BEGIN, 50.0, 2.0, "yes"),
        (NOW, 50.0, 2.0, "no"),
        (BEGIN, 50.0, 0.0, "no"),
        (BEGIN, 0.0, 2.0, "no"),
    ],
    ids=["it left", "it is still scraped", "nothing is sent there", "it never was a node"],
)
def test_gateway_sends_to_a_node_that_is_gone(seen_until: float, answered: float, failing: float, answer: str) -> None:
    store = _pool(2 * ALWAYS, 2 * ALWAYS)
    gone = {"node": "node-9", "job": "llm-gateway"}
    _put(store, "llm:up", {"node": "node-9", **PLACE}, ALWAYS, until=seen_until)
    _put(store, "gateway_requests_total", {"outcome": "finished", **gone}, answered * ALWAYS)
    failed: Floats = np.cumsum(np.where(AT < BEGIN, 0.0, failing * 5))
    _put(store, "gateway_requests_total", {"outcome": "failed", **gone}, failed)
    assert _answer("routed_to_gone", store) == answer


def _left_out(nodes: int, why: str, out: Floats, running: float, *, failing: float = 0.0) -> SeriesStore:
    """Two nodes of which the gateway leaves out so many, and what each holds; of two requests a second so many fail."""
    store = _pool(0.01 * ALWAYS, 0.01 * ALWAYS)
    for number in range(2):
        labels = {"node": f"node-{number}", **PLACE}
        _put(store, "llm:running", labels, running * ALWAYS)
        _put(store, "llm:waiting", labels, 0 * ALWAYS)
        _put(store, "gateway_node_ejected", {"node": f"node-{number}", "reason": why}, out * (number < nodes))
    for outcome, rate in (("refused", 2 - failing), ("failed", failing)):
        _put(store, "gateway_requests_total", {"outcome": outcome}, np.cumsum(rate * 5 * ALWAYS))
    return store


BY_TURNS: Floats = np.where(AT % 80 < 20, 1.0, 0.0)


@pytest.mark.parametrize(
    ("why", "out", "running", "answer"),
    [
        ("reset", ALWAYS, 0.0, "yes"),
        ("reset", BY_TURNS, 0.0, "no"),
        ("reset", ALWAYS, 9.0, "no"),
        ("server_error", ALWAYS, 0.0, "no"),
    ],
    ids=["idle, for minutes", "for moments", "it holds requests", "it answered with errors"],
)
def test_node_that_idles_and_is_left_out_for_minutes_is_not_reached(
    why: str, out: Floats, running: float, answer: str
) -> None:
    assert _answer("left_out_though_idle", _left_out(1, why, out, running)) == answer


@pytest.mark.parametrize(("tokens", "answer"), [(0.0, "yes"), (90.0, "no")])
def test_node_that_tells_what_runs_only_while_something_does_idles_without_a_token(tokens: float, answer: str) -> None:
    store = _pool(0.01 * ALWAYS, 0.01 * ALWAYS)
    _put(store, "llm:generation_tokens:rate", {"node": "node-1", **PLACE}, tokens * ALWAYS)
    _put(store, "gateway_node_ejected", {"node": "node-1", "reason": "reset"}, ALWAYS)
    assert _answer("left_out_though_idle", store) == answer


@pytest.mark.parametrize(
    ("nodes", "running", "failing", "answer"),
    [(2, 0.0, 0.0, "yes"), (1, 0.0, 0.0, "no"), (2, 9.0, 0.0, "no"), (2, 0.0, 1.0, "no")],
    ids=["all, and they idle", "one of two", "they are full", "what is tried fails"],
)
def test_gateway_that_leaves_out_all_nodes_while_they_idle_cuts_them_off(
    nodes: int, running: float, failing: float, answer: str
) -> None:
    store = _left_out(nodes, "server_error", ALWAYS, running, failing=failing)
    assert _answer("all_left_out", store) == answer


@pytest.mark.parametrize(
    ("people", "batch", "answer"),
    [((6.0, 6.0), (0.01, 6.9), "yes"), ((6.0, 0.2), (3.0, 4.0), "no"), ((6.0, 6.0), (4.0, 6.9), "no")],
    ids=["it comes from little", "another went away", "it was as large nearly"],
)
def test_tenant_that_comes_from_little_to_two_fifths_of_all_grew_beside_one_as_large(
    people: tuple[float, float], batch: tuple[float, float], answer: str
) -> None:
    store = _pool(4 * ALWAYS, 4 * ALWAYS)
    for tenant, (before, now) in (("people", people), ("batch", batch)):
        sent: Floats = np.cumsum(np.where(AT < BEGIN, before, now) * 5)
        _put(store, "gateway_tenant_requests_total", {"tenant": tenant, "result": "admitted"}, sent)
    assert _answer("tenant_grew", store) == answer
