"""Engines that end again and again, are ended while they work, or hang; links that fail; minutes with few requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.sample import STALE_NAN
from alerts.series.store import SeriesStore
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import read_all
from diagnostics.query import AskedAt, store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 240
AT = np.arange(BEGIN - 2400, NOW + 1, 15.0)
ALWAYS = np.ones(len(AT))


def _store(of: Mapping[str, Sequence[Floats]], **labels: str) -> SeriesStore:
    """Of each name one series per node, with nan where it says nothing."""
    store = SeriesStore()
    for name, rows in of.items():
        for n, values in enumerate(rows):
            told = ~np.isnan(values)
            one = LabelSet.of({METRIC_NAME: name, "node": f"node-{n}", "pool": "chat", "gpu": "0", **labels})
            if told.any():
                store.append_matrix([one], np.round(AT[told] * 1000).astype(np.int64), values[np.newaxis, told])
    return store


def _answer(question: str, store: SeriesStore) -> str:
    asked = AskedAt(NOW, BEGIN, BEGIN, kept_since=AT[0])
    known = builtin_knowledge().questions
    return read_all([known[question]], {"pool": "chat"}, store_query(store, NOW), asked)[question].answer


def _ended(*spans: tuple[float, float]) -> Floats:
    """1 while its process runs; it does not between the seconds of each span."""
    gone = np.zeros(len(AT), dtype=bool)
    for start, end in spans:
        gone |= (BEGIN + start <= AT) & (BEGIN + end > AT)
    values: Floats = np.where(gone, 0.0, 1.0)
    return values


@pytest.mark.parametrize(
    ("first", "second", "status", "is_yes"),
    [
        (((-600.0, -480.0), (120.0, 900.0)), (), 139.0, True),
        (((-600.0, -480.0),), ((120.0, 900.0),), 139.0, True),
        (((120.0, 900.0),), (), 139.0, False),
        (((100.0, 900.0),), ((120.0, 900.0),), 139.0, False),
        (((-600.0, -480.0), (120.0, 900.0)), (), 143.0, False),
    ],
    ids=["the same twice", "one after the other", "once", "two at once, none is back", "told to end"],
)
def test_engine_of_others_ends_again(
    first: tuple[tuple[float, float], ...], second: tuple[tuple[float, float], ...], status: float, is_yes: bool
) -> None:
    runs = [_ended(*first), _ended(*second), ALWAYS]
    exits = [np.where(one < 1, status, np.nan) for one in runs]
    answer = _answer("ends_again", _store({"fleet_node_process_up": runs, "fleet_node_exit_status": exits}))
    assert (answer == "yes") == is_yes


@pytest.mark.parametrize(
    ("steps", "queue", "says", "is_yes"),
    [(60.0, 5.0, 1.0, True), (0.0, 5.0, 1.0, False), (60.0, 0.0, 1.0, False), (60.0, 5.0, 0.0, False)],
    ids=["it worked and all were full", "it stood still", "its peers had room", "nobody says why"],
)
def test_liveness_probe_ended_a_node_that_worked(steps: float, queue: float, says: float, is_yes: bool) -> None:
    gone = AT >= BEGIN + 180
    last = np.where(gone, np.nan, 1.0)
    store = _store(
        {
            "fleet_node_process_up": [np.where(gone, 0.0, 1.0), ALWAYS, ALWAYS],
            "fleet_node_exit_status": [np.where(gone, 143.0, np.nan)],
            "llm:running": [40 * last, 40 * ALWAYS, 40 * ALWAYS],
            "llm:waiting": [5 * last, queue * ALWAYS, queue * ALWAYS],
            "llm:steps:rate": [np.where(AT < BEGIN, 60.0, steps) * last, 60 * ALWAYS, 60 * ALWAYS],
        }
    )
    word = LabelSet.of({METRIC_NAME: "fleet_provider_reasons", "node": "node-0", "pool": "chat", "kind": "liveness"})
    told = np.where(AT >= BEGIN + 170, says, 0.0)
    store.append_matrix([word], np.round(AT * 1000).astype(np.int64), told[np.newaxis])
    assert (_answer("ended_when_full", store) == "yes") == is_yes


@pytest.mark.parametrize(
    ("utilisation", "peers", "age", "is_yes"),
    [(1.0, 900.0, 1e5, True), (0.0, 900.0, 1e5, False), (1.0, 0.0, 1e5, False), (1.0, 900.0, 300.0, False)],
    ids=["busy for nothing", "idle", "nobody asks the pool", "it starts"],
)
def test_node_whose_card_works_for_nothing_takes_no_steps(
    utilisation: float, peers: float, age: float, is_yes: bool
) -> None:
    before = AT < BEGIN
    store = _store(
        {
            "llm:running": [np.where(before, 4.0, 0.0), 4 * ALWAYS],
            "llm:waiting": [0 * ALWAYS, 0 * ALWAYS],
            "llm:steps:rate": [np.where(before, 60.0, 0.0), 60 * ALWAYS],
            "llm:generation_tokens:rate": [np.where(before, 900.0, 0.0), np.where(before, 900.0, peers)],
            "llm:gpu_utilization_ratio": [np.where(before, 0.95, utilisation), 0.95 * ALWAYS],
            "llm:deploy_age_seconds": [age * ALWAYS, 1e5 * ALWAYS],
        },
        engine="vllm",
    )
    assert (_answer("no_steps", store) == "yes") == is_yes


def test_xid_of_a_link_counts_while_its_node_takes_no_step() -> None:
    lately = np.where((AT >= BEGIN - 900) & (AT < BEGIN - 600), 1.0, np.nan)
    silent = {"llm:gpu_link_xids": [lately], "llm:gpu_count": [ALWAYS, ALWAYS]}
    assert _answer("gpu_link_faults", _store(silent)) == "yes"
    assert _answer("gpu_link_faults", _store({**silent, "llm:steps:rate": [60 * ALWAYS]})) == "no"


@pytest.mark.parametrize(
    ("before", "minute", "is_yes"),
    [(0.05, 0.1, False), (2.0, 4.0, True), (0.05, 0.3, True)],
    ids=["six for three by chance", "a busy pool", "eighteen for three"],
)
def test_a_minute_with_few_requests_is_no_rise(before: float, minute: float, is_yes: bool) -> None:
    store = _store({"llm:arrivals:rate": [np.where(AT > NOW - 60, minute, before)]})
    assert (_answer("arrivals_up", store) == "yes") == is_yes


@pytest.mark.parametrize(("begun", "is_yes"), [(0.05, False), (0.5, True)], ids=["three prompts", "thirty"])
def test_a_minute_with_few_prompts_is_no_other_traffic(begun: float, is_yes: bool) -> None:
    length = np.where(AT > NOW - 60, 3000.0, 1000.0)
    store = _store({"llm:prompt_tokens:rate": [begun * length], "llm:first_tokens:rate": [begun * ALWAYS]})
    assert (_answer("prompts_longer", store) == "yes") == is_yes


@pytest.mark.parametrize(("hits", "is_yes"), [(0.3, True), (0.0, False)], ids=["long prompts", "nothing is shared"])
def test_blocks_that_are_no_longer_shared_are_no_long_prompts(hits: float, is_yes: bool) -> None:
    store = _store(
        {
            "llm:kv_ratio": [np.where(AT < BEGIN, 0.2, 0.9)],
            "llm:running": [4 * ALWAYS],
            "llm:step_seconds:mean": [np.where(AT < BEGIN, 0.02, 0.1)],
            "llm:prefix_hit_ratio": [np.where(AT < BEGIN, 0.9, hits)],
        }
    )
    assert (_answer("large_in_flight", store) == "yes") == is_yes


@pytest.mark.parametrize(
    ("running", "served", "drains", "age_s", "is_yes"),
    [
        (0.0, 0.0, 0.0, 9000.0, True),
        (3.0, 0.0, 0.0, 9000.0, False),
        (0.0, 0.4, 0.0, 9000.0, False),
        (0.0, 0.0, 1.0, 9000.0, False),
        (0.0, 0.0, 0.0, 600.0, False),
    ],
    ids=["nothing runs", "its seats are taken", "it serves some", "it drains", "it started lately"],
)
def test_a_node_that_refuses_all_with_nothing_at_work_has_lost_its_room(
    running: float, served: float, drains: float, age_s: float, is_yes: bool
) -> None:
    """Permits for requests at once had leaked away: "overloaded", with an idle card, and no cause was named."""
    since = np.where(AT >= BEGIN, 1.0, 0.0)
    told = {
        "llm:up": ALWAYS,
        "llm:rejected:rate": 0.5 * since,
        "llm:running": 2 - (2 - running) * since,
        "llm:waiting": 0 * ALWAYS,
        "llm:served:rate": 0.5 - (0.5 - served) * since,
        "llm:draining": drains * since,
        "llm:deploy_age_seconds": age_s + AT - NOW,
    }
    assert (_answer("refuses_all", _store({name: [values] for name, values in told.items()})) == "yes") == is_yes


def test_of_nodes_that_a_controller_that_stood_still_has_not_looked_at_yet_none_is_said_to_have_ended() -> None:
    """Of three nodes it knew the one whose connection was refused at once: "most of their processes ended"."""
    store = _store({"fleet_node_process_up": [_ended((-5, 1000)), ALWAYS, ALWAYS]})
    for at, node in ((NOW + 1, "node-1"), (NOW + 1, "node-2")):
        store.append({"__name__": "fleet_node_process_up", "node": node, "pool": "chat", "gpu": "0"}, at, STALE_NAN)
    known, asked = builtin_knowledge().questions, AskedAt(NOW + 2, BEGIN, BEGIN, kept_since=AT[0])
    question = [known["most_processes_ended"]]
    for scope in ({"pool": "chat"}, {}):
        found = read_all(question, scope, store_query(store, NOW + 2), asked)["most_processes_ended"]
        assert (found.answer, found.value) == ("no", pytest.approx(1 / 3))


@pytest.mark.parametrize(("reason", "answer"), [("reset", "yes"), ("slow", "unknown")])
def test_a_node_that_is_left_out_as_slow_fails_no_probe(reason: str, answer: str) -> None:
    """Two nodes that were slower than a new one: "nodes that work are taken out because their probes fail"."""
    out = _store({"gateway_node_ejected": [ALWAYS], "llm:up": [ALWAYS]}, reason=reason)
    assert _answer("gateway_ejects", out) == answer
