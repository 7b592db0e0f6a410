"""GPU readings as series: DCGM's names and units where DCGM has the signal, `engine_gpu_*` for ours.

A reading that failed has no series, and one in `engine_gpu_reading_missing` that says why.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.gpu.reading import GpuReading, GpuSnapshot, GpuState, XidClass, class_of_xid

_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName")

# Reading: name, help. DCGM's counters do not end in _total, so the text format can only call them untyped.
GAUGES = {
    "gpu_util": ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %)."),
    "memory_util": ("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %)."),
    "memory_used_mib": ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB)."),
    "memory_free_mib": ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB)."),
    "memory_reserved_mib": ("DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB)."),
    "temperature": ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C)."),
    "memory_temperature": ("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C)."),
    "slowdown_at": ("engine_gpu_slowdown_celsius", "Temperature at which the hardware slows down."),
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W)."),
    "power_limit_w": ("engine_gpu_power_limit_watts", "Power limit in force."),
    "sm_clock": ("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz)."),
    "memory_clock": ("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz)."),
    "clock_events": ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "Clock event (throttle) reasons, a bit mask."),
    "row_remap_failure": ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed."),
    "row_remap_pending": ("DCGM_FI_DEV_ROW_REMAP_PENDING", "Whether a row waits for a reset to be remapped."),
    "nvlinks_up": ("engine_gpu_nvlinks_up", "NVLinks that are up."),
    "nvlinks_down": ("engine_gpu_nvlinks_down", "NVLinks that are down."),
    "recovery_action": ("DCGM_FI_DEV_GPU_RECOVERY_ACTION", "What the driver asks for; 0 is nothing."),
}
COUNTERS = {
    "energy_mj": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy since boot (in mJ)."),
    "ecc_sbe_volatile": ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Single-bit ECC errors since the driver was loaded."),
    "ecc_dbe_volatile": ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Double-bit ECC errors since the driver was loaded."),
    "ecc_sbe_aggregate": ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "Single-bit ECC errors of the card's life."),
    "ecc_dbe_aggregate": ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "Double-bit ECC errors of the card's life."),
    "remapped_correctable": ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors."),
    "remapped_uncorrectable": ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors."),
    "retired_sbe": ("DCGM_FI_DEV_RETIRED_SBE", "Pages retired for single-bit errors."),
    "retired_dbe": ("DCGM_FI_DEV_RETIRED_DBE", "Pages retired for double-bit errors."),
    "retired_pending": ("DCGM_FI_DEV_RETIRED_PENDING", "Pages that wait to be retired."),
    "pcie_replay": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe retries."),
    "nvlink_replay": ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLink replays, all links."),
    "nvlink_recovery": ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLink recoveries, all links."),
    "nvlink_crc_flit": ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLink flit CRC errors, all links."),
    "nvlink_crc_data": ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "NVLink data CRC errors, all links."),
}


class GpuCollector(Collector):
    """Turns the snapshot of the moment into series, at each scrape."""

    def __init__(self, snapshot: Callable[[float], GpuSnapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterator[Metric]:
        """Nothing to name beforehand: which series there are depends on the machine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The series of the last snapshot. Called at each scrape; never waits for the driver."""
        now = time.monotonic()
        snapshot = self._snapshot(now)
        state = GaugeMetricFamily("engine_gpu_state", "1 for the state of the GPU telemetry.", labels=("state",))
        for value in GpuState:
            state.add_metric((value.value,), float(value is snapshot.state))
        yield state
        if snapshot.gpus:
            age = GaugeMetricFamily("engine_gpu_reading_age_seconds", "Age of the readings.")
            age.add_metric((), now - snapshot.at)
            yield age
            yield from _readings(snapshot.gpus)
            yield from _judged(snapshot.gpus)


def _labels(gpu: GpuReading) -> tuple[str, ...]:
    return str(gpu.index), gpu.uuid, gpu.pci_bus_id, f"nvidia{gpu.index}", gpu.name


def _readings(gpus: tuple[GpuReading, ...]) -> Iterator[Metric]:
    for kind, table in (("gauge", GAUGES), ("unknown", COUNTERS)):
        for reading, (name, text) in table.items():
            family = Metric(name, text, kind)
            for gpu in gpus:
                if reading in gpu.values:
                    labels = dict(zip(_LABELS, _labels(gpu), strict=True))
                    family.add_sample(name, labels, gpu.values[reading])
            if family.samples:
                yield family


def _judged(gpus: tuple[GpuReading, ...]) -> Iterator[Metric]:
    card = GaugeMetricFamily("engine_gpu_card_state", "1 for the state of each card.", labels=("gpu", "UUID", "state"))
    event = GaugeMetricFamily(
        "engine_gpu_clock_event", "Throttle reasons in force, each bit.", labels=("gpu", "reason")
    )
    fault = GaugeMetricFamily("engine_gpu_fault", "Signs of a broken card: 1 is broken.", labels=("gpu", "fault"))
    missing = GaugeMetricFamily(
        "engine_gpu_reading_missing", "Why a reading has no value.", labels=("gpu", "reading", "why")
    )
    xids = CounterMetricFamily("engine_gpu_xids", "XIDs heard since the node started.", labels=("gpu", "class"))
    last = Metric("DCGM_FI_DEV_XID_ERRORS", "The last XID since the node started; 0 where none was.", "gauge")
    each = CounterMetricFamily("engine_gpu_xids_by_code", "XIDs heard, by number.", labels=("gpu", "xid"))
    for gpu in gpus:
        index = str(gpu.index)
        card.add_metric((index, gpu.uuid, gpu.state.value), 1.0)
        for name, is_on in gpu.clock_events().items():
            event.add_metric((index, name), float(is_on))
        for name, is_broken in gpu.faults().items():
            fault.add_metric((index, name), float(is_broken))
        for name, why in gpu.missing.items():
            missing.add_metric((index, name, why.value), 1.0)
        if gpu.xids is not None:
            counts: Counter[XidClass] = Counter()
            labels = dict(zip(_LABELS, _labels(gpu), strict=True))
            last.add_sample(last.name, labels, float(gpu.last_xid or 0))
            for xid, count in gpu.xids.items():
                counts[class_of_xid(xid)] += count
                each.add_metric((index, str(xid)), float(count))
            for kind in XidClass:
                xids.add_metric((index, kind.value), float(counts[kind]))
    for family in (card, event, fault, missing, xids, last, each):
        if family.samples:
            yield family
