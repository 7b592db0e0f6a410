"""What no count of its own shows: requests that a router keeps, nodes that it loses, prompts that are read slowly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import AnswerWord
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import AskedAt, read_all
from diagnostics.query import store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 600
AT = np.arange(BEGIN - 3000, NOW + 1, 15.0)
ALWAYS = np.ones(len(AT))
NODES = ("node-0", "node-1", "node-2")


def since(before: float, after: float) -> Floats:
    return np.where(BEGIN > AT, before, after)


def counted(rate: Floats) -> Floats:
    return np.cumsum(15 * rate)


def answer(question: str, series: Mapping[str, Sequence[Floats]], engine: str = "vllm") -> AnswerWord:
    """`series`: by name, one line of numbers for each node; `name{label=value}` adds a label."""
    labels, lines = [], []
    for name, of_nodes in series.items():
        metric, _, more = name.partition("{")
        own = dict([more.rstrip("}").split("=")]) if more else {}
        for node, line in zip(NODES, of_nodes, strict=False):
            labels.append(
                LabelSet.of({METRIC_NAME: metric, "node": node, "pool": "chat", "model": "m", "engine": engine} | own)
            )
            lines.append(line)
    store = SeriesStore()
    store.append_matrix(labels, np.round(AT * 1000).astype(np.int64), np.array(lines))
    asked = AskedAt(NOW, BEGIN, BEGIN, kept_since=float(AT[0]))
    known = builtin_knowledge().questions
    return read_all([known[question]], {"pool": "chat"}, store_query(store, NOW), asked)[question].answer


@pytest.mark.parametrize(("held", "said"), [(200.0, "yes"), (4.0, "no")], ids=["it waits for the dead one", "as sent"])
def test_a_router_keeps_what_no_node_knows_of(held: float, said: AnswerWord) -> None:
    series = {
        "llm:up": [ALWAYS, since(1, 0), ALWAYS],
        "llm:running": [4 * ALWAYS, since(4, 0), 4 * ALWAYS],
        "llm:waiting": [0 * ALWAYS, 0 * ALWAYS, 0 * ALWAYS],
        "gateway_inflight_requests": [4 * ALWAYS, since(4, held), 4 * ALWAYS],
    }
    assert answer("held_at_gateway", series) == said


@pytest.mark.parametrize(
    ("reaches", "said"), [(0.02, "yes"), (1.0, "no")], ids=["nothing reaches them", "they fail it"]
)
def test_what_fails_at_our_gateway_and_never_reaches_a_node_is_lost_before_it(reaches: float, said: AnswerWord) -> None:
    series = {
        "llm:up": [ALWAYS],
        "llm:arrivals:rate": [since(1.0, reaches)],
        "gateway_requests_total{outcome=finished}": [counted(since(1.0, 0.0))],
        "gateway_requests_total{outcome=failed}": [counted(since(0.0, 1.0))],
    }
    assert answer("fails_at_gateway", series) == said


@pytest.mark.parametrize("others", ["by turns", "at once"])
def test_nodes_that_are_sent_nothing_one_after_the_other_are_left_out_by_turns(others: str) -> None:
    out = since(0, 1) * (AT // 60 % 2)
    second = since(0, 1) - out if others == "by turns" else out
    series = {
        "llm:up": [ALWAYS, ALWAYS],
        "llm:first_tokens:rate": [ALWAYS, ALWAYS],
        "llm:left_out": [out, second],
        "llm:pool_left_out": [out + second],
    }
    assert answer("left_out_by_turns", series) == ("yes" if others == "by turns" else "no")


@pytest.mark.parametrize(
    ("seconds", "hits", "tokens", "said"),
    [(0.9, 0.5, 1000.0, "yes"), (0.6, 0.0, 1000.0, "no"), (0.9, 0.5, 2000.0, "no"), (0.3, 0.5, 1000.0, "no")],
    ids=["thrice as long", "fewer hits", "longer prompts", "as ever"],
)
def test_prompts_are_read_slowly_where_neither_length_nor_hits_explain_it(
    seconds: float, hits: float, tokens: float, said: AnswerWord
) -> None:
    series = {
        "llm:up": [ALWAYS] * 3,
        "llm:first_tokens:rate": [ALWAYS] * 3,
        "llm:prefill_seconds:mean": [since(0.3, seconds)] * 3,
        "llm:prefix_hit_ratio": [since(0.5, hits)] * 3,
        "llm:prompt_tokens:rate": [since(1000.0, tokens)] * 3,
    }
    assert answer("reads_slower", series) == said


def test_where_steps_are_as_slow_as_prompts_it_is_not_the_reading() -> None:
    series = {
        "llm:up": [ALWAYS] * 3,
        "llm:first_tokens:rate": [ALWAYS] * 3,
        "llm:prefill_seconds:mean": [since(0.3, 0.9)] * 3,
        "llm:prompt_tokens:rate": [1000.0 * ALWAYS] * 3,
        "llm:step_seconds:mean": [since(0.02, 0.06)] * 3,
    }
    assert answer("reads_slower", series) == "no"


def test_one_node_that_reads_slowly_is_not_all_of_them() -> None:
    series = {
        "llm:up": [ALWAYS] * 3,
        "llm:first_tokens:rate": [ALWAYS] * 3,
        "llm:prefill_seconds:mean": [since(0.3, 0.9), 0.3 * ALWAYS, 0.3 * ALWAYS],
        "llm:prompt_tokens:rate": [1000.0 * ALWAYS] * 3,
    }
    assert answer("reads_slower", series) == "no"


@pytest.mark.parametrize(("peers", "said"), [(1.0, "yes"), (1.5, "no")], ids=["nobody has its share", "its peers do"])
def test_a_tensorrt_node_that_ends_nothing_while_nobody_has_its_share_hangs_or_stands_still(
    peers: float, said: AnswerWord
) -> None:
    series = {
        "llm:up": [ALWAYS] * 3,
        "llm:requests:rate": [since(1.0, 0.0), since(1.0, peers), since(1.0, peers)],
    }
    assert answer("ends_nothing", series, engine="trtllm") == said


@pytest.mark.parametrize(("slow", "said"), [(0.04, "yes"), (0.02, "no")], ids=["slow since", "works on"])
def test_an_xid_of_a_quarter_of_an_hour_ago_counts_where_its_node_is_slow_since(slow: float, said: AnswerWord) -> None:
    xid = np.where((BEGIN - 600 <= AT) & (BEGIN - 300 > AT), 1.0, 0.0)
    series = {
        "llm:up": [ALWAYS] * 3,
        "llm:gpu_critical_xids": [xid, 0 * ALWAYS, 0 * ALWAYS],
        "llm:step_seconds:mean": [since(0.02, slow), 0.02 * ALWAYS, 0.02 * ALWAYS],
    }
    assert answer("gpu_xid", series) == said


@pytest.mark.parametrize(("given_up", "said"), [(0.5, "yes"), (0.0, "no")], ids=["clients give up", "nobody waits"])
def test_an_xid_counts_on_where_nothing_ends_and_only_who_gives_up_is_told(given_up: float, said: AnswerWord) -> None:
    xid = np.where((BEGIN - 600 <= AT) & (BEGIN - 300 > AT), 1.0, 0.0)
    series = {
        "llm:up": [ALWAYS] * 2,
        "llm:gpu_critical_xids": [xid, 0 * ALWAYS],
        "llm:steps:rate": [since(2.0, 0.0), 2.0 * ALWAYS],
        "llm:aborted:rate": [since(0.0, given_up), 0 * ALWAYS],
    }
    assert answer("gpu_xid", series, engine="trtllm") == said


@pytest.mark.parametrize(
    ("of_node_1", "said"),
    [(since(0.4, 22.0), "yes"), (since(0.4, 1.1), "no"), (22.0 * ALWAYS, "no"), (since(0.4, 0.9), "no")],
    ids=["far later than ever", "later, and no three times", "as always", "within its promise"],
)
def test_what_the_users_of_one_node_wait_for_is_a_symptom_though_no_alert_tells_of_a_request_a_minute(
    of_node_1: Floats, said: AnswerWord
) -> None:
    series = {
        "llm:up": [ALWAYS] * 3,
        "llm:ttft_seconds:mean": [0.4 * ALWAYS, of_node_1, 0.4 * ALWAYS],
        "llm:objective_ttft_seconds": [ALWAYS],
    }
    assert answer("node_promise_broken", series) == said
    assert builtin_knowledge().questions["node_promise_broken"].symptom
