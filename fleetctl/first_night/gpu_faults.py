"""What drivers say of cards, on real nodes that read a driver library of ours."""

from __future__ import annotations

from typing import Any

from fleetctl.first_night.fault import PAST_S, Expectation, Fault, FaultAction
from fleetctl.first_night.injection import both, gpu_of, pcie_replays, slowed, switch_off, undone, xids_of
from fleetctl.first_night.target_fleet import VICTIM

# Reasons of NVML for a lowered clock (nvmlClocksEventReasons).
HW_THERMAL, POWER_BRAKE = 0x40, 0x80
XID_OFF_THE_BUS, XID_CONTAINED, XID_GSP_TIMEOUT, XID_ENGINE_EXCEPTION = 79, 94, 119, 13
_GPU_PAGES = ("replace-gpu-node", "replace-node", "drain-node", "restart-node")
_healthy = gpu_of(VICTIM)


def _told(
    name: str, title: str, inject: FaultAction, expects: Expectation, clear: FaultAction = _healthy, **more: Any
) -> Fault:
    """Its driver says so, at once."""
    return Fault(name, title, inject, expects, clear, **{"page_within_s": 60.0, "has_gpus": True, **more})


_mended = both(_healthy, switch_off("slow_steps"))


def _slow(
    name: str, title: str, inject: FaultAction, expects: Expectation, clear: FaultAction = _mended, **more: Any
) -> Fault:
    """Its steps tell first."""
    return Fault(
        name, title, inject, expects, clear, **{"baseline_s": PAST_S, "hold_s": 150.0, "has_gpus": True, **more}
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
        both(_healthy, switch_off("slow_steps"), undone(f"uncordon {VICTIM}")),  # what the page drained is cool again
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
    _told(
        "gpu-contained",
        "the driver contains a memory error of a node's card (XID 94)",
        xids_of(VICTIM, XID_CONTAINED),
        Expectation(
            alerts=("LLMGPUXidContained",),
            causes=("gpu_reset_due",),
            named_from_s=30.0,
            pages=("restart-node",),
        ),
    ),
    _told(
        "gpu-program-faults",
        "programs fault on a node's card three times (XID 13)",
        xids_of(VICTIM, XID_ENGINE_EXCEPTION, times=3),
        Expectation(
            alerts=("LLMGPUXidApplication",),
            causes=("gpu_application_fault",),
            named_from_s=60.0,
            onset_within_s=75.0,
        ),
        undone("scale default --to +1", f"scale default --to 3 --nodes {VICTIM}"),  # another card in its place
        page_within_s=345.0,
        watch_s=600.0,
    ),
    _told(
        "gpu-nvlink",
        "a link between the cards of a node is down",
        gpu_of(VICTIM, nvlink_down=0),
        Expectation(
            alerts=("LLMGPUNVLink",),
            causes=("gpu_links",),
            named_from_s=30.0,
            onset_within_s=75.0,
            pages=_GPU_PAGES,
        ),
        baseline_s=PAST_S,
        page_within_s=120.0,
    ),
    _slow(
        "gpu-pcie",
        "a node's card sends packets on the bus again and again, and its steps take 3 times as long",
        both(slowed(VICTIM, factor=3.0), pcie_replays(VICTIM)),
        Expectation(
            alerts=("LLMNodeSlow", "LLMNodeGray", "LLMTTFTRegression"),
            causes=("gpu_links",),
            named_from_s=60.0,
            optional_pages=_GPU_PAGES,
        ),
    ),
    _slow(
        "gpu-clock-low",
        "a node's card runs at three fifths of its clock and says no reason, and its steps take 3 times as long",
        both(gpu_of(VICTIM, sm_clock_mhz=1180), slowed(VICTIM, factor=3.0)),
        Expectation(
            alerts=("LLMNodeSlow", "LLMNodeGray", "LLMGPUClockLow", "LLMTTFTRegression"),
            causes=("gpu_clock",),
            named_from_s=60.0,
            optional_pages=_GPU_PAGES,
        ),
    ),
)
