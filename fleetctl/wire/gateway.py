"""One gateway with its worker processes."""

from __future__ import annotations

from enum import StrEnum

from pydantic import ConfigDict, Field

from fleetctl.wire.base import Wire


class GatewayPhase(StrEnum):
    """What a gateway is doing, as seen by the controller."""

    STARTING = "starting"  # not looked at yet
    READY = "ready"  # answers and has a routing table
    NOT_READY = "not_ready"  # answers, and has no routing table
    UNREACHABLE = "unreachable"  # does not answer: its state is unknown
    DOWN = "down"  # its process ended


SUPERVISOR_SILENT_S = 30.0
"""For so long a gateway's own process gives no sign, and is told; six of its signs are missing then."""


class GatewayWorkers(Wire):
    """The worker processes of one gateway, as its supervisor counts them."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    generation: int  # one more with each reload
    wanted: int  # processes by the settings
    serving: int  # of them, those that take requests
    retiring: int = 0  # a reload replaced them; they end what they have
    deaths: int = 0  # ends that nobody asked for, since the gateway's start
    reloads: int = 0  # since the gateway's start
    reload_error: str | None = None  # why the last reload changed nothing
    supervisor_silent_s: float | None = None  # since the gateway's own process gave a sign of life; None: it gives none

    @property
    def problem(self) -> str:
        """What is not as it should be, though the gateway serves; empty: nothing."""
        silent_s = self.supervisor_silent_s or 0.0
        still = (
            f"its own process has given no sign for {silent_s:.0f} s: workers that end are not started again"
            if silent_s > SUPERVISOR_SILENT_S
            else ""
        )
        few = f"{self.serving} of {self.wanted} workers serve" if self.serving < self.wanted else ""
        failed = f"the last reload changed nothing: {self.reload_error}" if self.reload_error is not None else ""
        return "; ".join(filter(None, (still, few, failed)))


class Gateway(Wire):
    """One gateway. What it says of itself is None while it does not answer."""

    name: str  # as fleetctl knows it
    url: str  # where it answers
    phase: GatewayPhase  # what it is doing, as the controller sees it
    reason: str = ""  # why it is in that phase
    since: float | None = None  # when the phase began
    probe_age_s: float | None = None  # since it was last looked at
    is_local: bool = False  # started on the controller's machine: it is started again when it ends
    instance: str | None = None  # another one after each start
    deaths: int = 0  # ends that nobody asked for, since the controller started
    next_start_at: float | None = None  # of one that ended
    table_version: int | None = None  # of the routing table that it goes by
    table_age_s: float | None = None  # since it was told that one
    in_flight: int | None = None  # requests that it carries now
    lost: int | None = None  # requests that failed or were given up since its start
    out: dict[str, str] = Field(default_factory=dict)  # node to why it gets nothing, or little, from this gateway
    failing_open: list[str] = Field(default_factory=list)  # models
    workers: GatewayWorkers | None = None  # its processes
