"""Traps of what engines tell of keys, sleep, drafts, and of KV that is sent between nodes or kept below them."""

from __future__ import annotations

import pytest

from tests.fixtures.signals import Rig, S, V


def test_a_vllm_rank_that_is_not_awake_is_asleep() -> None:
    rig = Rig("vllm")
    rig.scrape(
        'vllm:engine_sleep_state{engine="0",model_name="q",sleep_state="awake"} 1\n'
        'vllm:engine_sleep_state{engine="1",model_name="q",sleep_state="awake"} 0\n'
        'vllm:engine_sleep_state{engine="1",model_name="q",sleep_state="weights_offloaded"} 1\n'
    )
    assert rig.value("llm:asleep") == 1.0


def test_requests_that_a_pause_of_sglang_holds_make_it_asleep() -> None:
    rig = Rig("sglang")
    rig.scrape(f'sglang:num_paused_reqs{{{S},pid="7"}} 4\n')
    assert rig.value("llm:asleep") == 1.0
    rig.scrape(f'sglang:num_paused_reqs{{{S},pid="7"}} 0\n')
    assert rig.value("llm:asleep") == 0.0


def test_refused_keys_and_missing_models_are_told_apart_and_are_none_before_the_first() -> None:
    responses = 'sglang:http_responses_total{endpoint="/v1/chat/completions",method="POST",status_code="%s"}'
    rig = Rig("sglang").drive({responses % "200": (0.0, 3.0), responses % "401": (0.0, 2.0)})
    assert rig.value("llm:unauthorized:rate") == pytest.approx(2.0)
    assert rig.value("llm:not_found:rate") == 0.0
    assert rig.value("llm:invalid:rate") == pytest.approx(2.0)
    errors = 'trtllm_request_error_total{http_code="%s"}'
    rig = Rig("trtllm").drive({errors % "404": (0.0, 1.0), errors % "500": (0.0, 1.0)})
    assert rig.value("llm:not_found:rate") == pytest.approx(1.0)
    assert rig.value("llm:unauthorized:rate") == 0.0


def test_queues_of_both_sides_of_a_transfer_add_up_and_tensor_ranks_are_copies() -> None:
    rig = Rig("sglang")
    ranks = [f'{{{S},tp_rank="{rank}"}}' for rank in (0, 1)]
    names = ("prefill_bootstrap", "prefill_inflight", "decode_transfer", "decode_prealloc")
    rig.scrape("".join(f"sglang:num_{name}_queue_reqs{rank} 2\n" for name in names for rank in ranks))
    assert rig.value("llm:kv_transfers_waiting") == 6.0  # those in prealloc wait for room


def test_failures_of_transfers_are_known_to_be_none_where_there_is_a_connector() -> None:
    rig = Rig("vllm").drive({f"vllm:nixl_num_failed_transfers_total{{{V}}}": (0.0, 0.0)})
    assert rig.value("llm:kv_transfer_failures:rate") == 0.0
    failed, expired = f"vllm:nixl_num_failed_transfers_total{{{V}}}", f"vllm:nixl_num_kv_expired_reqs_total{{{V}}}"
    rig = Rig("vllm").drive({failed: (0.0, 1.0), expired: (0.0, 0.5)}, seconds=90)
    assert rig.value("llm:kv_transfer_failures:rate") == pytest.approx(1.5)
    assert Rig("vllm").drive({}).value("llm:kv_transfer_failures:rate") is None


def test_sglang_sends_in_milliseconds() -> None:
    name = "sglang:kv_transfer_latency_ms"
    rig = Rig("sglang").drive({f"{name}_sum{{{S}}}": (0.0, 400.0), f"{name}_count{{{S}}}": (0.0, 2.0)})
    assert rig.value("llm:kv_transfer_seconds:mean") == pytest.approx(0.2)


def test_what_a_tier_below_gives_back_is_a_share_of_what_the_card_did_not_hold() -> None:
    tokens = f'sglang:prefill_effective_tokens_total{{{S},mode="%s"}}'
    of_mode = {"device_hit": 50.0, "host_hit": 20.0, "storage_hit": 10.0, "input": 20.0}
    rig = Rig("sglang").drive({tokens % mode: (0.0, rate) for mode, rate in of_mode.items()}, seconds=90)
    assert rig.value("llm:external_hit_ratio") == pytest.approx(0.6)
    assert rig.value("llm:local_hit_ratio") == pytest.approx(0.5)


def test_acceptance_of_drafts_stands_still_while_sglang_is_idle_and_is_then_unknown() -> None:
    rig = Rig("sglang")
    rig.scrape(f"sglang:spec_accept_rate{{{S}}} 0.7\nsglang:num_running_reqs{{{S}}} 2\n")
    assert rig.value("llm:draft_acceptance_ratio") == 0.7
    rig.scrape(f"sglang:spec_accept_rate{{{S}}} 0.7\nsglang:num_running_reqs{{{S}}} 0\n")
    assert rig.value("llm:draft_acceptance_ratio") is None


@pytest.mark.parametrize(("per_s", "wanted"), [(0.0, 1.0), (0.1, 0.0)])
def test_answers_with_nan_fail_the_output_check_of_vllm(per_s: float, wanted: float) -> None:
    rig = Rig("vllm").drive({f"vllm:corrupted_requests_total{{{V}}}": (0.0, per_s)})
    assert rig.value("llm:output_ok") == wanted


def test_paused_requests_are_a_share_of_all_that_have_begun() -> None:
    gauges = "trtllm_num_requests_running 6\ntrtllm_num_paused_requests 2\n"
    rig = Rig("trtllm").drive({"trtllm_num_requests_completed_total": (0.0, 1.0)}, gauges=gauges)
    assert rig.value("llm:paused_ratio") == pytest.approx(0.25)


def test_a_row_is_remapped_and_a_blank_field_is_no_row() -> None:
    name = 'DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{gpu="0"}'
    rig = Rig("vllm", gpu="0")
    for value in (0, 0, 1, 1):
        rig.scrape(f"{name} {value}", every_s=30)
    assert (rig.value("llm:gpu_rows_remapped:increase") or 0.0) > 0
    blank = Rig("vllm", gpu="0")
    blank.scrape(f"{name} 9223372036854775794", times=4)
    assert blank.value("llm:gpu_rows_remapped:increase") is None


def test_the_exporters_own_count_of_clock_events_tells_the_reason() -> None:
    rig = Rig("vllm", gpu="0")
    rig.scrape('DCGM_EXP_CLOCK_EVENTS_COUNT{gpu="0",clock_event="hw_thermal",window_size_in_ms="300000"} 3\n')
    assert rig.value("llm:gpu_throttled_hw_thermal") == 1.0
    assert rig.value("llm:gpu_throttled_power_brake") is None


def test_who_finds_no_room_in_vllm_is_answered_503_and_has_not_failed() -> None:
    refused, failed = f"vllm:admission_rejections_total{{{V}}}", 'http_requests_total{status="5xx"}'
    rig = Rig("vllm").drive({refused: (0.0, 2.0), failed: (0.0, 2.0)})
    assert (rig.value("llm:rejected:rate"), rig.value("llm:failed:rate")) == (pytest.approx(2.0), pytest.approx(0.0))
    assert Rig("vllm").drive({failed: (0.0, 2.0)}).value("llm:failed:rate") == pytest.approx(2.0)


def test_a_health_route_of_sglang_that_answers_503_is_no_request_that_failed() -> None:
    responses = 'sglang:http_responses_total{endpoint="%s",method="POST",status_code="503"}'
    rig = Rig("sglang").drive({responses % "/health_generate": (0.0, 1.0), responses % "/v1/completions": (0.0, 0.5)})
    assert rig.value("llm:failed:rate") == pytest.approx(0.5)


def test_the_time_of_a_token_is_the_step_of_trtllm() -> None:
    name = 'trtllm_time_per_output_token_seconds_%s{model_name="q"}'
    rig = Rig("trtllm").drive({name % "sum": (0.0, 0.06), name % "count": (0.0, 2.0)})
    assert rig.value("llm:step_seconds:mean") == pytest.approx(0.03)
