"""What the autoscaler says of a pool, and what it may do."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fleetctl.wire.base import Body, Wire
from fleetctl.wire.identity import NO_CLAIM


class AutoscalerPool(Wire):
    """What the autoscaler may do with a pool, and its last word on it. None: not known, or not judged yet."""

    pool: str
    mode: Literal["advise", "act"] = "advise"
    owner: Literal["person", "autoscaler"] = "person"
    acts: bool = False  # its mode is act, and it owns the pool
    min: int
    max: int
    wanted: int  # nodes that the pool should have now
    size: int | None = None  # nodes that it should have by the autoscaler's word
    direction: Literal["out", "in", "hold"] | None = None
    why: str = ""
    check: str = ""  # of a scale-in: what the simulation said
    judged_at: float | None = None
    kv_ratio: float | None = None
    seat_ratio: float | None = None
    waiting: float | None = None
    start_s: float | None = None  # a node's, from wanted to ready
    last_out_at: float | None = None
    last_in_at: float | None = None
    reversals: int = 0  # changes of direction within the last hour


class AutoscalerRequest(Body):
    """Bounds and mode of a pool's autoscaling; what is left out stays."""

    min: int | None = Field(default=None, ge=1, le=4096)
    max: int | None = Field(default=None, ge=1, le=4096)
    mode: Literal["advise", "act"] | None = None
    by: str = Field(default=NO_CLAIM, max_length=200)
