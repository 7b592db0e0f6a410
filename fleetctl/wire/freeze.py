"""A time in which no automation acts."""

from __future__ import annotations

from pydantic import Field

from fleetctl.wire.base import Body, Wire
from fleetctl.wire.identity import NO_CLAIM


class Freeze(Wire):
    """A time in which no automation acts, and a person only with an override that is recorded."""

    id: str  # to end it by
    reason: str  # why
    made_by: str  # who
    made_at: float  # when
    pool: str | None = None  # None: the whole fleet
    expires_at: float | None = None  # None: until a person ends it


class FreezeRequest(Body):
    """Freeze the fleet, or one pool, from now on."""

    reason: str = Field(min_length=1, max_length=2000)
    made_by: str = Field(default=NO_CLAIM, max_length=200)
    pool: str | None = Field(default=None, min_length=1, max_length=200)
    for_s: float | None = Field(default=None, gt=0, le=366 * 86400)  # None: until it is ended
