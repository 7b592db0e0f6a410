"""What a gateway counts of a node, held against what the node says of itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import read_all
from diagnostics.query import AskedAt, store_query

NOW = 1_700_000_000.0
AT = np.arange(NOW - 600, NOW + 1, 5.0)
SINCE = NOW - 120

Level = float | Callable[[np.ndarray], np.ndarray]


def _until(level: float, then: float = 0.0) -> Callable[[np.ndarray], np.ndarray]:
    return lambda at: np.where(at < SINCE, level, then)


def _answers(engine: str = "vllm", outcome: str = "finished", **told: Level) -> dict[str, str]:
    """The answers about node-1 of a pool whose other node is well; `told`: llm: series, or the gateway's."""
    store = SeriesStore()
    for name, level in told.items():
        metric = name if name.startswith("gateway_") else f"llm:{name.replace('__', ':')}"
        labels = {METRIC_NAME: metric, "node": "node-1"}
        labels |= {"outcome": outcome} if metric == "gateway_requests_total" else {}
        labels |= {"reason": "reset"} if metric == "gateway_node_ejected" else {}
        labels |= {"pool": "chat", "engine": engine} if metric.startswith("llm:") else {}
        values = level(AT) if callable(level) else np.full_like(AT, level)
        store.append_matrix([LabelSet.of(labels)], np.round(AT * 1000).astype(np.int64), values[np.newaxis, :])
    asked = [
        builtin_knowledge().questions[one] for one in ("no_steps", "held_by_nobody", "serves_unseen", "errors_only")
    ]
    scope = {"node": "node-1", "pool": "chat"}
    found = read_all(asked, scope, store_query(store, NOW), AskedAt(NOW, SINCE, kept_since=NOW - 600))
    return {name: one.answer for name, one in found.items()}


def test_node_that_the_gateway_holds_requests_on_and_that_counts_none_takes_no_step() -> None:
    own = {"up": 1.0, "running": 0.0, "waiting": 0.0, "steps__rate": _until(60.0)}
    assert _answers(**own, gateway_inflight_requests=_until(2.0, 12.0))["no_steps"] == "yes"
    assert _answers(**own, gateway_inflight_requests=_until(2.0, 0.0))["no_steps"] == "no"  # it is idle


@pytest.mark.parametrize(("hang_up", "answer"), [(2.0, "yes"), (0.0, "unknown")])
def test_node_whose_gauges_went_with_its_last_request_is_hung_while_all_of_its_clients_give_up(
    hang_up: float, answer: str
) -> None:
    told = _answers("trtllm", up=1.0, steps__rate=_until(2.0), aborted__rate=_until(0.0, hang_up))
    assert told["no_steps"] == answer


def test_gauges_that_kept_a_cancelled_batch_are_told_from_a_core_that_hangs() -> None:
    own = {"up": 1.0, "running": 40.0, "waiting": 8.0, "steps__rate": _until(60.0)}
    cancelled = _answers(**own, gateway_inflight_requests=_until(48.0))
    hung = _answers(**own, gateway_inflight_requests=lambda at: np.where(at < SINCE + 60, 48.0, 0.0))
    assert (cancelled["held_by_nobody"], hung["held_by_nobody"]) == ("yes", "no")
    assert hung["no_steps"] == "yes"


def test_node_without_metrics_that_goes_on_to_finish_requests_is_not_taken_for_a_dead_one() -> None:
    goes_on = _answers(up=_until(1.0), gateway_requests_total=lambda at: (at - AT[0]) * 2)
    dead = _answers(up=_until(1.0), gateway_requests_total=lambda at: (np.minimum(at, SINCE) - AT[0]) * 2)
    assert (goes_on["serves_unseen"], dead["serves_unseen"]) == ("yes", "no")


def test_node_that_answers_5xx_to_everybody_and_gives_no_token_has_no_core() -> None:
    own = {"up": 1.0, "running": 7.0, "failed__rate": _until(0.0, 2.0)}  # its gauges stand as they were
    dead = _answers(**own, steps__rate=_until(60.0), generation_tokens__rate=_until(200.0))
    partly = _answers(**own, steps__rate=60.0, generation_tokens__rate=200.0)
    one_bad_request = _answers(
        up=1.0, failed__rate=lambda at: (np.abs(at - SINCE) < 10) * 0.05, generation_tokens__rate=0.0
    )
    assert (dead["errors_only"], partly["errors_only"], one_bad_request["errors_only"]) == ("yes", "no", "no")


@pytest.mark.parametrize(("held", "answer"), [(0.0, "yes"), (3.0, "no")])
def test_failures_that_only_the_gateway_counts_are_of_a_dead_core_unless_it_waits_there(
    held: float, answer: str
) -> None:
    own = {"up": 1.0, "failed__rate": 0.0, "generation_tokens__rate": _until(200.0)}
    failed = {"gateway_requests_total": lambda at: np.maximum(at - SINCE, 0.0) * 0.5}
    assert _answers("trtllm", "failed", **own, **failed, gateway_inflight_requests=held)["errors_only"] == answer


@pytest.mark.parametrize(("left_out", "answer"), [(0.0, "yes"), (1.0, "no")])
def test_what_ends_the_gateways_connections_and_answers_scrapes_does_not_answer_with_a_fault(
    left_out: float, answer: str
) -> None:
    """From the gateway's machine there was no route to one of three servers, which was to be replaced."""
    own = {"up": 1.0, "failed__rate": 0.0, "generation_tokens__rate": _until(200.0)}
    failed = {"gateway_requests_total": lambda at: np.maximum(at - SINCE, 0.0) * 0.5}
    told = _answers("trtllm", "failed", **own, **failed, gateway_node_ejected=_until(0.0, left_out))
    assert told["errors_only"] == answer


@pytest.mark.parametrize(("token_at", "answer"), [(NOW - 150, "no"), (NOW - 400, "yes")])
def test_node_that_gives_tokens_to_who_asks_it_directly_is_not_what_fails_at_the_gateway(
    token_at: float, answer: str
) -> None:
    """A proxy was stuck after a flood, and its nodes, who answered all who asked them directly, were replaced."""
    own = {"up": 1.0, "failed__rate": 0.0, "generation_tokens__rate": lambda at: (np.abs(at - token_at) < 15) * 4.0}
    failed = {"gateway_requests_total": lambda at: (at - AT[0]) * 0.5, "gateway_inflight_requests": 0.0}
    assert _answers("vllm", "failed", **own, **failed)["errors_only"] == answer
