"""Each trap of each engine's metrics, as the engine emits it, through our signal rules."""

from __future__ import annotations

import pytest

from alerts.labels import METRIC_NAME, LabelSet
from alerts.matcher import Matcher
from alerts.promql import evaluate
from alerts.promql.nodes import Node, Selector, children
from alerts.sample import to_ms
from alerts.series.store import SeriesStore
from tests.fixtures.signals import GROUPS, METRICS, START, Rig, S, V, histogram

# -- vLLM: renamed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"vllm:gpu_cache_usage_perc{{{V}}} 0.7", 0.7),  # 0.6.6 to 0.8.5
        (f"vllm:gpu_cache_usage_perc{{{V}}} 0.7\nvllm:kv_cache_usage_perc{{{V}}} 0.6", 0.6),  # 0.9.2 to 0.11
        (f"vllm:kv_cache_usage_perc{{{V}}} 0.6", 0.6),  # 0.12 and newer
    ],
)
def test_kv_ratio_is_found_under_every_name(text: str, wanted: float) -> None:
    rig = Rig("vllm")
    rig.scrape(text)
    assert rig.value("llm:kv_ratio") == wanted


@pytest.mark.parametrize(
    "names",
    [("time_per_output_token_seconds",), ("inter_token_latency_seconds",)],
    ids=["until 0.10", "since 0.10.2"],
)
def test_gap_between_tokens_is_found_under_every_name(names: tuple[str, ...]) -> None:
    series: dict[str, tuple[float, float]] = {}
    for name in names:
        series |= histogram(f"vllm:{name}", V, 20.0, 0.04, (0.025, 0.05, 0.1))
    rig = Rig("vllm").drive(series)
    assert rig.value("llm:itl_seconds:mean") == pytest.approx(0.04)
    assert rig.value("llm:step_seconds:mean") == pytest.approx(0.04)
    assert rig.value("llm:decode_steps:rate") == pytest.approx(20.0)
    assert 0.025 < (rig.value("llm:itl_seconds:p95") or 0.0) < (rig.value("llm:itl_seconds:p99") or 0.0) <= 0.05


def test_both_token_gap_families_of_0_10_count_once() -> None:
    series = histogram("vllm:time_per_output_token_seconds", V, 20.0, 0.04, (0.05,))
    series |= histogram("vllm:inter_token_latency_seconds", V, 20.0, 0.03, (0.05,))
    assert Rig("vllm").drive(series).value("llm:itl_seconds:mean") == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("engine", "gaps", "tokens"),
    [
        ("vllm", f"vllm:inter_token_latency_seconds:{V}", f"vllm:generation_tokens_total{{{V}}}"),
        ("sglang", f"sglang:inter_token_latency_seconds:{S}", f'sglang:realtime_tokens_total{{{S},mode="decode"}}'),
    ],
)
def test_drafts_of_three_tokens_bring_each_in_a_third_of_the_gap(engine: str, gaps: str, tokens: str) -> None:
    name, _, labels = gaps.rpartition(":")
    series = histogram(name, labels, 20.0, 0.06, (0.05, 0.1)) | {tokens: (0.0, 60.0)}
    series |= histogram("vllm:time_to_first_token_seconds", V, 0.0, 0.3, (0.25, 0.5))
    rig = Rig(engine).drive(series)
    assert rig.value("llm:itl_seconds:mean") == pytest.approx(0.06)
    assert rig.value("llm:token_seconds:mean") == pytest.approx(0.02)
    assert rig.value("llm:step_seconds:mean") == pytest.approx(0.02)


@pytest.mark.parametrize("prefix", ["", "gpu_"])
def test_prefix_hits_come_from_counters_of_both_names(prefix: str) -> None:
    series = {
        f"vllm:{prefix}prefix_cache_queries_total{{{V}}}": (0.0, 100.0),
        f"vllm:{prefix}prefix_cache_hits_total{{{V}}}": (0.0, 25.0),
    }
    assert Rig("vllm").drive(series).value("llm:prefix_hit_ratio") == pytest.approx(0.25)


@pytest.mark.parametrize(("gauge", "wanted"), [("0.4", 0.4), ("-1", None)])
def test_old_hit_rate_gauge_counts_unless_it_is_minus_one(gauge: str, wanted: float | None) -> None:
    rig = Rig("vllm")
    rig.scrape(f'vllm:gpu_prefix_cache_hit_rate{{model_name="q"}} {gauge}')
    assert rig.value("llm:prefix_hit_ratio") == wanted


def test_queue_time_of_0_6_is_found_under_its_old_name() -> None:
    rig = Rig("vllm").drive(histogram("vllm:time_in_queue_requests", 'model_name="q"', 2.0, 1.5, (1.0, 2.0)))
    assert rig.value("llm:queue_seconds:mean") == pytest.approx(1.5)


def test_capacity_waiting_leaves_deferred_requests_out() -> None:
    rig = Rig("vllm")
    rig.scrape(
        f"vllm:num_requests_waiting{{{V}}} 9\n"
        f'vllm:num_requests_waiting_by_reason{{{V},reason="capacity"}} 2\n'
        f'vllm:num_requests_waiting_by_reason{{{V},reason="deferred"}} 7\n'
    )
    assert rig.value("llm:waiting") == 9.0
    assert rig.value("llm:waiting_capacity") == 2.0


def test_capacity_waiting_is_absent_where_the_version_does_not_tell() -> None:
    rig = Rig("vllm")
    rig.scrape(f"vllm:num_requests_waiting{{{V}}} 9")
    assert rig.value("llm:waiting_capacity") is None


# -- shapes that mislead ------------------------------------------------------------------------------------------


def test_kv_is_the_fullest_rank_and_requests_are_the_sum() -> None:
    rig = Rig("vllm")
    rig.scrape(
        'vllm:kv_cache_usage_perc{engine="0",model_name="q"} 0.2\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="q"} 0.9\n'
        'vllm:num_requests_running{engine="0",model_name="q"} 3\n'
        'vllm:num_requests_running{engine="1",model_name="q"} 4\n'
    )
    assert rig.value("llm:kv_ratio") == 0.9
    assert rig.value("llm:running") == 7.0


def test_copies_by_pid_are_not_added_up() -> None:
    rig = Rig("vllm")
    rig.scrape(
        'vllm:kv_cache_usage_perc{engine="0",pid="11"} 0.6\nvllm:kv_cache_usage_perc{engine="0",pid="12"} 0.5\n'
        'vllm:num_requests_running{engine="0",pid="11"} 3\nvllm:num_requests_running{engine="0",pid="12"} 3\n'
    )
    assert rig.value("llm:kv_ratio") == 0.6
    assert rig.value("llm:running") == 3.0


def test_created_gauges_are_no_part_of_any_signal() -> None:
    series = histogram("vllm:time_to_first_token_seconds", V, 2.0, 0.2, (0.1, 0.25))
    gauges = (
        f"vllm:time_to_first_token_seconds_created{{{V}}} 1.7e9\n"
        f"vllm:generation_tokens_created{{{V}}} 1.7e9\nvllm:request_success_created{{{V}}} 1.7e9\n"
    )
    rig = Rig("vllm").drive(series, gauges=gauges)
    assert rig.value("llm:ttft_seconds:mean") == pytest.approx(0.2)
    assert rig.value("llm:generation_tokens:rate") is None
    assert rig.value("llm:requests:rate") is None


def test_counter_that_starts_again_does_not_go_negative_or_jump() -> None:
    rig = Rig("vllm").drive({f"vllm:generation_tokens_total{{{V}}}": (1e9, 50.0)})
    rig.drive({f"vllm:generation_tokens_total{{{V}}}": (0.0, 50.0)}, seconds=10)
    rate = rig.value("llm:generation_tokens:rate")
    assert rate is not None
    assert 0.0 <= rate <= 60.0


def test_iteration_histogram_whose_name_ends_in_total_gives_steps() -> None:
    rig = Rig("vllm").drive(histogram("vllm:iteration_tokens_total", V, 12.0, 4.0, (1.0, 8.0)))
    assert rig.value("llm:steps:rate") == pytest.approx(12.0)


def test_errors_are_absent_before_the_reason_existed_and_aborts_are_their_own() -> None:
    series = {
        f'vllm:request_success_total{{{V},finished_reason="{r}"}}': (0.0, n) for r, n in (("stop", 3.0), ("abort", 1.0))
    }
    rig = Rig("vllm").drive(series)
    assert rig.value("llm:errors:rate") is None
    assert rig.value("llm:requests:rate") == pytest.approx(4.0)
    assert rig.value("llm:aborted:rate") == pytest.approx(1.0)


def test_preemptions_are_also_a_share_of_requests() -> None:
    series = {
        f'vllm:request_success_total{{{V},finished_reason="stop"}}': (0.0, 4.0),
        f"vllm:num_preemptions_total{{{V}}}": (0.0, 1.0),
    }
    rig = Rig("vllm").drive(series)
    assert rig.value("llm:preemptions:rate") == pytest.approx(1.0)
    assert rig.value("llm:preemption_ratio") == pytest.approx(0.25)


def test_lora_keeps_only_the_newest_label_set() -> None:
    rig = Rig("vllm")
    rig.scrape(
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a",waiting_lora_adapters=""} 1700000000\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1700000009\n'
    )
    (sample,) = evaluate("llm:lora_info", rig.store, rig.now)
    assert sample.labels["running_lora_adapters"] == "a,b"
    assert sample.labels["waiting_lora_adapters"] == "c"


# -- SGLang -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [":", "_"])
def test_sglang_is_read_with_colon_and_with_underscore(sign: str) -> None:
    rig = Rig("sglang")
    rig.scrape(f"sglang{sign}num_running_reqs{{{S}}} 5\nsglang{sign}token_usage{{{S}}} 0.25\n")
    assert rig.value("llm:running") == 5.0
    assert rig.value("llm:kv_ratio") == 0.25


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_scrape_stores_both_spellings_under_one_name(name: str) -> None:
    store = SeriesStore()
    store.ingest({"node": "a"}, f"{name}_num_requests_running 1", 1.0)
    store.ingest({"node": "b"}, f"{name}:num_requests_running 2", 1.0)
    assert len(evaluate(f"{name}:num_requests_running", store, 1.0)) == 2


def test_sglang_with_underscores_in_a_prometheus_is_read_too() -> None:
    """A Prometheus keeps what it scraped: nobody has put the colon back there."""
    names = {"num_running_reqs": 5.0, "num_queue_reqs": 3.0, "num_grammar_queue_reqs": 2.0, "token_usage": 0.25}
    rig = Rig("sglang")
    own = {**rig.labels, "model_name": "q", "tp_rank": "0", "priority": ""}
    for name, value in names.items():
        rig.store.append_at(LabelSet.of({METRIC_NAME: f"sglang_{name}", **own}), to_ms(START + 5), value)
    for step in range(6):
        counters = {"num_requests_total": 2.0, "prompt_tokens_total": 30.0, "generation_tokens_total": 7.0}
        for name, per_s in counters.items():
            labels = LabelSet.of({METRIC_NAME: f"sglang_{name}", **own})
            rig.store.append_at(labels, to_ms(START + 5 + 5 * step), per_s * 5 * step)
    rig.now = START + 31
    rig.rules.tick(rig.now)
    assert rig.value("llm:running") == 5.0
    assert rig.value("llm:waiting") == 5.0
    assert rig.value("llm:kv_ratio") == 0.25
    assert rig.value("llm:requests:rate") == pytest.approx(2.0)
    assert rig.value("llm:prompt_tokens:rate") == pytest.approx(30.0)
    assert rig.value("llm:generation_tokens:rate") == pytest.approx(7.0)


def test_every_rule_of_sglang_takes_both_spellings() -> None:
    names = [
        matcher
        for group in GROUPS
        for rule in group.rules
        for matcher in name_matchers(rule.query.root)
        if matcher.value.startswith("sglang")
    ]
    assert len(names) > 50
    for matcher in names:
        example = matcher.value.replace("[:_]", ":")
        if matcher.op == "=~" and "(" not in example:
            assert matcher.accepts(example), matcher.value
            assert matcher.accepts(example.replace(":", "_", 1)), matcher.value
        else:
            assert "[:_]" in matcher.value, matcher.value


def name_matchers(node: Node) -> list[Matcher]:
    own = [m for group in node.groups for m in group if m.name == METRIC_NAME] if isinstance(node, Selector) else []
    return [*own, *(matcher for child in children(node) for matcher in name_matchers(child))]


def test_sglang_requests_that_wait_for_a_grammar_wait() -> None:
    rig = Rig("sglang")
    rig.scrape(f"sglang:num_queue_reqs{{{S}}} 6\nsglang:num_grammar_queue_reqs{{{S}}} 2\n")
    assert rig.value("llm:waiting") == 8.0
    assert rig.value("llm:waiting_capacity") == 6.0


def test_sglang_priorities_are_not_counted_twice() -> None:
    rig = Rig("sglang")
    rig.scrape(
        f'sglang:num_queue_reqs{{{S},priority=""}} 6\nsglang:num_queue_reqs{{{S},priority="1"}} 4\n'
        f'sglang:num_queue_reqs{{{S},priority="2"}} 2\n'
    )
    assert rig.value("llm:waiting") == 6.0


def test_sglang_tensor_ranks_are_copies_and_data_ranks_are_not() -> None:
    rig = Rig("sglang")
    rig.scrape(
        "".join(
            f'sglang:num_running_reqs{{{S},tp_rank="{tp}",dp_rank="{dp}"}} {dp + 3}\n' for tp in "01" for dp in (0, 1)
        )
    )
    assert rig.value("llm:running") == 7.0


def test_sglang_frozen_hit_rate_gauge_is_never_read() -> None:
    rig = Rig("sglang")
    rig.scrape(f"sglang:cache_hit_rate{{{S}}} 0.9\n", times=12)
    assert rig.value("llm:prefix_hit_ratio") is None
    rig = Rig("sglang").drive(
        {
            f"sglang:prompt_tokens_total{{{S}}}": (0.0, 100.0),
            f'sglang:cached_tokens_total{{{S},cache_source="device"}}': (0.0, 30.0),
        },
        gauges=f"sglang:cache_hit_rate{{{S}}} 0.9\n",
    )
    assert rig.value("llm:prefix_hit_ratio") == pytest.approx(0.3)


@pytest.mark.parametrize("name", ["num_retracted_requests_total", "total_retracted_reqs"])
def test_sglang_retractions_come_from_the_counter_and_not_from_the_gauge_that_is_reset(name: str) -> None:
    rig = Rig("sglang").drive(
        {f"sglang:{name}{{{S}}}": (0.0, 0.4)}, gauges=f'sglang:num_retracted_reqs{{{S},pid="1"}} 9\n'
    )
    assert rig.value("llm:preemptions:rate") == pytest.approx(0.4)


@pytest.mark.parametrize("name", ["queue_time_seconds", "queue_time_s"])
def test_sglang_queue_time_is_found_under_both_histogram_names(name: str) -> None:
    rig = Rig("sglang").drive(histogram(f"sglang:{name}", S, 1.0, 0.5, (0.2, 1.0)))
    assert rig.value("llm:queue_seconds:mean") == pytest.approx(0.5)


def test_sglang_0_4_8_tells_its_queue_time_as_a_gauge() -> None:
    rig = Rig("sglang")
    rig.scrape(f"sglang:avg_request_queue_latency{{{S}}} 0.8")
    assert rig.value("llm:queue_seconds:mean") == 0.8


def test_sglang_negative_sentinels_are_no_value() -> None:
    rig = Rig("sglang")
    rig.scrape(
        f"sglang:token_usage{{{S}}} -1\nsglang:lora_pool_utilization{{{S}}} -1\n"
        f"sglang:avg_request_queue_latency{{{S}}} -1\n"
    )
    assert rig.value("llm:kv_ratio") is None
    assert rig.value("llm:queue_seconds:mean") is None
    assert rig.value("llm:lora_slots_ratio") is None


def test_sglang_finish_reasons_are_not_made_up() -> None:
    rig = Rig("sglang").drive({f"sglang:num_requests_total{{{S}}}": (0.0, 2.0)})
    assert rig.value("llm:requests:rate") == pytest.approx(2.0)
    assert rig.value("llm:errors:rate") is None


def test_real_sglang_exposition_gives_its_gauges() -> None:
    rig = Rig("sglang")
    rig.scrape((METRICS / "sglang_datadog_v0.5.10.prom").read_text(), times=6)
    assert rig.value("llm:running") == 0.0
    assert rig.value("llm:kv_ratio") == 0.25
    assert rig.value("llm:requests:rate") == 0.0
    assert rig.value("llm:ttft_seconds:mean") is None


# -- TGI, TensorRT-LLM, Triton ------------------------------------------------------------------------------------


def test_tgi_counters_without_total_are_read_and_unknowns_stay_absent() -> None:
    series = {
        "tgi_request_success": (0.0, 3.0),
        'tgi_request_failure{err="overloaded"}': (0.0, 1.0),
        'tgi_request_failure{err="validation"}': (0.0, 1.0),
        'tgi_request_failure{err="generation"}': (0.0, 0.5),
        'tgi_batch_inference_count{method="decode"}': (0.0, 8.0),
        **histogram("tgi_request_queue_duration", 'x="1"', 2.0, 0.2, (0.1, 0.5)),
        **histogram("tgi_batch_forward_duration", 'method="decode"', 10.0, 0.03, (0.02, 0.04)),
    }
    rig = Rig("tgi").drive(
        series, gauges="tgi_batch_current_size 4\ntgi_queue_size 2\ntgi_batch_current_max_tokens 900\n"
    )
    assert rig.value("llm:running") == 4.0
    assert rig.value("llm:waiting") == 2.0
    assert rig.value("llm:requests:rate") == pytest.approx(3.5), "what was refused was not taken, and has not ended"
    assert rig.value("llm:invalid:rate") == pytest.approx(1.0)
    assert rig.value("llm:rejected:rate") == pytest.approx(1.0)
    assert rig.value("llm:errors:rate") == pytest.approx(0.5)
    assert rig.value("llm:queue_seconds:mean") == pytest.approx(0.2)
    assert rig.value("llm:step_seconds:mean") == pytest.approx(0.03)
    for name in ("llm:ttft_seconds:mean", "llm:kv_ratio", "llm:prefix_hit_ratio", "llm:preemptions:rate"):
        assert rig.value(name) is None, name


def test_tgi_first_token_is_an_estimate_of_queue_and_prefill_under_a_name_of_its_own() -> None:
    series = {
        **histogram("tgi_request_queue_duration", 'x="1"', 2.0, 0.2, (0.1, 0.5)),
        **histogram("tgi_batch_inference_duration", 'method="prefill"', 2.0, 0.3, (0.2, 0.4)),
    }
    rig = Rig("tgi").drive(series)
    assert rig.value("llm:ttft_estimate_seconds") == pytest.approx(0.5)
    assert rig.value("llm:ttft_seconds:mean") is None, "no objective is judged by it"


def test_tgi_requests_are_known_before_the_first_failure() -> None:
    assert Rig("tgi").drive({"tgi_request_success": (0.0, 3.0)}).value("llm:requests:rate") == pytest.approx(3.0)


def test_trtllm_frozen_gauges_are_unknown_while_nothing_completes() -> None:
    gauges = 'trtllm_num_requests_running{pid="1"} 5\ntrtllm_kv_cache_utilization{pid="1"} 0.8\n'
    rig = Rig("trtllm").drive({"trtllm_num_requests_completed_total": (0.0, 1.0)}, gauges=gauges)
    assert rig.value("llm:running") == 5.0
    assert rig.value("llm:kv_ratio") == 0.8
    rig.scrape("trtllm_num_requests_completed_total 100\n" + gauges, times=20)
    assert rig.value("llm:running") is None
    assert rig.value("llm:kv_ratio") is None
    assert rig.value("llm:up") == 1.0


def test_trtllm_processes_write_copies_of_one_gauge() -> None:
    gauges = "".join(
        f'trtllm_{name}{{pid="{pid}"}} {value}\n'
        for pid, value in ((1, 5), (2, 3))
        for name in ("num_requests_running", "num_requests_waiting")
    )
    rig = Rig("trtllm").drive({"trtllm_num_requests_completed_total": (0.0, 1.0)}, gauges=gauges)
    assert rig.value("llm:running") == 5.0
    assert rig.value("llm:waiting") == 5.0


@pytest.mark.parametrize("prefix", ["trtllm_", ""])
def test_trtllm_is_read_with_and_without_its_prefix(prefix: str) -> None:
    rig = Rig("trtllm").drive(
        histogram(f"{prefix}time_to_first_token_seconds", 'model_name="q"', 2.0, 0.3, (0.25, 0.5))
    )
    assert rig.value("llm:ttft_seconds:mean") == pytest.approx(0.3)


def test_triton_milliseconds_and_microseconds_become_seconds() -> None:
    t = 'model="tensorrt_llm",version="1"'
    series = {
        **histogram("nv_inference_first_response_histogram_ms", t, 2.0, 300.0, (100.0, 500.0, 2000.0)),
        f"nv_inference_request_success{{{t}}}": (0.0, 2.0),
        f"nv_inference_request_duration_us{{{t}}}": (0.0, 2.0 * 1.5e6),
        f"nv_inference_queue_duration_us{{{t}}}": (0.0, 2.0 * 0.25e6),
    }
    rig = Rig("triton").drive(series)
    assert rig.value("llm:ttft_seconds:mean") == pytest.approx(0.3)
    assert 0.1 < (rig.value("llm:ttft_seconds:p95") or 0.0) < (rig.value("llm:ttft_seconds:p99") or 0.0) <= 0.5
    assert rig.value("llm:e2e_seconds:mean") == pytest.approx(1.5)
    assert rig.value("llm:queue_seconds:mean") == pytest.approx(0.25)


def test_real_triton_exposition_gives_running_waiting_and_kv() -> None:
    rig = Rig("triton")
    rig.scrape((METRICS / "trtllm_triton_inflight.prom").read_text(), times=6)
    assert rig.value("llm:running") == 1.0
    assert rig.value("llm:waiting") == 1.0
    assert rig.value("llm:kv_ratio") == 0.4875
    assert rig.value("llm:steps:rate") == 0.0


# -- llama.cpp ----------------------------------------------------------------------------------------------------


def _llama(**ended: int) -> Rig:
    """Ten minutes of scrapes each 5 s. `ended`: a request ends every so many seconds, of a prompt that took 2 s."""
    rig = Rig("llamacpp")
    every_s, cached = ended.pop("every_s"), ended.pop("cached", 600)
    waits, reads_s = ended.pop("waits", 0), ended.pop("reads_s", 2)
    for t in range(0, 600, 5):
        count = t // every_s
        rig.scrape(
            f"llamacpp:requests_processing 2\nllamacpp:requests_deferred {waits}\nllamacpp:n_decode_total {20 * t}\n"
            f"llamacpp:prompt_tokens_total {400 * count}\nllamacpp:prompt_seconds_total {reads_s * count}\n"
            f"llamacpp:tokens_predicted_total {100 * count}\nllamacpp:tokens_predicted_seconds_total {4 * count}\n"
            + (f"llamacpp:prompt_tokens_cached_total {cached * count}\n" if cached else "")
        )
    return rig


def test_llamacpp_prefix_hits_are_a_share_of_what_it_read_and_found_and_absent_in_versions_that_count_neither() -> None:
    assert _llama(every_s=20).value("llm:prefix_hit_ratio") == pytest.approx(0.6)
    assert _llama(every_s=20, cached=0).value("llm:prefix_hit_ratio") is None


def test_llamacpp_reading_is_no_part_of_its_steps_and_who_reads_most_of_the_time_has_none() -> None:
    rig = _llama(every_s=20)
    assert rig.value("llm:reading_slots") == pytest.approx(0.1, rel=0.2)
    assert rig.value("llm:itl_seconds:mean") == pytest.approx(0.04)
    assert rig.value("llm:step_seconds:mean") == pytest.approx(0.036, rel=0.02)
    assert _llama(every_s=20, reads_s=15).value("llm:step_seconds:mean") is None
    assert _llama(every_s=20, reads_s=15).value("llm:itl_seconds:mean") == pytest.approx(0.04)


def test_llamacpp_prompts_and_times_are_estimated_from_how_often_its_counters_move() -> None:
    rig = _llama(every_s=20, waits=1)
    begun = rig.value("llm:first_tokens:rate")
    assert begun == pytest.approx(0.05, rel=0.2)
    assert rig.value("llm:requests:rate") == begun
    assert rig.value("llm:arrivals:rate") == pytest.approx(begun)
    assert rig.value("llm:prompt_tokens:mean") == pytest.approx(1000, rel=0.2)
    assert rig.value("llm:prefill_seconds:mean") == pytest.approx(2, rel=0.2)
    assert rig.value("llm:ttft_estimate_seconds") == pytest.approx(2 + 1 / 0.05, rel=0.2), "as long as one waits for"
    assert rig.value("llm:ttft_seconds:mean") is None, "no objective is judged by an estimate"


def test_llamacpp_requests_are_unknown_of_two_in_five_minutes_and_where_some_end_between_any_two_scrapes() -> None:
    assert _llama(every_s=140).value("llm:first_tokens:rate") is None
    many = _llama(every_s=5)
    assert many.value("llm:first_tokens:rate") is None
    assert many.value("llm:requests:rate") is None
    assert 0.2 < (many.value("llm:first_tokens_least:rate") or 0.0) < 1.2, "what waits waits no longer than by these"
    assert _llama(every_s=20).value("llm:failed:rate") is None, "nobody before it tells"


def test_llamacpp_requests_are_those_that_the_gateway_before_it_counts() -> None:
    rig = Rig("llamacpp")
    for t in range(0, 300, 5):
        text = "".join(
            f'gateway_requests_total{{node="{node}",outcome="{outcome}"}} {rate * t}\n'
            for node in ("n1", "n2")
            for outcome, rate in (("finished", 0.3), ("failed", 0.1), ("client_gone", 0.05), ("refused", 7.0))
        )
        rig.store.ingest({"instance": "g:1", "job": "gateway"}, text, rig.now + 5)
        rig.scrape("llamacpp:requests_processing 2\nllamacpp:requests_deferred 0\n")
    assert rig.value("llm:requests:rate") == pytest.approx(0.45), "what was refused was not taken"
    assert rig.value("llm:arrivals:rate") == pytest.approx(0.45)
    assert rig.value("llm:served:rate") == pytest.approx(0.3)
    assert rig.value("llm:failed:rate") == pytest.approx(0.1)
    assert rig.value("llm:aborted:rate") == pytest.approx(0.05)


# -- distributions and objectives -----------------------------------------------------------------------------------


def pool_buckets(rig: Rig, name: str) -> dict[str, float]:
    """Bound to rate."""
    return {sample.labels["le"]: sample.value for sample in evaluate(name, rig.store, rig.now)}


def test_buckets_survive_by_pool_and_give_any_quantile() -> None:
    series = histogram("vllm:time_to_first_token_seconds", V, 2.0, 0.2, (0.1, 0.25))
    rig = Rig("vllm").drive(series, seconds=120)
    assert pool_buckets(rig, "llm:ttft_seconds:bucket_rate") == pytest.approx({"0.1": 0.0, "0.25": 2.0, "+Inf": 2.0})
    (sample,) = evaluate("histogram_quantile(0.5, llm:ttft_seconds:bucket_rate)", rig.store, rig.now)
    assert 0.1 < sample.value <= 0.25
    assert set(sample.labels) == {"pool", "model", "engine", "zone", "revision"}


def test_triton_bounds_in_milliseconds_become_seconds() -> None:
    bounds = (100.0, 500.0, 2000.0, 5000.0)
    series = histogram("nv_inference_first_response_histogram_ms", 'model="t"', 2.0, 300.0, bounds)
    rates = pool_buckets(Rig("triton").drive(series), "llm:ttft_seconds:bucket_rate")
    assert rates == pytest.approx({"0.1": 0.0, "0.5": 2.0, "2": 2.0, "5": 2.0, "+Inf": 2.0})


def test_errors_are_zero_before_the_first_one_where_the_engine_counts_them() -> None:
    vllm = {
        f'vllm:request_success_total{{{V},finished_reason="stop"}}': (0.0, 3.0),
        'http_requests_total{handler="/v1/completions",status="2xx",method="POST"}': (0.0, 3.0),
    }
    assert Rig("vllm").drive(vllm).value("llm:failed:rate") == 0.0
    assert Rig("tgi").drive({"tgi_request_success": (0.0, 3.0)}).value("llm:failed:rate") == 0.0
    old = {f'vllm:request_success_total{{{V},finished_reason="stop"}}': (0.0, 3.0)}
    assert Rig("vllm").drive(old).value("llm:failed:rate") is None
    assert Rig("sglang").drive({f"sglang:num_requests_total{{{S}}}": (0.0, 2.0)}).value("llm:failed:rate") is None


def test_an_error_that_is_counted_twice_is_one() -> None:
    series = {
        f'vllm:request_success_total{{{V},finished_reason="stop"}}': (0.0, 3.0),
        f'vllm:request_success_total{{{V},finished_reason="error"}}': (0.0, 1.0),
        'http_requests_total{handler="/v1/completions",status="5xx",method="POST"}': (0.0, 0.8),
    }
    rig = Rig("vllm").drive(series)
    assert rig.value("llm:failed:rate") == pytest.approx(1.0)
    assert rig.value("llm:served:rate") == pytest.approx(3.0)


FAULTS = {  # requests that ended, 5xx, requests that are held
    "vllm": (f"vllm:request_success_total{{{V}}}", 'http_requests_total{status="5xx"}', "vllm:num_requests_{}"),
    "sglang": (f"sglang:num_requests_total{{{S}}}", 'sglang:http_responses_total{status_code="500"}', "sglang:num_{}"),
    "trtllm": ("trtllm_request_success_total", 'trtllm_request_error_total{http_code="500"}', "trtllm_num_requests_{}"),
}


@pytest.mark.parametrize("ended", [0.0, 3.0])
@pytest.mark.parametrize("engine", FAULTS)
def test_what_a_node_without_a_core_answers_5xx_came_to_it(engine: str, ended: float) -> None:
    finished, failed, held = FAULTS[engine]
    names = ("running_reqs", "queue_reqs") if engine == "sglang" else ("running", "waiting")
    gauges = "".join(f"{held.format(name)} 0\n" for name in names)
    counters = {finished: (0.0, ended), failed: (0.0, 2.0), "trtllm_num_requests_completed_total": (0.0, ended + 2.0)}
    arrivals = Rig(engine).drive(counters, gauges=gauges).value("llm:arrivals:rate")
    both = ended + 2.0 if engine == "trtllm" else ended  # others count some of the same requests in both
    assert arrivals == pytest.approx(both if ended else 2.0)


def test_refusals_of_a_drained_node_are_no_rejections() -> None:
    series = {
        'engine_admission_rejected_total{reason="overloaded"}': (0.0, 0.5),
        'engine_admission_rejected_total{reason="draining"}': (0.0, 9.0),
    }
    assert Rig("fleetctl").drive(series).value("llm:rejected:rate") == pytest.approx(0.5)


def test_a_copy_of_a_nodes_text_has_no_heartbeat_and_without_process_metrics_nobody_knows() -> None:
    alive = Rig("vllm").drive({"process_cpu_seconds_total": (3.0, 0.002)}, seconds=120)
    copy = Rig("vllm").drive({"process_cpu_seconds_total": (3.0, 0.0)}, seconds=120)
    assert (alive.value("llm:heartbeats:changes") or 0.0) > 0.0
    assert copy.value("llm:heartbeats:changes") == 0.0
    assert Rig("vllm").drive({f"vllm:prompt_tokens_total{{{V}}}": (0.0, 1.0)}).value("llm:heartbeats:changes") is None


def test_preemption_ratio_is_written_once_whatever_the_engine() -> None:
    rig = Rig("sglang").drive(
        {f"sglang:num_retracted_requests_total{{{S}}}": (0.0, 0.4), f"sglang:num_requests_total{{{S}}}": (0.0, 2.0)}
    )
    assert rig.value("llm:preemption_ratio") == pytest.approx(0.2)
    assert rig.store.dropped_samples == 0
