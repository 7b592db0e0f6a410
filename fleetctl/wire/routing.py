"""What the gateways route by."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from fleetctl.traffic_rule import KnownRules
from fleetctl.wire.base import Wire
from fleetctl.wire.node import NodePhase


class RouteState(StrEnum):
    """Whether a node gets new requests."""

    ACTIVE = "active"
    CORDONED = "cordoned"
    LEAVING = "leaving"  # cordoned, and what it holds is to go on elsewhere


class Route(Wire):
    """One node of the routing table. `state` is what is wanted, `phase` what was seen (None: not looked at yet)."""

    node: str  # that requests may go to
    url: str  # where it answers
    state: RouteState  # what is wanted
    pool: str = "default"  # that it is in
    model: str = ""  # that it serves
    phase: NodePhase | None = None  # what was seen; None: not looked at yet
    engine: str = ""  # which it runs
    revision: str = ""  # that it runs
    api_key: str = ""  # name of the key that it wants, of the gateway's own `fleet.api_keys`; never the key


class RouteSignals(Wire):
    """What was last scraped of a node that routing asks for. None: not known, or its engine does not say.

    `age_s`: of the oldest of them. `adapters`: those that are loaded.
    """

    node: str
    age_s: float | None = None
    kv_ratio: float | None = None
    cache_tokens: int | None = None
    max_model_len: int | None = None
    adapters: list[str] | None = None


class RoutingTable(Wire):
    """What the gateway routes by. It keeps the last good one when the controller is away.

    `rules`: traffic rules in force; those of kinds that this version does not know are left out.
    """

    version: int
    epoch: int = 0  # of the controller that tells it: of two tables of one state, the one with the lower is out of date
    state_id: str = ""
    routes: list[Route]
    rules: KnownRules = Field(default_factory=list)
    num_gateways: int = Field(default=1, ge=1)  # that share the tenants' limits
