"""Settings of the autoscaler: when a pool grows and shrinks, and how far."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from fleetctl.settings.section import Section

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_CLOCK = re.compile(r"^([01]\d|2[0-3]):([0-5]\d)$")


class CapacitySchedule(Section):
    """Nodes that a pool has at least between two times of day (UTC). An end before the begin is on the next day."""

    pool: str = Field(min_length=1, max_length=200, description="Which pool.")
    nodes: int = Field(ge=1, le=4096, description="How many nodes it has at least.")
    begin: str = Field(pattern=_CLOCK.pattern, description="From this time of day, 08:00.")
    end: str = Field(pattern=_CLOCK.pattern, description="Until this time of day.")
    days: tuple[Weekday, ...] = Field(
        default=("mon", "tue", "wed", "thu", "fri", "sat", "sun"), max_length=7, description="On these days."
    )

    @property
    def minutes(self) -> tuple[int, int]:
        """Begin and end in minutes of the day."""
        return _minutes(self.begin), _minutes(self.end)


class AutoscalerSettings(Section):
    """When the size of a pool follows its load. What it may do to which pool: `fleetctl autoscale set`."""

    out_ratio: float = Field(
        default=0.7, gt=0, lt=1, description="Share of the KV or of the seats in use from which a pool is too small."
    )
    out_for_s: float = Field(default=120.0, ge=0, le=3600, description="For so long, before it grows.")
    queue_per_node: int = Field(
        default=1, ge=0, le=10_000, description="Waiting requests for each node from which a pool is too small."
    )
    queue_for_s: float = Field(default=30.0, ge=0, le=3600, description="For so long, before it grows.")
    in_for_s: float = Field(
        default=300.0, ge=0, le=86_400, description="A pool must do with one node less for so long, before it shrinks."
    )
    cooldown_out_s: float = Field(default=120.0, ge=0, le=86_400, description="From one growth to the next.")
    cooldown_in_s: float = Field(
        default=600.0, ge=0, le=86_400, description="From the last change of the size to a shrinking."
    )
    headroom_min_ratio: float = Field(
        default=0.3, ge=0, lt=1, description="Share of a pool's capacity that growth leaves free at least."
    )
    headroom_max_ratio: float = Field(
        default=0.5, gt=0, lt=1, description="Share that must be free without a node, before that node goes."
    )
    warm_nodes: int = Field(default=0, ge=0, le=64, description="Nodes beyond what the load needs, ready for a burst.")
    max_step: int = Field(
        default=8,
        ge=1,
        le=16,
        description="Nodes that one growth adds at most; it never more than doubles unless arrivals are known.",
    )
    start_s: float = Field(
        default=120.0, ge=0, le=3600, description="How long a node takes to be ready, until that was measured."
    )
    trend_s: float = Field(
        default=120.0, ge=10, le=3600, description="How far back the growth of the load is judged by."
    )
    max_nodes: int = Field(
        default=16, ge=1, le=4096, description="Nodes of a pool, unless `autoscale set --max` says another number."
    )
    node_hour_cost: float = Field(default=0.0, ge=0, le=100_000, description="Money that a node costs in an hour.")
    max_hour_cost: float | None = Field(
        default=None, gt=0, le=10_000_000, description="Money that a pool may cost in an hour."
    )
    ttft_slo_s: float = Field(
        default=2.0,
        gt=0,
        le=600,
        description="p95 TTFT that the rest must keep with one more loss, before a node goes.",
    )
    schedules: tuple[CapacitySchedule, ...] = Field(
        default=(),
        max_length=100,
        description="Nodes for known peaks: `pool`, `nodes`, `begin`, `end` (UTC, 08:00), `days`.",
    )

    @model_validator(mode="after")
    def _does_not_flap(self) -> Self:
        if 1.0 - self.headroom_max_ratio >= self.out_ratio:
            used = 1.0 - self.headroom_max_ratio
            raise ValueError(
                f"headroom_max_ratio: a pool would shrink to {used:.0%} in use, and it grows at {self.out_ratio:.0%}; "
                "raise headroom_max_ratio or out_ratio"
            )
        return self


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)
