"""Each trap of each engine's metrics, as the engine emits it, through our signal rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from alerts.content import builtin_signal_files
from alerts.evaluation import RuleEngine
from alerts.promql import evaluate
from alerts.rules import load_rule_files
from alerts.sample import NAME
from alerts.store import SeriesStore

METRICS = Path(__file__).parent / "data" / "metrics"
START = 1_700_000_000.0
GROUPS = load_rule_files(builtin_signal_files())


class Rig:
    """One target, scraped every 5 s; a metric's text holds values at t seconds as first+step."""

    def __init__(self, engine: str, **labels: str) -> None:
        self.labels = {
            "node": "n1",
            "pool": "chat",
            "model": "m",
            "engine": engine,
            "zone": "z",
            "revision": "r",
            **labels,
        }
        self.store = SeriesStore()
        self.rules = RuleEngine(GROUPS, self.store)
        self.now = START

    def scrape(self, text: str | None, times: int = 1, every_s: float = 5.0) -> None:
        for _ in range(times):
            self.now += every_s
            self.store.ingest({**self.labels, "instance": "n1:1", "job": "llm"}, text, self.now)
            self.rules.tick(self.now)
        assert self.rules.failures() == {}

    def drive(self, series: Mapping[str, tuple[float, float]], seconds: int = 60, gauges: str = "") -> Rig:
        """Scrapes with every series at first + per_s * t."""
        for t in range(0, seconds, 5):
            lines = [f"{name} {first + per_s * t}" for name, (first, per_s) in series.items()]
            self.scrape("\n".join(lines) + "\n" + gauges)
        return self

    def value(self, name: str) -> float | None:
        """The one value of this signal with exactly the canonical labels; None when it is absent."""
        found = evaluate(name, self.store, self.now)
        if not found:
            return None
        (sample,) = found
        extra = {key: value for key, value in sample.labels.items() if key in ("gpu",)}
        assert sample.labels == {NAME: name, **self.labels, **extra}
        return sample.value


def histogram(
    name: str, labels: str, rate: float, mean: float, bounds: tuple[float, ...]
) -> dict[str, tuple[float, float]]:
    """`rate` observations a second, all of size `mean`."""
    series = {f"{name}_count{{{labels}}}": (0.0, rate), f"{name}_sum{{{labels}}}": (0.0, rate * mean)}
    for bound in (*bounds, float("inf")):
        le = "+Inf" if bound == float("inf") else str(bound)
        series[f'{name}_bucket{{{labels},le="{le}"}}'] = (0.0, rate if mean <= bound else 0.0)
    return series


V = 'engine="0",model_name="q"'
S = 'model_name="q",engine_type="unified"'


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
    assert 0.025 < (rig.value("llm:itl_seconds:p99") or 0.0) <= 0.05


def test_both_token_gap_families_of_0_10_count_once() -> None:
    series = histogram("vllm:time_per_output_token_seconds", V, 20.0, 0.04, (0.05,))
    series |= histogram("vllm:inter_token_latency_seconds", V, 20.0, 0.03, (0.05,))
    assert Rig("vllm").drive(series).value("llm:itl_seconds:mean") == pytest.approx(0.03)


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
    rig.scrape(f"sglang:token_usage{{{S}}} -1\nsglang:lora_pool_utilization{{{S}}} -1\n")
    assert rig.value("llm:kv_ratio") is None
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
    assert rig.value("llm:requests:rate") == pytest.approx(5.5)
    assert rig.value("llm:rejected:rate") == pytest.approx(1.0)
    assert rig.value("llm:errors:rate") == pytest.approx(0.5)
    assert rig.value("llm:queue_seconds:mean") == pytest.approx(0.2)
    assert rig.value("llm:step_seconds:mean") == pytest.approx(0.03)
    for name in ("llm:ttft_seconds:mean", "llm:kv_ratio", "llm:prefix_hit_ratio", "llm:preemptions:rate"):
        assert rig.value(name) is None, name


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
    assert 0.1 < (rig.value("llm:ttft_seconds:p99") or 0.0) <= 0.5
    assert rig.value("llm:e2e_seconds:mean") == pytest.approx(1.5)
    assert rig.value("llm:queue_seconds:mean") == pytest.approx(0.25)


def test_real_triton_exposition_gives_running_waiting_and_kv() -> None:
    rig = Rig("triton")
    rig.scrape((METRICS / "trtllm_triton_inflight.prom").read_text(), times=6)
    assert rig.value("llm:running") == 1.0
    assert rig.value("llm:waiting") == 1.0
    assert rig.value("llm:kv_ratio") == 0.4875
    assert rig.value("llm:steps:rate") == 0.0


# -- GPU ----------------------------------------------------------------------------------------------------------


def test_real_dcgm_exposition_is_in_our_units() -> None:
    rig = Rig("vllm")
    rig.scrape((METRICS / "dcgm_kops_L4_scrape1.prom").read_text())
    assert rig.value("llm:gpu_temperature_celsius") == 31.0
    assert rig.value("llm:gpu_power_watts") == 16.365
    assert rig.value("llm:gpu_sm_clock_hertz") == 210e6
    assert rig.value("llm:gpu_memory_used_bytes") == 0.0
    assert rig.value("llm:gpu_memory_ratio") == 0.0
    assert rig.value("llm:gpu_row_remap_failed") == 0.0
    assert rig.value("llm:gpu_memory_temperature_celsius") is None  # an L4 has no such sensor and says 0
    for name in ("llm:gpu_row_remap_pending", "llm:gpu_recovery_action", "llm:gpu_critical_xids"):
        assert rig.value(name) is None, name


def test_dcgm_blank_is_no_value() -> None:
    rig = Rig("vllm")
    rig.scrape((METRICS / "dcgm_readme_blank_sentinel.prom").read_text())
    assert rig.value("llm:gpu_memory_temperature_celsius") is None
    assert rig.value("llm:gpu_sm_clock_hertz") == 139e6


@pytest.mark.parametrize("name", ["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"])
def test_dcgm_percent_becomes_a_ratio_under_both_names(name: str) -> None:
    rig = Rig("vllm")
    rig.scrape(
        f'{name}{{gpu="0",Hostname="h"}} 87\nDCGM_FI_DEV_FB_USED{{gpu="0"}} 3\nDCGM_FI_DEV_FB_FREE{{gpu="0"}} 1\n'
    )
    assert rig.value("llm:gpu_utilization_ratio") == pytest.approx(0.87)
    assert rig.value("llm:gpu_memory_used_bytes") == 3 * 1024 * 1024
    assert rig.value("llm:gpu_memory_ratio") == 0.75


@pytest.mark.parametrize("labels", ['gpu="0"', 'gpu="0",err_code="{}",err_msg="e{}"'], ids=["plain", "err_code"])
def test_last_xid_counts_only_after_it_changed_and_only_when_critical(labels: str) -> None:
    rig = Rig("vllm")

    def say(code: int, times: int) -> None:
        rig.scrape(f"DCGM_FI_DEV_XID_ERRORS{{{labels.format(code, code)}}} {code}\n", times=times, every_s=30.0)

    say(0, 12)
    assert rig.value("llm:gpu_critical_xids") is None
    say(13, 3)  # an application's fault
    assert rig.value("llm:gpu_critical_xids") is None
    say(79, 3)
    assert rig.value("llm:gpu_critical_xids") == 1.0
    say(79, 12)  # the gauge never goes back: long after, it is no news
    assert rig.value("llm:gpu_critical_xids") is None


def test_throttle_bits_are_told_apart() -> None:
    rig = Rig("vllm")
    rig.scrape('DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0"} 68\n')  # 64 hardware thermal + 4 power cap
    assert rig.value("llm:gpu_throttled_hw_thermal") == 1.0
    assert rig.value("llm:gpu_throttled_sw_thermal") == 0.0
    assert rig.value("llm:gpu_throttled_power_brake") == 0.0
    assert rig.value("llm:gpu_throttled_hw_slowdown") == 0.0


def test_one_sign_on_one_card_makes_the_node_unhealthy_and_no_sign_is_no_answer() -> None:
    rig = Rig("vllm")
    rig.scrape('DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0"} 0\nDCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="1"} 0\n')
    assert rig.value("llm:gpu_unhealthy") == 0.0
    rig.scrape('DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0"} 0\nDCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="1"} 1\n')
    assert rig.value("llm:gpu_unhealthy") == 1.0
    rig.scrape('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n')
    assert rig.value("llm:gpu_unhealthy") is None
