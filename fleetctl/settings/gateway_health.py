"""Settings of how the gateway judges nodes against their peers, and how often it tries again."""

from __future__ import annotations

from pydantic import Field

from fleetctl.settings.section import Section


class EjectionSettings(Section):
    """When a node that fails more than its peers gets no requests, and for how long."""

    enabled: bool = Field(default=True, description="Whether nodes are ejected at all.")
    min_samples: int = Field(
        default=5, ge=1, le=10_000, description="Answers and failures in the window before anything is judged."
    )
    failure_ratio: float = Field(
        default=0.5, gt=0, le=1, description="Share of failures from which on a node is ejected, if peers fail less."
    )
    slow_ratio: float | None = Field(
        default=5.0, gt=1, le=1000, description="Mean TTFT over its peers' from which on it is ejected; null: never."
    )
    max_ejected_ratio: float = Field(
        default=0.34, ge=0, le=1, description="Largest share of a model's nodes that is ejected at once; one at least."
    )
    first_s: float = Field(default=10.0, gt=0, le=3600, description="Length of a first ejection; doubled each time.")
    longest_s: float = Field(default=300.0, gt=0, le=86_400, description="Length of an ejection at most.")


class RetrySettings(Section):
    """How many tries beyond the first one requests may have."""

    budget_ratio: float = Field(
        default=0.2, ge=0, le=1, description="Retries for each request that was answered lately."
    )
    floor: int = Field(
        default=20,
        ge=0,
        le=100_000,
        description="Retries within ten seconds that are always allowed; gateways divide it.",
    )
    poison_memory_s: float = Field(
        default=300.0, ge=0, le=86_400, description="How long a body that ended two nodes is refused; 0: not at all."
    )
