"""When each node began and ended to be wanted: stored with the change itself, read with ages no clock can lower."""

from __future__ import annotations

import time
from collections.abc import Callable

import sqlalchemy as sa

from fleetctl.controller.database import Database
from fleetctl.controller.tables import nodes, wanted_changes
from fleetctl.kit.clock import Clock
from fleetctl.providers.spec import NodeSpec
from runbooks.ports import WantedChange

KEPT_S = 24 * 3600.0  # far more than the hour that guards look back: a clock that jumps must not empty it


def note_wanted(connection: sa.Connection, spec: NodeSpec, wanted: bool, now: float) -> None:
    """Store that the node is wanted from `now` on, or no longer; drops what is older than anybody asks for."""
    row = {"at": now, "node": spec.name, "pool": spec.pool, "model": spec.model, "wanted": wanted}
    connection.execute(sa.insert(wanted_changes).values(**row))
    newest = sa.select(sa.func.max(wanted_changes.c.seq)).group_by(wanted_changes.c.node)
    is_old = wanted_changes.c.at < now - KEPT_S
    connection.execute(
        sa.delete(wanted_changes).where(is_old & (wanted_changes.c.seq.not_in(newest) | ~wanted_changes.c.wanted))
    )


def note_unrecorded(connection: sa.Connection, now: float) -> None:
    """Record the wanted nodes of a state that was written before changes were: what is wanted now is all that is
    known."""
    recorded = sa.select(wanted_changes.c.node)
    rows = connection.execute(sa.select(nodes.c.spec).where(nodes.c.wanted, nodes.c.name.not_in(recorded)))
    for row in rows.all():
        note_wanted(connection, NodeSpec.from_json(row.spec), True, now)


class WantedHistory:
    """The stored changes with their ages: by the wall clock, and by the monotonic one since this process first saw
    them. The younger age counts, so that a clock that is set ahead makes nothing forgotten. What is from the future
    when it is first seen, because the clock was set back before this process began, ages from then on: else it would
    be younger than what happens now, for hours, and floors would not know what came first."""

    def __init__(self, database: Database, clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._monotonic = monotonic
        self._first_seen: dict[int, tuple[float, float]] = {}  # seq: when (monotonic), and its age then, or below 0

    async def changes(self) -> list[WantedChange]:
        """All that is kept, oldest first."""
        rows = await self._database.read(
            lambda c: c.execute(sa.select(wanted_changes).order_by(wanted_changes.c.seq)).all()
        )
        self._first_seen = {row.seq: self._first_seen.get(row.seq) or self._sight(row.at) for row in rows}
        return [WantedChange(row.node, row.pool, row.model, row.wanted, self._age_s(row.seq, row.at)) for row in rows]

    def _sight(self, at: float) -> tuple[float, float]:
        return self._monotonic(), self._clock.now() - at

    def _age_s(self, seq: int, at: float) -> float:
        seen_at, age_s = self._first_seen[seq]
        since_s = self._monotonic() - seen_at
        if age_s < 0:
            return since_s
        return min(max(0.0, self._clock.now() - at), age_s + since_s)
