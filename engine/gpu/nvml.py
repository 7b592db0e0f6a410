"""Readings of the GPUs through NVIDIA's management library (pynvml). Everything here may block: one thread calls it."""

from __future__ import annotations

import ctypes
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pynvml
import structlog

from engine.gpu.reading import GpuReading, GpuSnapshot, GpuState

log = structlog.get_logger()

_SENTINEL = 1e18  # drivers report "no value" as a number near 2^63
_MIB = 2**20

_STATES = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: GpuState.UNSUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: GpuState.UNSUPPORTED,  # an older driver
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: GpuState.UNSUPPORTED,
    pynvml.NVML_ERROR_DEPRECATED: GpuState.UNSUPPORTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: GpuState.UNSUPPORTED,  # a sensor or a link that this card lacks
    pynvml.NVML_ERROR_NO_PERMISSION: GpuState.NO_PERMISSION,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: GpuState.NO_DRIVER,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: GpuState.NO_DRIVER,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: GpuState.DRIVER_MISMATCH,
    pynvml.NVML_ERROR_GPU_IS_LOST: GpuState.LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: GpuState.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: GpuState.RESET_REQUIRED,
}

Read = Callable[[Any], dict[str, float]]


def _state_of(error: pynvml.NVMLError) -> GpuState:
    return _STATES.get(error.value, GpuState.ERROR)


def _field(field_id: int, name: str) -> Read:
    def read(handle: Any) -> dict[str, float]:
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [field_id])
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(value.nvmlReturn)
        member = {
            pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
            pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
            pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        }.get(value.valueType)
        if member is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return {name: float(getattr(value.value, member))}

    return read


def _utilization(handle: Any) -> dict[str, float]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_util": rates.gpu, "memory_util": rates.memory}


def _memory(handle: Any) -> dict[str, float]:
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        reserved = {"memory_reserved_mib": info.reserved / _MIB}
    except pynvml.NVMLError as error:
        if _state_of(error) is not GpuState.UNSUPPORTED:
            raise
        info, reserved = pynvml.nvmlDeviceGetMemoryInfo(handle), {}
    return {"memory_used_mib": info.used / _MIB, "memory_free_mib": info.free / _MIB, **reserved}


def _remapped_rows(handle: Any) -> dict[str, float]:
    names = ("remapped_correctable", "remapped_uncorrectable", "row_remap_pending", "row_remap_failure")
    return dict(zip(names, pynvml.nvmlDeviceGetRemappedRows(handle), strict=True))


def _nvlink(handle: Any) -> dict[str, float]:
    """Sums over the links that are up. A card without any has no reading."""
    counters = {
        "nvlink_replay": pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
        "nvlink_recovery": pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
        "nvlink_crc_flit": pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
        "nvlink_crc_data": pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
    }
    sums = dict.fromkeys(counters, 0.0)
    num_up = num_links = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            is_up = pynvml.nvmlDeviceGetNvLinkState(handle, link)
        except pynvml.NVMLError as error:
            if _state_of(error) is not GpuState.UNSUPPORTED:
                raise
            break
        num_links += 1
        if is_up:
            num_up += 1
            for name, counter in counters.items():
                sums[name] += pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter)
    if num_links == 0:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return {"nvlinks_up": num_up, "nvlinks_down": num_links - num_up, **(sums if num_up else {})}


def _ecc(error_type: int, counter: int, name: str) -> Read:
    return lambda handle: {name: pynvml.nvmlDeviceGetTotalEccErrors(handle, error_type, counter)}


_CORRECTED, _UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_SLOWDOWN = pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
READINGS: dict[str, Read] = {
    "utilization": _utilization,
    "memory": _memory,
    "temperature": lambda h: {"temperature": pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU)},
    "memory_temperature": _field(pynvml.NVML_FI_DEV_MEMORY_TEMP, "memory_temperature"),
    "slowdown_temperature": lambda h: {"slowdown_at": pynvml.nvmlDeviceGetTemperatureThreshold(h, _SLOWDOWN)},
    "power": lambda h: {"power_w": pynvml.nvmlDeviceGetPowerUsage(h) / 1000},
    "power_limit": lambda h: {"power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000},
    "energy": lambda h: {"energy_mj": pynvml.nvmlDeviceGetTotalEnergyConsumption(h)},
    "sm_clock": lambda h: {"sm_clock": pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM)},
    "memory_clock": lambda h: {"memory_clock": pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM)},
    "clock_events": lambda h: {"clock_events": pynvml.nvmlDeviceGetCurrentClocksEventReasons(h)},
    "ecc_sbe_volatile": _ecc(_CORRECTED, pynvml.NVML_VOLATILE_ECC, "ecc_sbe_volatile"),
    "ecc_dbe_volatile": _ecc(_UNCORRECTED, pynvml.NVML_VOLATILE_ECC, "ecc_dbe_volatile"),
    "ecc_sbe_aggregate": _ecc(_CORRECTED, pynvml.NVML_AGGREGATE_ECC, "ecc_sbe_aggregate"),
    "ecc_dbe_aggregate": _ecc(_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC, "ecc_dbe_aggregate"),
    "remapped_rows": _remapped_rows,
    "retired_sbe": _field(pynvml.NVML_FI_DEV_RETIRED_SBE, "retired_sbe"),
    "retired_dbe": _field(pynvml.NVML_FI_DEV_RETIRED_DBE, "retired_dbe"),
    "retired_pending": _field(pynvml.NVML_FI_DEV_RETIRED_PENDING, "retired_pending"),
    "pcie_replay": lambda h: {"pcie_replay": pynvml.nvmlDeviceGetPcieReplayCounter(h)},
    "nvlink": _nvlink,
    "recovery_action": _field(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, "recovery_action"),
}


class _Card:
    """One card that was found. `handle` is None when it was lost before it could be opened."""

    def __init__(self, index: int, handle: Any, state: GpuState = GpuState.OK) -> None:
        self.index, self.handle, self.state = index, handle, state
        self.uuid = self.name = self.pci_bus_id = ""
        self.xids: Counter[int] | None = None
        self.last_xid: int | None = None

    @property
    def address(self) -> int | None:
        return ctypes.cast(self.handle, ctypes.c_void_p).value

    def learn(self) -> None:
        """Raises NVMLError."""
        self.uuid = pynvml.nvmlDeviceGetUUID(self.handle)
        self.name = pynvml.nvmlDeviceGetName(self.handle)
        bus_id = pynvml.nvmlDeviceGetPciInfo(self.handle).busId
        self.pci_bus_id = bus_id.decode() if isinstance(bus_id, bytes) else bus_id

    def read(self) -> GpuReading:
        values: dict[str, float] = {}
        missing: dict[str, GpuState] = {}
        state = self.state
        for group, read in READINGS.items():
            if state is not GpuState.OK:
                missing[group] = state
                continue
            try:
                found = {name: value for name, value in read(self.handle).items() if value < _SENTINEL}
            except pynvml.NVMLError as error:
                missing[group] = _state_of(error)
                if missing[group] in (GpuState.LOST, GpuState.RESET_REQUIRED):
                    state = missing[group]  # the card's, not the call's: asking on would only take time
                continue
            values |= found
            if not found:
                missing[group] = GpuState.UNSUPPORTED
        if state is not GpuState.OK:
            values, missing = {}, dict.fromkeys(READINGS, state)
        xids = None if self.xids is None else dict(self.xids)
        return GpuReading(
            self.index, state, self.uuid, self.name, self.pci_bus_id, values, missing, xids, self.last_xid
        )


class NvmlReader:
    """An open library. Use from one thread, which may hang in the driver."""

    def __init__(self) -> None:
        self._cards: list[_Card] = []
        self._events: Any = None
        self._problem: tuple[GpuState, str] | None = (GpuState.STARTING, "not opened")

    @property
    def is_open(self) -> bool:
        """Whether the driver library is initialised."""
        return self._problem is None

    def open(self) -> None:
        """Finds the cards. What goes wrong is in every snapshot until it is opened again."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._problem = (_state_of(error), str(error))
            return
        try:
            cards = [_open_card(index) for index in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            self._problem = (_state_of(error), str(error))
            pynvml.nvmlShutdown()
            return
        self._cards = _chosen(cards, os.environ.get("CUDA_VISIBLE_DEVICES"))
        self._problem = None
        self._listen()

    def _listen(self) -> None:
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            log.warning("gpu.events_not_heard", reason=str(error))
            return
        for card in self._cards:
            if card.handle is None:
                continue
            try:
                pynvml.nvmlDeviceRegisterEvents(card.handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
                card.xids = Counter()
            except pynvml.NVMLError as error:
                log.warning("gpu.events_not_heard", gpu=card.index, reason=str(error))

    def read(self) -> GpuSnapshot:
        """All cards now."""
        if self._problem is not None:
            return GpuSnapshot(self._problem[0], time.monotonic(), self._problem[1])
        if not self._cards:
            return GpuSnapshot(GpuState.NO_GPU, time.monotonic(), "the driver has no card for this process")
        gpus = tuple(card.read() for card in self._cards)
        worst = next((gpu.state for gpu in gpus if gpu.state is not GpuState.OK), GpuState.OK)
        return GpuSnapshot(worst, time.monotonic(), gpus=gpus)

    def wait(self, seconds: float) -> bool:
        """Waits for an XID; returns whether one came. Without events it only waits."""
        if self._events is None:
            time.sleep(seconds)
            return False
        try:
            event = pynvml.nvmlEventSetWait_v2(self._events, max(1, int(seconds * 1000)))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                log.warning("gpu.event_wait_failed", reason=str(error))
                time.sleep(seconds)
            return False
        address = ctypes.cast(event.device, ctypes.c_void_p).value
        for card in self._cards:
            if card.handle is not None and card.xids is not None and card.address == address:
                card.last_xid = int(event.eventData)
                card.xids[card.last_xid] += 1
                log.error("gpu.xid", gpu=card.index, xid=card.last_xid)
        return True

    def close(self) -> None:
        """Shut the driver library down."""
        if self._problem is None:
            self._problem, self._cards, self._events = (GpuState.STARTING, "closed"), [], None
            pynvml.nvmlShutdown()


def _open_card(index: int) -> _Card:
    try:
        card = _Card(index, pynvml.nvmlDeviceGetHandleByIndex(index))
        card.learn()
    except pynvml.NVMLError as error:
        return _Card(index, None, _state_of(error))
    return card


def _chosen(cards: list[_Card], visible: str | None) -> list[_Card]:
    """Those that this process may compute on, by index or UUID; all when it is not said in a form that we know."""
    if visible is None:
        return cards
    chosen = []
    for part in filter(None, (text.strip() for text in visible.split(","))):
        found = [c for c in cards if (part.isdigit() and c.index == int(part)) or (c.uuid and c.uuid.startswith(part))]
        if not found:
            return cards
        chosen += found
    return chosen
