"""What engines, gateways and platforms of others tell: ends, hits that nobody feels, blocks that nobody holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import read_all
from diagnostics.query import AskedAt, store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 300
AT = np.arange(BEGIN - 3600, NOW + 1, 5.0)

Level = float | Callable[[Floats], Floats]
POOL = {"pool": "chat"}


def _then(before: float, after: float, at: float = 0.0) -> Callable[[Floats], Floats]:
    return lambda since: np.where(since < at, before, after)


def _counted(per_s: float, anew: Sequence[float] = ()) -> Callable[[Floats], Floats]:
    """A counter that begins anew at these seconds after the onset."""

    def values(since: Floats) -> Floats:
        begun = np.full(len(since), since[0])
        for at in anew:
            begun[since >= at] = at
        found: Floats = (since - begun) * per_s
        return found

    return values


def _gone(level: Callable[[Floats], Floats], *spans: tuple[float, float]) -> Callable[[Floats], Floats]:
    def values(since: Floats) -> Floats:
        found = level(since).astype(np.float64)
        for begin, end in spans:
            found[(since >= begin) & (since < end)] = np.nan
        return found

    return values


def _answer(question: str, *series: tuple[str, Mapping[str, str], Level], scope: Mapping[str, str] = POOL) -> str:
    store = SeriesStore()
    for name, labels, level in series:
        values = level(AT - BEGIN) if callable(level) else np.full_like(AT, level)
        told = ~np.isnan(values)
        store.append_matrix(
            [LabelSet.of({METRIC_NAME: name, **labels})],
            np.round(AT[told] * 1000).astype(np.int64),
            values[np.newaxis, told],
        )
    asked = AskedAt(NOW, BEGIN, BEGIN, kept_since=AT[0])
    known = builtin_knowledge().questions
    return read_all([known[question]], scope, store_query(store, NOW), asked)[question].answer


def _node(name: str, engine: str = "sglang") -> dict[str, str]:
    return {"node": name, "pool": "chat", "engine": engine}


@pytest.mark.parametrize(
    ("status", "away", "answer"),
    [(131.0, (-60.0, 60.0), "yes"), (143.0, (-60.0, 60.0), "no"), (0.0, (-60.0, 60.0), "no"), (131.0, None, "no")],
    ids=["by itself", "told to", "done", "never"],
)
def test_process_of_another_engine_that_ended_by_itself_and_is_back(
    status: float, away: tuple[float, float] | None, answer: str
) -> None:
    def runs(since: Floats) -> Floats:
        is_away = np.zeros(len(since), dtype=bool) if away is None else (since >= away[0]) & (since < away[1])
        return np.where(is_away, 0.0, 1.0)

    told = [
        ("llm:up", _node("a"), runs),
        ("fleet_node_process_up", _node("a"), runs),
        ("fleet_node_process_up", _node("b"), 1.0),
        ("fleet_node_exit_status", _node("a"), lambda since: np.where(runs(since) < 1, status, np.nan)),
    ]
    assert _answer("ended_and_back", *told) == answer


@pytest.mark.parametrize(
    ("anew", "answer"),
    [((-600.0, 120.0), "yes"), ((120.0,), "unknown"), ((-3000.0, 120.0), "unknown")],  # within ten minutes it may again
    ids=["twice in half an hour", "once", "an hour apart"],
)
def test_counters_that_begin_anew_twice_are_an_engine_that_ends_again(anew: Sequence[float], answer: str) -> None:
    spans = [(at - 60, at) for at in anew]
    told = [
        ("llm:up", _node("a"), 1.0),
        ("sglang:prompt_tokens_total", _node("a"), _gone(_counted(500.0, anew), *spans)),
        ("sglang:prompt_tokens_total", _node("b"), _counted(500.0)),
    ]
    assert _answer("ends_again", *told) == answer


def test_kubelet_that_restarts_a_container_of_ours_counts_and_one_of_strangers_does_not() -> None:
    restarts = _then(3.0, 5.0, at=60.0)
    ours = [("llm:up", _node("vllm-0", "vllm"), 1.0)]
    own, strange = {"pod": "vllm-0", "container": "vllm"}, {"pod": "web-0", "container": "web"}
    name = "kube_pod_container_status_restarts_total"
    assert _answer("ends_again", *ours, (name, own, restarts)) == "yes"
    assert _answer("ends_again", *ours, (name, strange, restarts)) == "unknown"  # five minutes after it began
    killed = ("kube_pod_container_status_last_terminated_reason", {**own, "reason": "OOMKilled"}, 1.0)
    assert _answer("pod_out_of_memory", *ours, (name, own, restarts), killed) == "yes"
    assert _answer("pod_out_of_memory", *ours, (name, own, 3.0), killed) != "yes"  # of weeks ago


@pytest.mark.parametrize(
    ("hits", "ttft", "answer"),
    [(_then(0.7, 0.0), 0.4, "yes"), (_then(0.7, 0.0), _then(0.4, 0.9), "no"), (0.7, 0.4, "no")],
    ids=["nobody feels it", "it is felt", "as ever"],
)
def test_hits_that_are_gone_and_nobody_feels_it_are_not_counted(hits: Level, ttft: Level, answer: str) -> None:
    told = [
        ("llm:up", _node("a"), 1.0),
        ("llm:prefix_hit_ratio", _node("a"), hits),
        ("llm:ttft_seconds:mean", _node("a"), ttft),
        ("llm:first_tokens:rate", _node("a"), 2.0),
        ("llm:prompt_tokens:rate", _node("a"), 4000.0),
    ]
    assert _answer("hits_unfelt", *told) == answer


@pytest.mark.parametrize(
    ("kv", "prompt", "tokens", "answer"),
    [
        (_then(0.2, 0.6), 900.0, 400.0, "yes"),
        (_then(0.2, 0.6), _then(900.0, 2700.0), 400.0, "no"),
        (_then(0.2, 0.6), 900.0, _then(400.0, 1200.0), "no"),
        (0.2, 900.0, 400.0, "no"),
    ],
    ids=["held by nobody", "by longer prompts", "by longer answers", "as ever"],
)
def test_blocks_that_no_request_accounts_for_are_seen_before_the_cache_is_full(
    kv: Level, prompt: Level, tokens: Level, answer: str
) -> None:
    told = [
        ("llm:up", _node("a"), 1.0),
        ("llm:kv_ratio", _node("a"), kv),
        ("llm:running", _node("a"), 8.0),
        ("llm:prompt_tokens:mean", _node("a"), prompt),
        ("llm:prefix_hit_ratio", _node("a"), 0.5),
        ("llm:generation_tokens:rate", _node("a"), tokens),
        ("llm:requests:rate", _node("a"), 2.0),
        ("llm:prompt_tokens:rate", _node("a"), 4000.0),
    ]
    assert _answer("kv_outgrows", *told) == answer


@pytest.mark.parametrize("over_s", [10.0, 400.0], ids=["cut off", "an evening"])
def test_traffic_that_is_cut_off_is_told_from_traffic_that_ends(over_s: float) -> None:
    told = [
        ("llm:up", _node("a"), 1.0),
        ("llm:arrivals:rate", _node("a"), lambda since: 4.0 * np.clip(1 - (since + over_s / 2) / over_s, 0, 1)),
        ("llm:prompt_tokens:rate", _node("a"), lambda since: np.where(since < 0, 4000.0, 0.0)),
    ]
    assert (_answer("arrivals_gone", *told) == "yes") == (over_s < 60)


ENVOY = "envoy_http_downstream_rq_xx"


INGRESS = "nginx_ingress_controller_requests"
UPSTREAM = "envoy_cluster_upstream"


@pytest.mark.parametrize(
    ("question", "of", "rest"),
    [
        ("fails_at_gateway", (ENVOY, {"envoy_response_code_class": "5"}), (ENVOY, {"envoy_response_code_class": "2"})),
        ("fails_at_gateway", (INGRESS, {"status": "503"}), (INGRESS, {"status": "200"})),
        ("gateway_refuses", (f"{UPSTREAM}_rq_pending_overflow", {}), (f"{UPSTREAM}_rq_total", {})),
        ("nodes_unreachable", (f"{UPSTREAM}_cx_connect_fail", {}), (f"{UPSTREAM}_cx_total", {})),
        ("clients_hang_up", (INGRESS, {"status": "499"}), (INGRESS, {"status": "200"})),
    ],
)
def test_gateways_of_others_are_asked(
    question: str, of: tuple[str, dict[str, str]], rest: tuple[str, dict[str, str]]
) -> None:
    told = [(*of, lambda since: np.maximum(since, 0.0)), (*rest, _counted(4.0))]
    assert _answer(question, ("llm:up", _node("a", "vllm"), 1.0), *told) == "yes"


def test_a_gateway_that_cannot_reach_a_node_that_is_down_is_no_fault_of_the_way() -> None:
    told = [(f"{UPSTREAM}_cx_connect_fail", {}, _counted(1.0)), (f"{UPSTREAM}_cx_total", {}, _counted(5.0))]
    assert _answer("nodes_unreachable", ("llm:up", _node("a", "vllm"), _then(1.0, 0.0)), *told) != "yes"


@pytest.mark.parametrize(
    ("lost", "answer"), [(_then(0.0, 1.0), "yes"), (1.0, "no")], ids=["since it began", "as it always did"]
)
def test_token_from_which_prompts_differ_is_told_where_more_is_lost_behind_it(lost: Level, answer: str) -> None:
    share = (lambda since: np.full_like(since, lost)) if isinstance(lost, float) else lost

    def grown(per_s: float) -> Callable[[Floats], Floats]:
        return lambda since: np.cumsum(share(since) * per_s * 5)

    told = [
        ("llm:up", _node("a"), 1.0),
        ("gateway_prompts_looked_at_total", {}, _counted(2.0)),
        ("gateway_prompts_differing_total", {"kind": "date"}, grown(2.0)),
        ("gateway_prompts_first_difference_tokens_total", {"kind": "date"}, grown(2.0 * 48)),
        ("gateway_prompts_prefix_lost_tokens_total", {"kind": "date"}, grown(2.0 * 900)),
    ]
    assert _answer("prefix_lost_at", *told) == answer


@pytest.mark.parametrize(
    ("starts", "answer"),
    [((-490, -310, -130), "yes"), ((60, 180, 280), "yes"), ((170, 220, 280), "no"), ((-490,), "no")],
    ids=["before it", "begun with it", "behind it", "one of three"],
)
def test_a_restart_from_node_to_node_is_one_change_that_began_with_its_first_node(
    starts: Sequence[float], answer: str
) -> None:
    told: list[tuple[str, Mapping[str, str], Level]] = []
    for n in range(3):
        at = starts[n] if n < len(starts) else -200_000.0
        name = _node(f"node-{n}", "vllm")
        told.append(("llm:up", name, 1.0))
        told.append(("llm:prompt_tokens:rate", name, 4000.0))

        def age(since: Floats, at: float = at) -> Floats:
            return np.where(since >= at, since - at, since + 200_000.0)

        told.append(("llm:deploy_age_seconds", name, age))
    assert _answer("restarted_before", *told) == answer


def test_engines_that_do_not_tell_when_they_started_are_known_to_have_been_restarted_by_their_counters() -> None:
    def told(*anew: float) -> list[tuple[str, Mapping[str, str], Level]]:
        rows: list[tuple[str, Mapping[str, str], Level]] = []
        for n in range(3):
            name = _node(f"node-{n}", "tgi")
            at = anew[n : n + 1]
            spans = [(one - 50, one) for one in at]
            rows += [("llm:up", name, 1.0), ("llm:prompt_tokens:rate", name, 4000.0)]
            rows.append(("tgi_request_count", name, _gone(_counted(2.0, at), *spans)))
        return rows

    assert _answer("restarted_before", *told(-200.0, -100.0, 50.0)) == "yes"
    assert _answer("restarted_before", *told(-200.0)) != "yes"
    assert _answer("restarted_before", *told(200.0, 230.0, 260.0)) != "yes"  # a remedy


@pytest.mark.parametrize(
    ("ttft", "queue", "answer"),
    [(_then(0.3, 2.3), 0.05, "yes"), (_then(0.3, 2.3), _then(0.05, 2.05), "no"), (0.3, 0.05, "no")],
    ids=["before the engine", "in its queue", "as ever"],
)
def test_what_a_first_token_waits_for_beside_queue_and_prefill_lies_before_the_engine(
    ttft: Level, queue: Level, answer: str
) -> None:
    name = _node("a", "trtllm")
    told = [
        ("llm:up", name, 1.0),
        ("llm:prompt_tokens:rate", name, 4000.0),
        ("llm:ttft_seconds:mean", name, ttft),
        ("llm:queue_seconds:mean", name, queue),
        ("llm:prefill_seconds:mean", name, 0.2),
        ("llm:first_tokens:rate", name, 1.0),
    ]
    assert _answer("frontend_lags", *told) == answer


@pytest.mark.parametrize(
    ("step", "running", "answer"),
    [(_then(0.02, 0.04), 8.0, "yes"), (_then(0.02, 0.04), _then(8.0, 40.0), "no"), (0.02, 8.0, "no")],
    ids=["of itself", "of its batch", "as ever"],
)
def test_node_falls_far_behind_its_peers_where_its_batch_does_not_explain_it(
    step: Level, running: Level, answer: str
) -> None:
    told: list[tuple[str, Mapping[str, str], Level]] = []
    for n in range(3):
        name = _node(f"node-{n}", "vllm")
        told += [
            ("llm:up", name, 1.0),
            ("llm:prompt_tokens:rate", name, 4000.0),
            ("llm:step_seconds:mean", name, step if n == 0 else 0.02),
            ("llm:running", name, running if n == 0 else 8.0),
        ]
    assert _answer("fell_far_behind", *told) == answer


@pytest.mark.parametrize(("per_s", "answer"), [(1.0, "yes"), (0.1, "no")], ids=["of many", "of twenty"])
def test_tail_of_one_node_rests_on_a_hundred_first_tokens(per_s: float, answer: str) -> None:
    name = _node("a", "vllm")
    told = [
        ("llm:up", name, 1.0),
        ("llm:prompt_tokens:rate", name, 4000.0),
        ("llm:first_tokens:rate", name, per_s),
        ("llm:ttft_seconds:p50", name, 0.2),
        ("llm:ttft_seconds:p99", name, _then(0.5, 3.0)),
    ]
    assert _answer("tail_of_one", *told) == answer


def test_node_that_is_restarted_is_no_excuse_for_requests_that_the_gateway_lost() -> None:
    def _told(failed: float) -> list[tuple[str, Mapping[str, str], Level]]:
        return [
            ("llm:up", _node("a", "vllm"), _then(1.0, 0.0)),
            ("llm:up", _node("b", "vllm"), 1.0),
            ("gateway_requests_total", {"node": "a", "outcome": "failed"}, lambda since: failed * np.maximum(since, 0)),
            ("gateway_requests_total", {"node": "b", "outcome": "finished"}, _counted(2.0)),
        ]

    assert _answer("errors_up", *_told(0.5)) != "yes", "no node counts them"
    assert _answer("fails_for_users", *_told(0.5)) == "yes"
    assert _answer("fails_for_users", *_told(0.0)) == "no"
    assert {"fails_for_users"} <= set(builtin_knowledge().expectations["maintenance"].hurts)


def test_engine_that_tells_nothing_while_nothing_ends_is_believed_with_its_gateway() -> None:
    gone = ("llm:arrivals:rate", _node("a", "trtllm"), lambda since: np.where(since < 0, 4.0, np.nan))
    told = [("llm:up", _node("a", "trtllm"), 1.0), ("llm:prompt_tokens:rate", _node("a"), 4000.0), gone]
    counted = ("gateway_requests_total", {}, lambda since: 4.0 * np.minimum(since, 0.0) + 20_000.0)
    assert _answer("arrivals_gone", *told) == "unknown"
    assert _answer("arrivals_gone", *told, counted) == "yes"


@pytest.mark.parametrize(
    ("steps", "up", "answer"),
    [(60.0, 1.0, "yes"), (0.0, 1.0, "no"), (60.0, _then(1.0, 0.0, at=200.0), "no")],
    ids=["works on", "stands still", "was ended"],
)
def test_platforms_word_of_a_node_that_works_on_is_its_probes(steps: Level, up: Level, answer: str) -> None:
    name = _node("a", "vllm")
    told = [
        ("llm:up", name, 1.0),
        ("fleet_node_process_up", name, up),
        ("fleet_provider_reasons", {**name, "reason": "Unhealthy", "kind": "liveness"}, _then(np.nan, 1.0, at=60.0)),
        ("llm:steps:rate", name, steps),
        ("llm:served:rate", name, 2.0),
    ]
    assert _answer("unhealthy_yet_works", *told) == answer


@pytest.mark.parametrize(
    ("anew", "answer"), [((), "yes"), ((-100.0, 100.0), "no")], ids=["its counters go on", "it was started anew"]
)
def test_scrapes_that_fail_by_turns_are_no_death_where_the_count_goes_on(anew: Sequence[float], answer: str) -> None:
    gaps = ((-150.0, -100.0), (50.0, 100.0), (260.0, 400.0))

    def answers(since: Floats) -> Floats:
        found = np.ones(len(since))
        for begin, end in gaps:
            found[(since >= begin) & (since < end)] = 0.0
        return found

    name = _node("a", "llamacpp")
    told = [
        ("llm:up", name, answers),
        ("llamacpp:prompt_tokens_total", name, _gone(_counted(300.0, anew), *gaps)),
    ]
    assert _answer("scrapes_fail", *told, scope={"node": "a", "pool": "chat"}) == answer


@pytest.mark.parametrize(("running", "answer"), [(8.0, "yes"), (0.0, "unknown")], ids=["under load", "while idle"])
def test_longer_prompts_explain_what_requests_hold_and_nothing_that_an_idle_node_holds(
    running: float, answer: str
) -> None:
    name = _node("a")
    told = [
        ("llm:up", name, 1.0),
        ("llm:prompt_tokens:rate", name, 4000.0),
        ("llm:prompt_tokens:mean", name, _then(900.0, 2700.0)),
        ("llm:kv_ratio", name, 0.7),
        ("llm:running", name, lambda since: np.where(since < -400, 8.0, running)),
        ("llm:waiting", name, 0.0),
    ]
    assert _answer("kv_by_length", *told) == answer


@pytest.mark.parametrize(("power", "answer"), [(300.0, "yes"), (None, "no")], ids=["to the last digit", "as ever"])
def test_readings_of_a_card_that_works_never_stand_still(power: float | None, answer: str) -> None:
    card = {**_node("a", "vllm"), "gpu": "0"}
    noise = np.random.default_rng(3).normal(0, 4, len(AT))
    told = [
        ("llm:up", _node("a", "vllm"), 1.0),
        ("llm:gpu_power_watts", card, lambda since: np.full_like(since, power) if power else 300 + noise),
        ("llm:gpu_temperature_celsius", card, 61.0),
        ("llm:gpu_utilization_ratio", card, 0.9),
        ("llm:steps:rate", _node("a", "vllm"), 60.0),
    ]
    assert _answer("gpu_readings_frozen", *told) == answer


@pytest.mark.parametrize("turn_s", [None, 60.0], ids=["for good", "by turns"])
def test_node_that_is_slow_by_turns_is_no_slow_node(turn_s: float | None) -> None:
    told: list[tuple[str, Mapping[str, str], Level]] = []
    for n in range(3):
        name = _node(f"node-{n}", "vllm")
        turns: Level = 0.06
        if turn_s is not None:
            turns = lambda since: np.where(since % 60 > 30, 0.06, 0.02)  # noqa: E731
        told += [("llm:up", name, 1.0), ("llm:step_seconds:mean", name, turns if n == 0 else 0.02)]
    assert (_answer("slow_steps", *told, scope={"node": "node-0", "pool": "chat"}) == "yes") == (turn_s is None)
