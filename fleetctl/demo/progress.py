"""Where the demo's story is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from fleetctl.demo.report import DemoReport
from fleetctl.wire.incident import Incident


class Act(StrEnum):
    """How far the story is."""

    STARTING = "starting"
    NORMAL = "normal"  # traffic, until the windows of the alerts are full of it
    BROKEN = "broken"  # the fault is in
    MENDED = "mended"  # its incident is resolved
    CHECKING = "checking"  # nothing more is sent; what was moved is asked again
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the story is, for whoever tells it in words of their own."""

    act: Act = Act.STARTING
    breaks_at: float | None = None  # when the fault comes at the earliest
    fault_at: float | None = None
    incident: Incident | None = None  # that of the faulty node, as last read
    report: DemoReport | None = None  # once it is over


Watch = Callable[[Progress], None]
