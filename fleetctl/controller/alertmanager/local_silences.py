"""Silences that are kept here: without an Alertmanager all of them, beside one those that are to hold here alone."""

from __future__ import annotations

import secrets
from dataclasses import replace

import sqlalchemy as sa
import structlog

from alerts.matcher import Matcher
from fleetctl.controller.alertmanager.silence import KnownSilence
from fleetctl.controller.records import Records
from fleetctl.controller.tables import silences
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.silence import Silence, SilenceMatcher, SilenceRequest

log = structlog.get_logger()

PREFIX = "local-"
MAX_LOCAL = 1000
LISTED_FOR_S = 86_400.0  # a silence that is over stays in lists for so long


class LocalSilences:
    """Owner of the stored silences; `known` is what the database has, without asking it."""

    def __init__(self, records: Records, stored: tuple[KnownSilence, ...]) -> None:
        self._records = records
        self._stored = stored

    @classmethod
    async def opened(cls, records: Records) -> LocalSilences:
        """The silences as the database has them."""
        return cls(records, await records.database.read(list_silences))

    @property
    def known(self) -> tuple[KnownSilence, ...]:
        """All of them; one whose time is over is expired."""
        now = self._records.clock.now()
        return tuple(replace(one, state="expired") if one.ends_at <= now else one for one in self._stored)

    async def add(self, request: SilenceRequest) -> Silence:
        """Make one from now on; its matchers were checked. Raises BadInputError when there are too many."""
        now = self._records.clock.now()
        made = KnownSilence(
            id=f"{PREFIX}{secrets.token_hex(4)}",
            matchers=tuple(Matcher(one.name, one.op, one.value) for one in request.matchers),
            starts_at=now,
            ends_at=now + request.duration_s,
            created_by=request.created_by,
            comment=request.comment,
            state="active",
        )

        def work(connection: sa.Connection) -> tuple[KnownSilence, ...]:
            connection.execute(sa.delete(silences).where(silences.c.ends_at < now - LISTED_FOR_S))
            if len(list_silences(connection)) >= MAX_LOCAL:
                raise BadInputError(f"there are {MAX_LOCAL} silences", remedy="fleetctl silence list")
            matchers = [{"name": one.name, "op": one.op, "value": one.value} for one in made.matchers]
            connection.execute(
                sa.insert(silences).values(
                    id=made.id,
                    matchers=matchers,
                    starts_at=made.starts_at,
                    ends_at=made.ends_at,
                    created_by=made.created_by,
                    comment=made.comment,
                )
            )
            return list_silences(connection)

        self._stored = await self._records.database.write(work)
        log.info("silence.added", silence_id=made.id, by=made.created_by, ends_at=made.ends_at)
        return made.to_wire()

    async def expire(self, silence_id: str) -> Silence:
        """End it now. Raises BadInputError when there is none of this id, or it is over."""
        found = next((one for one in self.known if one.id == silence_id), None)
        if found is None:
            raise BadInputError(f"there is no silence {silence_id[:100]}", remedy="fleetctl silence list")
        if found.state == "expired":
            raise BadInputError(f"silence {silence_id[:100]} is over already")
        now = self._records.clock.now()

        def work(connection: sa.Connection) -> tuple[KnownSilence, ...]:
            connection.execute(sa.update(silences).where(silences.c.id == silence_id).values(ends_at=now))
            return list_silences(connection)

        self._stored = await self._records.database.write(work)
        log.info("silence.expired", silence_id=silence_id)
        return replace(found, ends_at=now, state="expired").to_wire()


def list_silences(connection: sa.Connection) -> tuple[KnownSilence, ...]:
    """All that are stored, the oldest first."""
    rows = connection.execute(sa.select(silences).order_by(silences.c.starts_at, silences.c.id))
    return tuple(_decode(row._mapping) for row in rows)


def _decode(row: sa.RowMapping) -> KnownSilence:
    matchers = [SilenceMatcher.model_validate(one) for one in row["matchers"]]
    return KnownSilence(
        id=row["id"],
        matchers=tuple(Matcher(one.name, one.op, one.value) for one in matchers),
        starts_at=row["starts_at"],
        ends_at=row["ends_at"],
        created_by=row["created_by"],
        comment=row["comment"],
        state="active",
    )
