"""What a tenant of the gateways uses, and may use."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import ConfigDict, Field

from fleetctl.wire.base import Wire


class TenantUse(Wire):
    """One tenant of the gateways: what it uses and may use, summed over those that answered."""

    tenant: str  # its name in the tenants file
    priority: str = Field(default="", alias="class")  # critical, standard or batch
    running: int = 0  # requests admitted and not ended
    tokens: dict[str, int] = Field(default_factory=dict)  # input and output, really used, since the gateways' starts
    left: dict[str, int | None] = Field(
        default_factory=dict
    )  # input, output, requests: may come at once; None: no limit
    limits: dict[str, Any] = Field(default_factory=dict)  # by the tenants file
    admitted: int = 0  # requests, since the gateways' starts
    refused: dict[str, int] = Field(default_factory=dict)  # by the limit that refused
    gateways: int = 1  # that know it

    model_config = ConfigDict(extra="ignore", populate_by_name=True, defer_build=True)

    def plus(self, other: TenantUse) -> TenantUse:
        """Both gateways' use of the same tenant."""
        left = {
            name: None if amount is None or other.left.get(name) is None else amount + (other.left[name] or 0)
            for name, amount in self.left.items()
        }
        return self.model_copy(
            update={
                "running": self.running + other.running,
                "tokens": {kind: count + other.tokens.get(kind, 0) for kind, count in self.tokens.items()},
                "left": left,
                "admitted": self.admitted + other.admitted,
                "refused": dict(Counter(self.refused) + Counter(other.refused)),
                "gateways": self.gateways + other.gateways,
            }
        )
