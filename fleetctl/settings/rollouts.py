"""Settings of rollouts: how long each step may take, and when its gate passes or fails."""

from __future__ import annotations

from pydantic import Field

from fleetctl.settings.section import Section


class RolloutSettings(Section):
    """How a pool gets from one revision to another."""

    ready_within_s: float = Field(
        default=900.0, gt=0, le=86_400, description="A node of the new revision that is not ready by then rolls back."
    )
    max_start_failures: int = Field(
        default=3, ge=1, le=100, description="So many starts in a row that ended before the node was ready roll back."
    )
    step_min_s: float = Field(
        default=60.0, ge=0, le=86_400, description="The shortest time on a step, once its nodes are ready."
    )
    step_limit_s: float = Field(
        default=3600.0, gt=0, le=30 * 86_400, description="A step that is undecided for so long waits for a person."
    )
    judge_every_s: float = Field(default=5.0, gt=0, le=300, description="Between two looks of the gate.")
    fail_error_ratio: float = Field(
        default=0.01,
        gt=0,
        le=0.5,
        description="Probability that a step fails a revision that is no worse than the margins, over all its signals"
        " and however often it looks.",
    )
    pass_error_ratio: float = Field(
        default=0.05,
        gt=0,
        le=0.5,
        description="Probability that a step passes one that is worse than a margin.",
    )
    slow_margin_ratio: float = Field(
        default=0.1,
        gt=0,
        lt=0.9,
        description="TTFT and time per output token: part of the requests that may be slow beyond the stable"
        " revision's, where slow is what one in ten of that one's is.",
    )
    error_margin_ratio: float = Field(
        default=0.02, gt=0, lt=0.9, description="Part of the requests that may fail beyond the stable revision's."
    )
    prefix_margin_ratio: float = Field(
        default=0.2,
        gt=0,
        lt=0.9,
        description="By how much the prefix hit ratio may be lower than the stable revision's.",
    )
    min_agreement_ratio: float = Field(
        default=0.9,
        gt=0,
        lt=1,
        description="With --shadow: part of an answer, on average, that must be the stable revision's word for word.",
    )
