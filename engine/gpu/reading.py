"""What is known of the GPUs at one moment, and which of it is a fault. Pure: no driver is called here.

What could not be read has no value, and a name for the reason instead: nothing is zero that was not read as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class GpuState(StrEnum):
    """Of the telemetry as a whole, or of one card."""

    STARTING = "starting"  # not looked yet
    OK = "ok"
    NO_DRIVER = "no_driver"  # no driver library, or no driver behind it
    DRIVER_MISMATCH = "driver_mismatch"  # the library and the loaded driver are of different versions
    NO_PERMISSION = "no_permission"
    NO_GPU = "no_gpu"  # a driver without cards
    LOST = "lost"  # a card fell off the bus
    RESET_REQUIRED = "reset_required"
    UNSUPPORTED = "unsupported"
    STALLED = "stalled"  # the driver does not come back from a call
    ERROR = "error"


# Clock event (throttle) reasons: bit of the mask, and the name that dcgm-exporter gives it.
CLOCK_EVENTS = {
    0x1: "gpu_idle",
    0x2: "clocks_setting",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
FAULTY_CLOCK_EVENTS = ("hw_slowdown", "hw_thermal", "hw_power_brake")


class XidClass(StrEnum):
    """What an XID asks for; the stricter reading where NVIDIA's sources differ."""

    APPLICATION = "application"  # the program's fault: restart it
    CONTAINED = "contained"  # a memory error that was contained: restart it, reset later
    RESET = "reset"  # the card needs a reset
    REPLACE = "replace"  # the card or the machine needs hands
    OTHER = "other"  # informational, or not known


_XIDS = {
    XidClass.APPLICATION: frozenset({13, 31, 43, 45, 68}),
    XidClass.CONTAINED: frozenset({63, 94}),
    XidClass.RESET: frozenset({46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}),
    XidClass.REPLACE: frozenset({79}),
}


def class_of_xid(xid: int) -> XidClass:
    """What an XID asks for; OTHER for those that are not listed."""
    return next((kind for kind, xids in _XIDS.items() if xid in xids), XidClass.OTHER)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One card. `values` and `missing` share no name: a reading has a value or a reason."""

    index: int
    state: GpuState = GpuState.OK
    uuid: str = ""
    name: str = ""
    pci_bus_id: str = ""
    values: Mapping[str, float] = field(default_factory=dict)  # by name; units as DCGM's
    missing: Mapping[str, GpuState] = field(default_factory=dict)  # by group of readings
    xids: Mapping[int, int] | None = None  # times each was seen since the node started; None: can't be heard
    last_xid: int | None = None

    def clock_events(self) -> dict[str, bool]:
        """Each throttle reason; empty when the mask was not read."""
        mask = self.values.get("clock_events")
        return {} if mask is None else {name: bool(int(mask) & bit) for bit, name in CLOCK_EVENTS.items()}

    def faults(self) -> dict[str, bool]:
        """Each sign of a broken card that is known; a sign that was not read is not in it."""
        events = self.clock_events()
        found = {name: events[name] for name in FAULTY_CLOCK_EVENTS if name in events}
        found["lost"] = self.state in (GpuState.LOST, GpuState.RESET_REQUIRED)
        for fault, reading in (
            ("ecc_uncorrected", "ecc_dbe_volatile"),
            ("row_remap_failed", "row_remap_failure"),
            ("recovery_action", "recovery_action"),
        ):
            if reading in self.values:
                found[fault] = self.values[reading] > 0
        if self.xids is not None:
            found["xid_reset"] = any(class_of_xid(x) in (XidClass.RESET, XidClass.REPLACE) for x in self.xids)
        return found


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """All cards of this node. `at` is monotonic seconds."""

    state: GpuState
    at: float
    detail: str | None = None
    gpus: tuple[GpuReading, ...] = ()

    def as_of(self, now: float, patience_s: float) -> GpuSnapshot:
        """What may still be said of it: an old snapshot says only that the driver stalls."""
        if now - self.at <= patience_s:
            return self
        return GpuSnapshot(GpuState.STALLED, self.at, f"no reading for {now - self.at:.0f} s")
