"""Settings of the gateway's admission: how long, how many and in which order requests wait for a node."""

from __future__ import annotations

from pydantic import Field

from fleetctl.settings.section import Section


class AdmissionSettings(Section):
    """Who waits at the gateway while the nodes are full, and for how long."""

    queue_limit_s: float = Field(
        default=10.0,
        ge=0,
        le=600,
        description="Longest wait for a node that has room; 0: nobody waits, a full fleet answers 429 at once.",
    )
    queue_aging_s: float = Field(
        default=5.0,
        gt=0,
        le=600,
        description="A class whose oldest request waits for this long gets every eighth turn, whatever is above it.",
    )
    max_waiting: int = Field(default=1000, ge=1, le=100_000, description="Requests that may wait at once.")
    max_waiting_bytes: int = Field(
        default=256 * 1024 * 1024, ge=1024, description="Size of the bodies of those that wait, together."
    )
    max_outstanding_per_node: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Requests at the nodes at once, for each active node; others wait here in fair order. "
        "Empty: as many as the nodes take.",
    )
