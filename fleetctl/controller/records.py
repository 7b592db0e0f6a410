"""What every part of the controller is given: the time, and where it writes down what it did."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleetctl.controller.audit import Audit
from fleetctl.controller.database import Database
from fleetctl.controller.leadership import Lease
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.timeline import Timeline
from fleetctl.kit.clock import Clock
from fleetctl.kit.stall import StallMonitor


@dataclass(frozen=True, slots=True)
class Records:
    """The state, its history and the counters of one controller."""

    clock: Clock
    database: Database
    timeline: Timeline
    metrics: ControllerMetrics
    stalls: StallMonitor
    audit: Audit
    lease: Lease = field(default_factory=Lease)
