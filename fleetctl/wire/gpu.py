"""One card."""

from __future__ import annotations

from pydantic import Field

from fleetctl.wire.base import Wire


class Gpu(Wire):
    """One card, as NVML or DCGM tell it. None: not read, or too long ago."""

    node: str  # the node that it computes for
    gpu: str  # its number on the node
    card: str = ""  # its product name, by the driver
    pool: str = ""  # of that node, as the next ones
    model: str = ""  # that is served
    zone: str = ""  # where it stands
    host: str = ""  # the machine
    sku: str = ""  # kind of machine or card, as it is ordered
    temperature_c: float | None = None  # of the chip, in degrees Celsius
    memory_temperature_c: float | None = None  # of its memory
    sm_clock_hz: float | None = None  # at which it computes
    power_w: float | None = None  # drawn now
    utilization_ratio: float | None = None  # share of the time in which anything ran on it
    memory_ratio: float | None = None  # share of its memory in use
    throttled: list[str] | None = None  # reasons in force: hw_slowdown, sw_thermal, hw_thermal, power_brake
    faults: list[str] | None = None  # lost, row_remap_failed, row_remap_pending
    ecc_uncorrected: float | None = None  # since the driver was loaded
    ecc_uncorrected_5m: float | None = None  # in the last five minutes
    xids: list[int] = Field(default_factory=list)  # numbers that were heard; which of them lately, the next say
    critical_xids_5m: float | None = None  # that ask for a reset or a replacement
    contained_xids_5m: float | None = None  # memory errors that were contained: a reset is due
    application_xids_1h: float | None = None  # faults of programs, not of the card
