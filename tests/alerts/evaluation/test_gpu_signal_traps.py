"""Each trap of GPU metrics, as dcgm-exporter and our node emit them, through our signal rules."""

from __future__ import annotations

import pytest

from alerts.promql.nodes import metric_names
from tests.fixtures.signals import GROUPS, METRICS, Rig


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
    say(154, 3)  # the driver advises something since: what for was the code before, and is gone from the gauge
    assert rig.value("llm:gpu_critical_xids") == 1.0


def test_xids_of_links_are_told_apart_from_those_of_the_card() -> None:
    rig = Rig("vllm")
    rig.scrape('DCGM_FI_DEV_XID_ERRORS{gpu="0"} 0\n', times=12, every_s=30.0)
    rig.scrape('DCGM_FI_DEV_XID_ERRORS{gpu="0"} 145\n', times=3, every_s=30.0)
    assert rig.value("llm:gpu_link_xids") == 1.0
    assert rig.value("llm:gpu_critical_xids") is None
    rig.scrape('DCGM_FI_DEV_XID_ERRORS{gpu="0"} 145\n', times=12, every_s=30.0)
    assert rig.value("llm:gpu_link_xids") is None
    counting = Rig("vllm")
    counting.scrape('DCGM_EXP_XID_ERRORS_COUNT{gpu="0",xid="150"} 1\nDCGM_EXP_XID_ERRORS_COUNT{gpu="0",xid="13"} 1\n')
    assert counting.value("llm:gpu_link_xids") == 1.0


def test_throttle_bits_are_told_apart() -> None:
    rig = Rig("vllm")
    rig.scrape('DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0"} 68\n')  # 64 hardware thermal + 4 power cap
    assert rig.value("llm:gpu_throttled_hw_thermal") == 1.0
    assert rig.value("llm:gpu_throttled_sw_thermal") == 0.0
    assert rig.value("llm:gpu_throttled_power_brake") == 0.0
    assert rig.value("llm:gpu_throttled_hw_slowdown") == 0.0
    assert rig.value("llm:gpu_throttled_sw_power") == 1.0
    assert rig.value("llm:gpu_unhealthy") == 1.0
    rig.scrape('DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0"} 8\n')
    assert rig.value("llm:gpu_throttled_sw_power") == 0.0


@pytest.mark.parametrize(
    ("bit", "told"),
    [
        (1, None),  # idle
        (4, None),  # power cap
        (8, "hw_slowdown"),
        (32, "sw_thermal"),
        (64, "hw_thermal"),
        (128, "power_brake"),
        (256, None),  # display clocks
    ],
)
def test_each_throttle_bit_is_one_signal(bit: int, told: str | None) -> None:
    rig = Rig("vllm")
    rig.scrape(f'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{gpu="0"}} {bit}\n')
    names = ("hw_slowdown", "sw_thermal", "hw_thermal", "power_brake")
    assert {name: rig.value(f"llm:gpu_throttled_{name}") for name in names} == {
        name: float(name == told) for name in names
    }


def test_blank_of_every_field_is_no_value() -> None:
    """Whatever field is unsupported, its 9.22e18 is in no signal."""
    blank = "9223372036854775794"
    (group,) = [group for group in GROUPS if group.name == "signals_dcgm"]
    fields = {name for rule in group.rules for name in metric_names(rule.query.root) if name.startswith("DCGM_FI_")}
    assert len(fields) > 20
    rig = Rig("vllm")
    rig.scrape("".join(f'{field}{{gpu="0"}} {blank}\n' for field in sorted(fields)), times=8, every_s=60.0)
    # A card is there, whatever it cannot tell.
    counts = ("llm:gpu_count", "llm:gpu_exporter_cards")
    told = {rule.name: rig.value(rule.name) for rule in group.rules if rule.name not in counts}
    assert {name: value for name, value in told.items() if value} == {}


def test_one_sign_on_one_card_makes_the_node_unhealthy_and_no_sign_is_no_answer() -> None:
    rig = Rig("vllm")
    rig.scrape('DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0"} 0\nDCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="1"} 0\n')
    assert rig.value("llm:gpu_unhealthy") == 0.0
    rig.scrape('DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0"} 0\nDCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="1"} 1\n')
    assert rig.value("llm:gpu_unhealthy") == 1.0
    rig.scrape('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n')
    assert rig.value("llm:gpu_unhealthy") is None


def test_counter_that_stands_at_the_blank_has_not_counted_zero() -> None:
    blank = "9223372036854775794"
    names = (
        "ECC_DBE_VOL_TOTAL",
        "PCIE_REPLAY_COUNTER",
        "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    )
    signals = (
        "llm:gpu_uncorrected_ecc:increase",
        "llm:gpu_pcie_replays:rate",
        "llm:gpu_nvlink_recoveries:increase",
        "llm:gpu_nvlink_errors:rate",
    )
    blanks, zeros = Rig("vllm"), Rig("vllm")
    blanks.scrape("".join(f'DCGM_FI_DEV_{name}{{gpu="0"}} {blank}\n' for name in names), times=4, every_s=30.0)
    zeros.scrape("".join(f'DCGM_FI_DEV_{name}{{gpu="0"}} 0\n' for name in names), times=4, every_s=30.0)
    for signal in signals:
        assert (blanks.value(signal), zeros.value(signal)) == (None, 0.0), signal
    assert (blanks.value("llm:gpu_unhealthy"), zeros.value("llm:gpu_unhealthy")) == (None, 0.0)


def test_uncorrected_errors_that_start_again_with_the_driver_are_no_new_ones() -> None:
    rig = Rig("vllm")
    rig.scrape('DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0"} 5\n', times=6, every_s=30.0)
    rig.scrape('DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0"} 0\n', times=2, every_s=30.0)
    assert rig.value("llm:gpu_uncorrected_ecc:increase") == 0.0


def test_a_card_with_one_failed_reading_is_not_lost() -> None:
    rig = Rig("vllm")
    rig.scrape('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\nDCGM_FI_DEV_FB_USED{gpu="0"} 1\nDCGM_FI_DEV_FB_USED{gpu="1"} 1\n')
    assert rig.value("llm:gpu_count") == 2.0
    rig.scrape('DCGM_FI_DEV_FB_USED{gpu="0"} 1\nDCGM_FI_DEV_BOARD_POWER_WATTS{gpu="1"} 300\n')
    assert rig.value("llm:gpu_count") == 2.0
    rig.scrape("vllm:num_requests_running 1\n")
    assert rig.value("llm:gpu_count") is None
