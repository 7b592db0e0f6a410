"""What people said of each pool's autoscaling, and when it last moved: stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import sqlalchemy as sa

from fleetctl.controller.autoscaler.judgement import Bounds, Memory
from fleetctl.controller.database import get_meta, put_meta
from fleetctl.settings.autoscaler import AutoscalerSettings

KEY = "autoscaler"

Mode = Literal["advise", "act"]


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """How far the autoscaler may go with a pool. `most` None: the settings' number. Moves: time and direction."""

    mode: Mode = "advise"
    least: int = 1
    most: int | None = None
    last_out_at: float | None = None
    last_in_at: float | None = None
    moves: tuple[tuple[float, str], ...] = ()

    def bounds(self, limits: AutoscalerSettings) -> Bounds:
        """By nodes, and by money where a node has a price."""
        most, why = (limits.max_nodes, "autoscaler.max_nodes") if self.most is None else (self.most, "its maximum")
        if limits.max_hour_cost is not None and limits.node_hour_cost > 0:
            paid = int(limits.max_hour_cost / limits.node_hour_cost)
            if paid < most:
                most, why = paid, f"what {limits.max_hour_cost:g} an hour pays for"
        return Bounds(self.least, max(most, self.least), why)

    @property
    def memory(self) -> Memory:
        """What a judgement begins with after a restart: cooldowns go on, what was seen does not."""
        return Memory(last_out_at=self.last_out_at, last_in_at=self.last_in_at, moves=self.moves)


def read_policies(connection: sa.Connection) -> dict[str, PoolPolicy]:
    """Pool to policy, as stored."""
    stored: Mapping[str, Mapping[str, Any]] = get_meta(connection, KEY) or {}
    return {
        name: PoolPolicy(**{**values, "moves": tuple((at, way) for at, way in values["moves"])})
        for name, values in stored.items()
    }


def store_policies(connection: sa.Connection, policies: Mapping[str, PoolPolicy]) -> None:
    """Keep all policies."""
    put_meta(connection, KEY, {name: asdict(policy) for name, policy in policies.items()})
