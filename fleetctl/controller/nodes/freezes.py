"""Freezes: made, listed and ended by people, ended when their time is over, told on the timeline."""

from __future__ import annotations

import secrets

import sqlalchemy as sa

from fleetctl.controller.records import Records
from fleetctl.controller.tables import freezes
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.freeze import FreezeRequest
from runbooks.ports import Freeze
from runbooks.restraint import freeze_text

MAX_FREEZES = 100


class Freezes:
    """Owner of the stored freezes. `in_force` is what the database has, without asking it."""

    def __init__(self, records: Records, stored: tuple[Freeze, ...]) -> None:
        self._records = records
        self._stored = stored

    @classmethod
    async def opened(cls, records: Records) -> Freezes:
        """The freezes as the database has them."""
        return cls(records, await records.database.read(list_freezes))

    @property
    def in_force(self) -> tuple[Freeze, ...]:
        """Those whose time is not over, the oldest first."""
        now = self._records.clock.now()
        return tuple(freeze for freeze in self._stored if freeze.is_in_force(now))

    async def make(self, request: FreezeRequest) -> Freeze:
        """Freeze the fleet, or a pool, from now on. Raises BadInputError when there are too many."""
        now = self._records.clock.now()
        freeze = Freeze(
            id=f"freeze-{secrets.token_hex(3)}",
            reason=request.reason,
            made_by=request.made_by,
            made_at=now,
            pool=request.pool,
            expires_at=None if request.for_s is None else now + request.for_s,
        )

        def work(connection: sa.Connection) -> tuple[Freeze, ...]:
            if len(list_freezes(connection)) >= MAX_FREEZES:
                raise BadInputError(f"there are {MAX_FREEZES} freezes", remedy="fleetctl get freezes")
            connection.execute(sa.insert(freezes).values(**_row(freeze)))
            return list_freezes(connection)

        self._stored = await self._records.database.write(work)
        await self._tell("made", freeze, freeze_text(freeze))
        return freeze

    async def end(self, freeze_id: str | None, by: str) -> list[Freeze]:
        """End one freeze, or all of them (None). Raises BadInputError when there is none of this id."""

        def work(connection: sa.Connection) -> tuple[list[Freeze], tuple[Freeze, ...]]:
            known = list_freezes(connection)
            ended = [freeze for freeze in known if freeze_id in (None, freeze.id)]
            if freeze_id is not None and not ended:
                names = ", ".join(freeze.id for freeze in known) or "none"
                raise BadInputError(f"there is no freeze {freeze_id[:100]!r}; freezes: {names}")
            return ended, _without(connection, ended)

        ended, self._stored = await self._records.database.write(work)
        for freeze in ended:
            await self._tell("ended", freeze, f"{freeze.id} ended by {by}: {freeze.reason}")
        return ended

    async def expire_freezes(self) -> None:
        """Remove those whose time is over. One turn of a loop."""
        over = [freeze for freeze in self._stored if freeze not in self.in_force]
        if not over:
            return
        self._stored = await self._records.database.write(lambda connection: _without(connection, over))
        for freeze in over:
            await self._tell("expired", freeze, f"{freeze.id} is over: {freeze.reason}")

    async def _tell(self, what: str, freeze: Freeze, text: str) -> None:
        await self._records.timeline.append(f"freeze.{what}", text, data=_row(freeze))


def list_freezes(connection: sa.Connection) -> tuple[Freeze, ...]:
    """All that are stored, the oldest first."""
    rows = connection.execute(sa.select(freezes).order_by(freezes.c.made_at, freezes.c.id))
    return tuple(Freeze(**row._mapping) for row in rows)


def _without(connection: sa.Connection, ended: list[Freeze]) -> tuple[Freeze, ...]:
    connection.execute(sa.delete(freezes).where(freezes.c.id.in_([freeze.id for freeze in ended])))
    return list_freezes(connection)


def _row(freeze: Freeze) -> dict[str, object]:
    return {column.name: getattr(freeze, column.name) for column in freezes.columns}
