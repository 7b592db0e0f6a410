"""Every fault of the night, in its order."""

from __future__ import annotations

from fleetctl.first_night.cause_faults import CAUSE_FAULTS
from fleetctl.first_night.change_faults import CHANGE_FAULTS
from fleetctl.first_night.fault import Fault
from fleetctl.first_night.gpu_faults import GPU_FAULTS
from fleetctl.first_night.night_faults import NIGHT_FAULTS

FAULTS: tuple[Fault, ...] = (*NIGHT_FAULTS, *CAUSE_FAULTS, *CHANGE_FAULTS, *GPU_FAULTS)


def fault_named(name: str) -> Fault:
    """Raises KeyError when there is none."""
    return {fault.name: fault for fault in FAULTS}[name]
