"""What only looks like a fault: a prompt that is read, first tokens of tens of ms, a seat that is free for a moment."""

from __future__ import annotations

from collections.abc import Mapping

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
AT = np.arange(BEGIN - 2400, NOW + 1, 5.0)
ALWAYS = np.ones(len(AT))


def _answer(question: str, series: Mapping[str, Floats], engine: str = "vllm", **labels: str) -> str:
    places = {"node": "node-0", "pool": "chat", "model": "m", "engine": engine}
    names = [LabelSet.of({METRIC_NAME: name.partition("|")[0], **places, **_le(name), **labels}) for name in series]
    store = SeriesStore()
    store.append_matrix(names, np.round(AT * 1000).astype(np.int64), np.array(list(series.values())))
    asked = AskedAt(NOW, BEGIN, BEGIN, kept_since=BEGIN - 2400)
    known = builtin_knowledge().questions
    return read_all([known[question]], {"node": "node-0", "pool": "chat"}, store_query(store, NOW), asked)[
        question
    ].answer


def _le(name: str) -> dict[str, str]:
    _, has, bound = name.partition("|")
    return {"le": bound} if has else {}


@pytest.mark.parametrize(
    ("engine", "still_s", "answer"),
    [("llamacpp", 60.0, "unknown"), ("llamacpp", 240.0, "yes"), ("vllm", 60.0, "yes"), ("llamacpp", 0.0, "no")],
    ids=["reads for a minute", "nothing for four minutes", "one that counts its chunks", "takes steps"],
)
def test_llamacpp_has_three_minutes_to_read_a_prompt(engine: str, still_s: float, answer: str) -> None:
    steps = np.where(NOW - still_s <= AT, 0.0, 30.0) if still_s else 30 * ALWAYS
    series = {"llm:up": ALWAYS, "llm:running": 2 * ALWAYS, "llm:waiting": 0 * ALWAYS, "llm:steps:rate": steps}
    assert _answer("no_steps", series, engine) == answer


@pytest.mark.parametrize(("before", "after", "answer"), [(0.016, 0.032, "no"), (0.2, 0.4, "yes")])
def test_first_tokens_within_50_ms_make_nobody_wait(before: float, after: float, answer: str) -> None:
    bounds = (0.008, 0.016, 0.032, 0.064, 0.1, 0.2, 0.4, 0.8)
    series = {"llm:up": ALWAYS} | {
        f"llm:ttft_seconds:bucket_rate|{bound}": np.where(BEGIN > AT, float(bound >= before), float(bound >= after))
        for bound in bounds
    }
    series["llm:ttft_seconds:bucket_rate|+Inf"] = ALWAYS
    assert _answer("ttft_median_up", series) == answer


def test_seats_between_an_answer_that_ends_and_the_next_are_taken() -> None:
    running = np.where((AT % 30) == 0, 3.0, 4.0)  # one of four is free at one look in six
    series = {"llm:up": ALWAYS, "llm:running": running, "llm:seats": 4 * ALWAYS, "llm:waiting": 9 * ALWAYS}
    assert _answer("seats_taken", series) == "yes"
