"""Settings of the gateway's response cache: off by default."""

from __future__ import annotations

from pydantic import Field

from fleetctl.settings.section import Section


class ResponseCacheSettings(Section):
    """Answers kept to be given again to the same tenant for the same deterministic request; in memory only."""

    max_bytes: int = Field(default=0, ge=0, le=2**40, description="Of all answers kept; 0: no cache.")
    max_entry_bytes: int = Field(default=262_144, ge=1, le=2**30, description="A longer answer is not kept.")
    ttl_s: float = Field(default=300.0, gt=0, le=86_400, description="How long an answer is kept at most.")
