"""What drivers say of cards, on real nodes that read a driver library of ours."""

from __future__ import annotations

from functools import partial

from fleetctl.first_night.fault import PAST_S, Expectation, Fault
from fleetctl.first_night.injection import both, gpu_of, slowed, switch_off
from fleetctl.first_night.target_fleet import VICTIM

# Reasons of NVML for a lowered clock (nvmlClocksEventReasons).
HW_THERMAL, POWER_BRAKE = 0x40, 0x80
XID_OFF_THE_BUS, XID_CONTAINED, XID_GSP_TIMEOUT = 79, 94, 119
_GPU_PAGES = ("replace-gpu-node", "replace-node", "drain-node", "restart-node")
_healthy = gpu_of(VICTIM)
_told = partial(Fault, clear=_healthy, page_within_s=60.0, has_gpus=True)  # by the driver, at once
_slow = partial(  # its steps tell first
    Fault,
    clear=both(_healthy, switch_off("slow_steps")),
    baseline_s=PAST_S,
    hold_s=150.0,
    has_gpus=True,
)

GPU_FAULTS: tuple[Fault, ...] = (
    _told(
        "gpu-xid",
        "the driver reports XID 119 (GSP timeout) for a node's card",
        gpu_of(VICTIM, xid__seq=1, xid__code=XID_GSP_TIMEOUT),
        Expectation(
            alerts=("LLMGPUXid",),
            causes=("gpu_fault",),
            named_from_s=30.0,
            pages=_GPU_PAGES,
        ),
    ),
    _told(
        "gpu-lost",
        "a node's card falls off the bus (XID 79)",
        gpu_of(VICTIM, xid__seq=1, xid__code=XID_OFF_THE_BUS, fail__all__0=15),
        Expectation(
            alerts=("LLMGPULost", "LLMGPUXid"),
            causes=("gpu_lost",),
            named_from_s=30.0,
            pages=_GPU_PAGES,
        ),
    ),
    _told(
        "gpu-ecc",
        "a node's card counts memory errors that cannot be corrected",
        gpu_of(VICTIM, ecc_dbe_vol=3, ecc_dbe_agg=3),
        Expectation(
            alerts=("LLMGPUUncorrectedECC",),
            causes=("gpu_ecc",),
            named_from_s=30.0,
            pages=_GPU_PAGES,
        ),
    ),
    _slow(
        "gpu-hot",
        "a node's card slows down for heat, and its steps take 2.5 times as long",
        both(gpu_of(VICTIM, clock_events=HW_THERMAL, temperature=93, sm_clock_mhz=780), slowed(VICTIM, factor=2.5)),
        Expectation(
            alerts=("LLMNodeSlow", "LLMNodeGray", "LLMGPUThermalThrottle", "LLMGPUClockLow", "LLMTTFTRegression"),
            causes=("gpu_thermal",),
            named_from_s=30.0,
            optional_pages=("drain-node", "replace-node", "replace-gpu-node"),
        ),
    ),
    _slow(
        "gpu-power-brake",
        "a node's card is held back by its power supply, and its steps take 2.5 times as long",
        both(gpu_of(VICTIM, clock_events=POWER_BRAKE, sm_clock_mhz=780), slowed(VICTIM, factor=2.5)),
        Expectation(
            alerts=("LLMNodeSlow", "LLMNodeGray", "LLMGPUPowerBrake", "LLMGPUClockLow", "LLMTTFTRegression"),
            causes=("gpu_power",),
            named_from_s=30.0,
            optional_pages=_GPU_PAGES,
        ),
    ),
)
