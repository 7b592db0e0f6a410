"""Flows of the serving model under the names that each engine gives them. Sources: alerts/metrics_catalog.yaml."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from alerts.arrays import Floats
from diagnostics.bench.native_series import Labels, Level

_VLLM_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip  # one row as the engine's source has it
_VLLM_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_VLLM_TIMES = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
_SGLANG_TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_SGLANG_ITL = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.4,
    0.8,
    1,
    2,
    4,
    6,
    8,
)
_SGLANG_TIMES = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400)
_STEP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_QUEUE = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 50, 100)
_RATIOS = (0.5, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10)

_Quantities = dict[str, Floats]  # one node's flows and drivers, each (times,)


class _Writer:
    """Collects levels of one node."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.levels: list[Level] = []

    def gauge(self, name: str, value: Floats, **labels: str) -> None:
        self.levels.append(Level(name, "gauge", value, (*self.labels, *labels.items())))

    def counter(self, name: str, rate: Floats, *, is_exact: bool = False, **labels: str) -> None:
        self.levels.append(
            Level(name, "counter", rate, (*self.labels, *labels.items()), is_exact=is_exact, start=100.0)
        )

    def ended(self, name: str, rate: Floats, amount: Floats) -> None:
        """A counter that gets the amount of an event when it is over."""
        self.levels.append(Level(name, "counter", rate, self.labels, amount=amount, start=100.0))

    def histogram(
        self,
        name: str,
        rate: Floats,
        mean: Floats,
        sigma: Floats | float,
        bounds: tuple[float, ...],
        *,
        outlier_share: Floats | float = 0.0,
        outlier: Floats | float = 0.0,
        **labels: str,
    ) -> None:
        self.levels.append(
            Level(name, "histogram", mean, (*self.labels, *labels.items()), rate, sigma, bounds, outlier_share, outlier)
        )


def node_levels(engine: str, model: str, q: _Quantities) -> list[Level]:
    """The native series of one node. `q`: its flows and drivers by name."""
    return _ENGINES[engine](model, q)


def _vllm(model: str, q: _Quantities) -> list[Level]:
    out = _Writer((("engine", "0"), ("model_name", model)))
    _vllm_core(out, q)
    plain = _Writer(())
    served = q["arrivals"] - q["http_errors"]
    plain.counter("http_requests_total", served, handler="/v1/chat/completions", method="POST", status="2xx")
    plain.counter("http_requests_total", q["invalid"], handler="/v1/chat/completions", method="POST", status="4xx")
    if (q["http_errors"] > 0).any():
        plain.counter(
            "http_requests_total", q["http_errors"], handler="/v1/chat/completions", method="POST", status="5xx"
        )
    out.counter("vllm:admission_rejections_total", q["rejected"])
    _process(plain, q)
    return [*out.levels, *plain.levels]


def _vllm_core(out: _Writer, q: _Quantities) -> None:
    out.gauge("vllm:num_requests_running", np.round(q["running"]))
    out.gauge("vllm:num_requests_waiting", np.round(q["waiting"]))
    out.gauge("vllm:num_requests_waiting_by_reason", np.round(q["waiting"]), reason="capacity")
    out.gauge("vllm:kv_cache_usage_perc", q["kv_ratio"])
    tokens = q["admitted"] * q["prompt_tokens"]
    out.counter("vllm:prefix_cache_queries_total", tokens, is_exact=True)
    out.counter("vllm:prefix_cache_hits_total", tokens * q["hit_ratio"], is_exact=True)
    out.counter("vllm:prompt_tokens_total", tokens, is_exact=True)
    out.counter("vllm:generation_tokens_total", q["output_rate"])
    out.counter("vllm:num_preemptions_total", q["preemptions"])
    long_share = q["length_share"]
    out.counter("vllm:request_success_total", q["finished"] * (1 - long_share), finished_reason="stop")
    out.counter("vllm:request_success_total", q["finished"] * long_share, finished_reason="length")
    out.counter("vllm:request_success_total", q["aborted"], finished_reason="abort")
    out.counter("vllm:request_success_total", q["errors"], finished_reason="error")
    _first_tokens(out, "vllm:time_to_first_token_seconds", q, _VLLM_TTFT)
    out.histogram("vllm:inter_token_latency_seconds", q["output_rate"], q["itl"], q["itl_sigma"], _VLLM_ITL)
    out.histogram("vllm:request_time_per_output_token_seconds", q["finished"], q["itl"], 0.2, _VLLM_ITL)
    out.histogram("vllm:e2e_request_latency_seconds", q["finished"], q["e2e"], q["output_sigma"], _VLLM_TIMES)
    out.histogram("vllm:request_queue_time_seconds", q["admitted"], q["queue"], 0.8, _VLLM_TIMES)
    out.histogram("vllm:request_prefill_time_seconds", q["admitted"], q["prefill"], 0.5, _VLLM_TIMES)
    _prompt_lengths(out, "vllm:request_prompt_tokens", q)
    out.histogram("vllm:request_inference_time_seconds", q["finished"], _inference(q), q["output_sigma"], _VLLM_TIMES)
    out.histogram("vllm:request_generation_tokens", q["finished"], q["output_tokens"], q["output_sigma"], _TOKENS)
    out.gauge(
        "vllm:cache_config_info",
        np.ones_like(q["running"]),
        block_size="16",
        num_gpu_blocks=str(round(float(q["kv_tokens"][0]) / 16)),
        enable_prefix_caching="True",
    )
    out.counter("vllm:iteration_tokens_total_count", _steps(q), is_exact=True)
    out.counter("vllm:iteration_tokens_total_sum", q["output_rate"] + tokens * (1 - q["hit_ratio"]), is_exact=True)


def _fleetctl(model: str, q: _Quantities) -> list[Level]:
    out = _Writer((("model_name", model),))
    _vllm_core(out, q)
    own = _Writer(())
    stuck = q["stuck"]
    own.gauge("engine_core_up", np.ones_like(stuck))
    own.gauge("engine_core_stuck", _later(stuck, 2))
    own.gauge("engine_golden_ok", np.ones_like(stuck))
    own.gauge("engine_integrity_ok", np.ones_like(stuck))
    zero = np.zeros_like(stuck)
    for name in ("engine_core_deaths_total", "engine_core_restarts_total", "engine_oom_caught_total"):
        own.levels.append(Level(name, "counter", zero.copy()))
    own.counter("engine_requests_admitted_total", q["arrivals"] - q["rejected"])
    own.counter("engine_admission_rejected_total", q["rejected"], reason="queue_full")
    own.counter("engine_requests_total", q["invalid"], is_exact=True, state="invalid")
    own.gauge("engine_oldest_waiting_seconds", q["oldest_wait"])
    own.gauge("engine_oldest_running_seconds", np.where(q["running"] > 0.5, q["e2e"] * 1.8, 0.0))
    own.gauge("engine_longest_prompt_tokens", q["longest_prompt"], stage="prefill")
    own.gauge("engine_longest_prompt_tokens", zero.copy(), stage="waiting")
    own.gauge("engine_longest_prompt_tokens", np.where(q["running"] > 0.5, q["prompt_tokens"] * 2, 0.0), stage="decode")
    own.gauge("engine_prefill_requests", np.round(q["prefill_requests"]))
    own.gauge("engine_prefill_backlog_tokens", np.round(q["prefill_backlog"]))
    own.gauge("engine_longest_output_tokens", np.where(q["running"] > 0.5, q["output_tokens"] * 1.9, 0.0))
    own.gauge("engine_limit", q["seats"], limit="max_num_seqs")
    own.gauge("engine_swap_blocks_used", zero.copy())
    for state in ("loading", "warming_up", "ready", "draining", "core_dead", "core_stuck", "wrong_output"):
        own.gauge("engine_node_state", zero + (state == "ready"), state=state)
    own.histogram("engine_frontend_seconds", q["arrivals"], q["frontend"], 0.4, _QUEUE)
    own.histogram("engine_queue_wait_seconds", q["admitted"], q["queue"], 0.8, _QUEUE)
    own.histogram("engine_step_slowness_ratio", _steps(q), q["slow"] * q["slow_decode"], 0.05, _RATIOS, kind="decode")
    own.gauge("engine_drain_state", zero.copy(), state="draining")
    own.histogram("engine_step_seconds", _steps(q), q["step"], 0.1, _STEP, kind="decode")
    _process(own, q)
    return [*out.levels, *own.levels]


def _sglang(model: str, q: _Quantities) -> list[Level]:
    out = _Writer((("engine_type", "unified"), ("model_name", model), ("pp_rank", "0"), ("tp_rank", "0")))
    out.gauge("sglang:num_running_reqs", np.round(q["running"]))
    out.gauge("sglang:num_queue_reqs", np.round(q["waiting"]))
    out.gauge("sglang:token_usage", q["kv_ratio"])
    out.gauge("sglang:cache_hit_rate", q["hit_ratio"])
    out.gauge("sglang:gen_throughput", q["output_rate"])
    tokens = q["admitted"] * q["prompt_tokens"]
    out.counter("sglang:prompt_tokens_total", tokens, is_exact=True)
    out.counter("sglang:cached_tokens_total", tokens * q["hit_ratio"], is_exact=True, cache_source="device")
    out.counter("sglang:generation_tokens_total", q["output_rate"])
    out.counter("sglang:num_requests_total", q["finished"] + q["errors"])
    out.counter("sglang:num_aborted_requests_total", q["aborted"])
    out.counter("sglang:num_retracted_requests_total", q["preemptions"])
    out.counter("sglang:realtime_tokens_total", q["output_rate"], mode="decode")
    out.counter("sglang:realtime_tokens_total", tokens * (1 - q["hit_ratio"]), is_exact=True, mode="prefill_compute")
    out.counter("sglang:http_responses_total", q["arrivals"] - q["http_errors"], status_code="200")
    out.counter("sglang:http_responses_total", q["invalid"], is_exact=True, status_code="400")
    if (q["http_errors"] > 0).any():
        out.counter("sglang:http_responses_total", q["http_errors"], status_code="500")
    _first_tokens(out, "sglang:time_to_first_token_seconds", q, _SGLANG_TTFT)
    out.histogram("sglang:inter_token_latency_seconds", q["output_rate"], q["itl"], q["itl_sigma"], _SGLANG_ITL)
    out.histogram("sglang:request_time_per_output_token_seconds", q["finished"], q["itl"], 0.2, _SGLANG_ITL)
    out.histogram("sglang:e2e_request_latency_seconds", q["finished"], q["e2e"], q["output_sigma"], _SGLANG_TIMES)
    out.histogram("sglang:queue_time_seconds", q["admitted"], q["queue"], 0.8, _SGLANG_TIMES)
    out.histogram(
        "sglang:per_stage_req_latency_seconds", q["admitted"], q["prefill"], 0.5, _SGLANG_TIMES, stage="prefill_forward"
    )
    _prompt_lengths(out, "sglang:prompt_tokens_histogram", q)
    plain = _Writer(())
    _process(plain, q)
    return [*out.levels, *plain.levels]


def _trtllm(model: str, q: _Quantities) -> list[Level]:
    out = _Writer((("engine_type", "trtllm"), ("model_name", model)))
    out.gauge("trtllm_num_requests_running", np.round(q["running"]))
    out.gauge("trtllm_num_requests_waiting", np.round(q["waiting"]))
    out.gauge("trtllm_kv_cache_utilization", q["kv_ratio"])
    out.counter("trtllm_num_requests_completed_total", q["finished"] + q["errors"])
    out.counter("trtllm_request_success_total", q["finished"], finished_reason="stop")
    out.counter("trtllm_request_success_total", q["aborted"], finished_reason="abort")
    if (q["errors"] > 0).any():
        out.counter("trtllm_request_error_total", q["errors"], http_code="500")
    out.counter("trtllm_request_error_total", q["invalid"], is_exact=True, http_code="400")
    tokens = q["admitted"] * q["prompt_tokens"]
    out.counter("trtllm_prompt_tokens_total", tokens, is_exact=True)
    out.counter("trtllm_prompt_cached_tokens_total", tokens * q["hit_ratio"], is_exact=True)
    out.counter("trtllm_generation_tokens_total", q["output_rate"])
    out.histogram("trtllm_time_to_first_token_seconds", q["admitted"], q["ttft"], q["ttft_sigma"], _VLLM_TTFT)
    out.histogram("trtllm_time_per_output_token_seconds", q["finished"], q["itl"], q["itl_sigma"], _VLLM_ITL)
    out.histogram("trtllm_e2e_request_latency_seconds", q["finished"], q["e2e"], q["output_sigma"], _VLLM_TIMES)
    out.histogram("trtllm_request_queue_time_seconds", q["admitted"], q["queue"], 0.8, _VLLM_TIMES)
    out.histogram("trtllm_request_prefill_time_seconds", q["admitted"], q["prefill"], 0.5, _VLLM_TIMES)
    plain = _Writer(())
    _process(plain, q)
    return [*out.levels, *plain.levels]


def _tgi(model: str, q: _Quantities) -> list[Level]:
    del model  # nothing of TGI has a label for it
    out = _Writer(())
    out.gauge("tgi_batch_current_size", np.round(q["running"]))
    out.gauge("tgi_queue_size", np.round(q["waiting"]))
    out.counter("tgi_request_count", q["arrivals"])
    out.counter("tgi_request_success", q["finished"])
    if (q["errors"] > 0).any():
        out.counter("tgi_request_failure", q["errors"], err="generation")
    if (q["rejected"] > 0).any():
        out.counter("tgi_request_failure", q["rejected"], err="overloaded")
    out.counter("tgi_request_failure", q["invalid"], is_exact=True, err="validation")
    out.histogram("tgi_request_duration", q["finished"], q["e2e"], q["output_sigma"], _VLLM_TIMES)
    out.histogram("tgi_request_queue_duration", q["admitted"], q["queue"], 0.8, _VLLM_TIMES)
    out.histogram("tgi_request_validation_duration", q["arrivals"], q["frontend"], 0.4, _QUEUE)
    out.histogram("tgi_request_input_length", q["admitted"], q["plain_prompt_tokens"], q["prompt_sigma"], _TOKENS)
    out.histogram("tgi_request_generated_tokens", q["finished"], q["output_tokens"], q["output_sigma"], _TOKENS)
    out.histogram("tgi_request_mean_time_per_token_duration", q["finished"], q["itl"], 0.2, _VLLM_ITL)
    out.histogram("tgi_batch_forward_duration", _steps(q), q["step"], 0.15, _VLLM_ITL, method="decode")
    out.histogram("tgi_batch_inference_duration", _steps(q), q["step"], 0.15, _VLLM_ITL, method="decode")
    out.histogram("tgi_batch_inference_duration", q["admitted"], q["prefill"], 0.5, _VLLM_TIMES, method="prefill")
    out.counter("tgi_batch_inference_count", _steps(q), is_exact=True, method="decode")
    return out.levels


def _llamacpp(model: str, q: _Quantities) -> list[Level]:
    del model  # nothing of llama.cpp's server has a label for it
    out = _Writer(())
    out.gauge("llamacpp:requests_processing", np.round(q["running"]))
    out.gauge("llamacpp:requests_deferred", np.round(q["waiting"]))
    # A prompt counts at its first token, an answer at its last. Of prompts only those tokens that it computed.
    out.ended("llamacpp:prompt_tokens_total", q["admitted"], q["prompt_tokens"] * (1 - q["hit_ratio"]))
    out.ended("llamacpp:prompt_tokens_cached_total", q["admitted"], q["prompt_tokens"] * q["hit_ratio"])
    out.ended("llamacpp:prompt_seconds_total", q["admitted"], q["prefill"])
    over = q["finished"] + q["errors"] + q["aborted"]
    out.ended("llamacpp:tokens_predicted_total", over, q["output_tokens"])
    out.ended("llamacpp:tokens_predicted_seconds_total", over, q["output_tokens"] * q["itl"])
    out.counter("llamacpp:n_decode_total", _steps(q), is_exact=True)
    return out.levels


def gpu_levels(q: _Quantities, rng: np.random.Generator) -> list[Level]:
    """One healthy card under this work, as dcgm-exporter has it. Faults are changes of these series."""
    out = _Writer((("gpu", "0"),))
    busy = q["busy"]
    smooth = np.convolve(busy, np.ones(12) / 12, mode="same")
    noise = rng.standard_normal(len(busy))
    zero = np.zeros_like(busy)
    out.gauge("DCGM_FI_DEV_GPU_UTIL", np.round(100 * smooth))
    out.gauge("DCGM_FI_DEV_GPU_TEMP", np.round(42 + 22 * smooth + 0.7 * noise))
    out.gauge("DCGM_FI_DEV_MEMORY_TEMP", np.round(48 + 26 * smooth + 0.7 * noise))
    out.gauge("DCGM_FI_DEV_POWER_USAGE", np.round(80 + 220 * smooth + 4 * noise, 1))
    out.gauge("DCGM_FI_DEV_SM_CLOCK", np.where(np.abs(noise) > 2, 1395.0, 1410.0))
    out.gauge("DCGM_FI_DEV_FB_USED", zero + 71_000)
    out.gauge("DCGM_FI_DEV_FB_FREE", zero + 9_900)
    out.gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.18 * smooth)
    out.gauge("DCGM_FI_DEV_XID_ERRORS", zero.copy())
    out.gauge("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", zero.copy())
    out.gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", zero.copy())
    out.gauge("DCGM_FI_DEV_ROW_REMAP_PENDING", zero.copy())
    for name in (
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    ):
        out.levels.append(Level(name, "counter", zero.copy(), out.labels))
    return out.levels


def gateway_levels(nodes: list[str], by_node: dict[str, _Quantities]) -> list[Level]:
    """The gateway before these nodes: what users see of them."""
    out = _Writer(())
    first = by_node[nodes[0]]
    admitted = np.sum([by_node[node]["admitted"] for node in nodes], axis=0)
    ttft = np.sum([by_node[node]["admitted"] * by_node[node]["ttft"] for node in nodes], axis=0)
    mean = ttft / np.maximum(admitted, 1e-9) + first["network_seconds"]
    out.histogram("gateway_ttft_seconds", admitted, mean, first["ttft_sigma"], _VLLM_TTFT)
    zero = np.zeros_like(mean)
    for node in nodes:
        q = by_node[node]
        out.counter("gateway_requests_total", q["finished"], node=node, outcome="finished")
        out.counter("gateway_requests_total", q["aborted"], node=node, outcome="cancelled")
        out.counter("gateway_requests_total", q["errors"] + q["http_errors"], node=node, outcome="failed")
        out.gauge("gateway_inflight_requests", np.round(q["running"] + q["waiting"]), node=node)
        out.gauge("gateway_oldest_wait_seconds", q["oldest_wait"], node=node)
        for reason in ("reset", "server_error"):
            out.gauge("gateway_node_ejected", zero.copy(), node=node, reason=reason)
        out.gauge("gateway_node_silent", zero.copy(), node=node)
    out.gauge("gateway_fail_open", zero.copy())
    out.gauge("gateway_queue_requests", zero.copy())
    out.gauge("gateway_queue_oldest_wait_seconds", zero.copy())
    out.gauge("gateway_table_age_seconds", zero + 1)
    out.gauge("gateway_workers", zero + 1)
    for name in ("gateway_retry_budget_exhausted_total", "gateway_worker_deaths_total", "gateway_retries_total"):
        out.levels.append(Level(name, "counter", zero.copy()))
    return out.levels


def _inference(q: _Quantities) -> Floats:
    """Prefill and decode, as vLLM counts them: without the frontend and the queue."""
    found: Floats = q["prefill"] + q["output_tokens"] * q["itl"]
    return found


def _steps(q: _Quantities) -> Floats:
    return np.where((q["running"] > 0.3) & (q["stuck"] < 0.5), 1 / np.maximum(q["itl"], 1e-3), 0.0)


def _first_tokens(out: _Writer, name: str, q: _Quantities, bounds: tuple[float, ...]) -> None:
    out.histogram(
        name,
        q["admitted"],
        q["ttft"],
        q["ttft_sigma"],
        bounds,
        outlier_share=q["giant_share"],
        outlier=q["giant_ttft"],
    )


def _prompt_lengths(out: _Writer, name: str, q: _Quantities) -> None:
    out.histogram(
        name,
        q["finished"],
        q["plain_prompt_tokens"],
        q["prompt_sigma"],
        _TOKENS,
        outlier_share=q["giant_share"],
        outlier=q["giant_tokens"],
    )


def _process(out: _Writer, q: _Quantities) -> None:
    out.counter("process_cpu_seconds_total", q["frontend_cpu"], is_exact=True)
    out.gauge("process_start_time_seconds", q["started_at"])


def _later(values: Floats, steps: int) -> Floats:
    return np.concatenate((np.repeat(values[:1], steps), values[:-steps]))


_ENGINES: dict[str, Callable[[str, _Quantities], list[Level]]] = {
    "vllm": _vllm,
    "fleetctl": _fleetctl,
    "sglang": _sglang,
    "trtllm": _trtllm,
    "tgi": _tgi,
    "llamacpp": _llamacpp,
}
