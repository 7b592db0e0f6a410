"""GPU telemetry through the real binding and a driver library of our own: values, units, ways to know nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.gpu.reading import GpuReading, GpuSnapshot, GpuState, XidClass, class_of_xid
from tests.fixtures.engine import EngineNode, start_node, wait_for
from tests.fixtures.nvml import FakeNvml, build_fake_nvml

DRIVER_NOT_LOADED, NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, MISMATCH, RESET_REQUIRED, UNKNOWN = (
    9,
    3,
    4,
    15,
    18,
    16,
    999,
)
FAULTS = {
    "hw_slowdown",
    "hw_thermal",
    "hw_power_brake",
    "ecc_uncorrected",
    "row_remap_failed",
    "recovery_action",
    "xid_reset",
    "lost",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    return build_fake_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def running(library: FakeNvml, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with pytest.MonkeyPatch.context() as patch:
        library.use(patch)
        library.set(count=2, power_mw__1=250_000)
        with start_node(tmp_path_factory.mktemp("gpu"), extra_args=("--gpu-poll", "0.1")) as node:
            yield node


@pytest.fixture
def node(running: EngineNode, library: FakeNvml) -> EngineNode:
    """Two healthy cards."""
    library.set(count=2, power_mw__1=250_000)
    wait_for(lambda: state_of(running) == "ok" and not missing(running), "healthy cards")
    return running


def state_of(node: EngineNode) -> str:
    text = node.http.get("/metrics").text
    states = [line for line in text.splitlines() if line.startswith("engine_gpu_state{") and line.endswith(" 1.0")]
    assert len(states) == 1, states
    return states[0].split('"')[1]


def missing(node: EngineNode) -> list[str]:
    return [
        line for line in node.http.get("/metrics").text.splitlines() if line.startswith("engine_gpu_reading_missing{")
    ]


def fault(node: EngineNode, name: str, gpu: int = 0) -> float | None:
    return node.metric("engine_gpu_fault", gpu=str(gpu), fault=name)


def test_readings_carry_dcgms_names_units_and_labels(node: EngineNode) -> None:
    wait_for(lambda: node.metric("DCGM_FI_DEV_POWER_USAGE", gpu="1") == 250, "the second card's power")
    expected = {
        "DCGM_FI_DEV_GPU_UTIL": 87,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 42,
        "DCGM_FI_DEV_FB_USED": 60928,
        "DCGM_FI_DEV_FB_FREE": 20480,
        "DCGM_FI_DEV_FB_RESERVED": 512,
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_MEMORY_TEMP": 70,
        "DCGM_FI_DEV_POWER_USAGE": 300,
        "engine_gpu_power_limit_watts": 700,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123456789,
        "DCGM_FI_DEV_SM_CLOCK": 1980,
        "DCGM_FI_DEV_MEM_CLOCK": 2619,
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 0,
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 0,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0,
        "DCGM_FI_DEV_RETIRED_DBE": 0,
        "DCGM_FI_DEV_RETIRED_PENDING": 0,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0,
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 1 + 2 + 3 + 4,
        "engine_gpu_nvlinks_up": 4,
        "engine_gpu_nvlinks_down": 0,
        "DCGM_FI_DEV_GPU_RECOVERY_ACTION": 0,
        "engine_gpu_slowdown_celsius": 95,
    }
    labels = {"gpu": "0", "UUID": "GPU-fake-0", "pci_bus_id": "00000000:01:00.0", "device": "nvidia0"}
    assert {name: node.metric(name, **labels) for name in expected} == expected
    assert node.metric("DCGM_FI_DEV_GPU_TEMP", modelName="NVIDIA Fake 80GB", gpu="1") == 61
    assert missing(node) == []


def test_healthy_cards_have_every_fault_known_and_none_set(node: EngineNode) -> None:
    assert {name: fault(node, name) for name in FAULTS} == dict.fromkeys(FAULTS, 0)


@pytest.mark.parametrize(
    ("bit", "reason", "is_fault"),
    [
        (0x1, "gpu_idle", False),
        (0x4, "power_cap", False),
        (0x8, "hw_slowdown", True),
        (0x20, "sw_thermal", False),
        (0x40, "hw_thermal", True),
        (0x80, "hw_power_brake", True),
        (0x400, "reliability", False),
    ],
)
def test_each_throttle_bit_is_a_series(
    node: EngineNode, library: FakeNvml, bit: int, reason: str, is_fault: bool
) -> None:
    library.set(count=2, clock_events__0=bit)
    wait_for(lambda: node.metric("engine_gpu_clock_event", gpu="0", reason=reason) == 1, reason)
    lines = node.http.get("/metrics").text.splitlines()
    on = [line for line in lines if line.startswith('engine_gpu_clock_event{gpu="0"') and line.endswith(" 1.0")]
    assert len(on) == 1, "one bit is one series"
    assert node.metric("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", gpu="0") == bit
    assert any(fault(node, name) for name in FAULTS) == is_fault
    assert not any(fault(node, name, gpu=1) for name in FAULTS)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"ecc_dbe_vol": 1}, "ecc_uncorrected"),
        ({"row_remap_failure": 1}, "row_remap_failed"),
        ({"field__230": 1}, "recovery_action"),
    ],
)
def test_signs_of_a_broken_card(node: EngineNode, library: FakeNvml, change: dict[str, int], name: str) -> None:
    library.set(count=2, **{f"{key}__0": value for key, value in change.items()})
    wait_for(lambda: fault(node, name) == 1, name)
    assert fault(node, name, gpu=1) == 0


def test_corrected_errors_are_counted_and_no_fault(node: EngineNode, library: FakeNvml) -> None:
    library.set(count=2, ecc_sbe_vol=12, remapped_correctable=3, row_remap_pending=1)
    wait_for(lambda: node.metric("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", gpu="0") == 12, "the count")
    assert node.metric("DCGM_FI_DEV_ROW_REMAP_PENDING", gpu="0") == 1
    assert not any(fault(node, name) for name in FAULTS)


@pytest.mark.parametrize(
    ("code", "why"), [(NOT_SUPPORTED, "unsupported"), (NO_PERMISSION, "no_permission"), (UNKNOWN, "error")]
)
def test_what_can_not_be_read_is_absent_with_its_reason(
    node: EngineNode, library: FakeNvml, code: int, why: str
) -> None:
    library.set(count=2, fail__nvmlDeviceGetTotalEccErrors__0=code)
    wait_for(lambda: node.metric("engine_gpu_reading_missing", gpu="0", reading="ecc_dbe_volatile", why=why) == 1, why)
    assert node.metric("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", gpu="0") is None
    assert fault(node, "ecc_uncorrected") is None, "unknown, not fine"
    assert node.metric("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", gpu="1") == 0
    assert state_of(node) == "ok"


@pytest.mark.parametrize(("code", "state"), [(GPU_IS_LOST, "lost"), (RESET_REQUIRED, "reset_required")])
def test_a_lost_card_has_no_readings_and_is_a_fault(node: EngineNode, library: FakeNvml, code: int, state: str) -> None:
    library.set(count=2, fail__all__1=code)
    wait_for(lambda: state_of(node) == state, "the loss to be noticed")
    assert node.metric("engine_gpu_card_state", gpu="1", state=state) == 1
    assert node.metric("engine_gpu_card_state", gpu="0", state="ok") == 1
    assert node.metric("DCGM_FI_DEV_GPU_TEMP", gpu="1") is None
    assert fault(node, "lost", gpu=1) == 1
    assert fault(node, "hw_slowdown", gpu=1) is None
    assert node.metric("DCGM_FI_DEV_GPU_TEMP", gpu="0") == 61


def test_a_value_that_means_no_value_is_absent(node: EngineNode, library: FakeNvml) -> None:
    library.set(count=2, energy_mj__0=2**63 - 1)
    wait_for(lambda: node.metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", gpu="0") is None, "the value to go")
    assert node.metric("engine_gpu_reading_missing", gpu="0", reading="energy", why="unsupported") == 1


def test_xids_are_heard_and_classified(library: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.use(monkeypatch)
    library.set()
    # A poll that never comes again: the readings after an XID are brought about by the event itself.
    with start_node(tmp_path, extra_args=("--gpu-poll", "600")) as fresh:
        assert fresh.metric("engine_gpu_xids_total", gpu="0", **{"class": "reset"}) == 0
        assert fresh.metric("DCGM_FI_DEV_XID_ERRORS", gpu="0") == 0, "DCGM's way to say that none was heard"
        library.set(xid__seq=1, xid__code=43)
        wait_for(lambda: fresh.metric("engine_gpu_xids_total", gpu="0", **{"class": "application"}) == 1, "the XID")
        assert fault(fresh, "xid_reset") == 0, "the program's fault is not the card's"
        library.set(xid__seq=2, xid__code=79)
        wait_for(lambda: fresh.metric("engine_gpu_xids_total", gpu="0", **{"class": "replace"}) == 1, "the XID")
        assert fault(fresh, "xid_reset") == 1
        assert fresh.metric("DCGM_FI_DEV_XID_ERRORS", gpu="0") == 79
        assert fresh.metric("engine_gpu_xids_by_code_total", gpu="0", xid="43") == 1


@pytest.mark.parametrize(
    ("control", "state"),
    [
        ({"fail__nvmlInitWithFlags": DRIVER_NOT_LOADED}, "no_driver"),
        ({"fail__nvmlInitWithFlags": MISMATCH}, "driver_mismatch"),
        ({"fail__nvmlInitWithFlags": NO_PERMISSION}, "no_permission"),
        ({"count": 0}, "no_gpu"),
    ],
    ids=["no-driver", "mismatch", "no-permission", "no-gpu"],
)
def test_why_there_is_no_reading_is_a_state_of_its_own(
    library: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control: dict[str, int], state: str
) -> None:
    library.use(monkeypatch)
    library.set(**control)
    with start_node(tmp_path) as bare:
        wait_for(lambda: state_of(bare) == state, state)
        text = bare.http.get("/metrics").text
        assert "DCGM_" not in text
        assert "engine_gpu_fault" not in text


def test_without_a_driver_library_a_node_serves_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if any(Path("/dev").glob("nvidia[0-9]")):
        pytest.skip("this machine has a GPU")
    with start_node(tmp_path) as bare:
        wait_for(lambda: state_of(bare) == "no_driver", "the state")
        assert "DCGM_" not in bare.http.get("/metrics").text


def test_a_process_sees_only_the_cards_it_may_use(
    library: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.use(monkeypatch)
    library.set(count=4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-fake-3")
    with start_node(tmp_path) as chosen:
        wait_for(lambda: state_of(chosen) == "ok", "the cards")
        seen = {index: chosen.metric("DCGM_FI_DEV_GPU_TEMP", gpu=str(index)) for index in range(4)}
        assert seen == {0: None, 1: 61, 2: None, 3: 61}


def test_a_driver_that_does_not_come_back_never_stops_the_node(
    library: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.use(monkeypatch)
    library.set(hang__nvmlDeviceGetUtilizationRates=1)
    with start_node(tmp_path, extra_args=("--gpu-poll", "0.1")) as node:
        answer = node.http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 3})
        assert answer.status_code == 200
        assert "DCGM_" not in node.http.get("/metrics").text
        node.proc.terminate()
        assert node.proc.wait(timeout=60) == 0


def test_old_readings_say_nothing_but_that_the_driver_stalls() -> None:
    taken = GpuSnapshot(GpuState.OK, at=100.0, gpus=(GpuReading(0, values={"temperature": 60}),))
    assert taken.as_of(110.0, patience_s=15.0) is taken
    late = taken.as_of(116.0, patience_s=15.0)
    assert (late.state, late.gpus) == (GpuState.STALLED, ())


def test_what_was_not_read_is_no_fault_and_no_health() -> None:
    assert GpuReading(0).faults() == {"lost": False}
    assert GpuReading(0).clock_events() == {}
    assert GpuReading(0, xids={43: 5, 94: 1}).faults()["xid_reset"] is False
    assert GpuReading(0, xids={119: 1}).faults()["xid_reset"] is True


def test_unknown_xids_are_recorded_and_ask_for_nothing() -> None:
    assert class_of_xid(154) is XidClass.OTHER
    assert class_of_xid(9999) is XidClass.OTHER
