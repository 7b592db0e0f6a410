"""Which of several controllers on one database acts: a lease that is renewed there, and an epoch that fences others.

A standby takes over when the leader let go, or when its lease was not renewed for as long as the lease lasts by the
standby's own clock: no two clocks are ever compared. The leader counts from before each renewal was sent, by a clock
that also passes while it is stopped, so it knows first that its time is over. Whoever leads has the newest epoch,
claimed in the transaction that takes the lease, and every write is made under it (`runbooks.epoch`).
"""

from __future__ import annotations

import math
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from fleetctl.controller.database import Database, FencedError
from fleetctl.controller.tables import leadership, members
from fleetctl.kit.errors import UnreachableError
from runbooks.epoch import current_epoch, lock_epoch, next_epoch
from runbooks.ports import TemporaryError

RENEWALS_PER_LEASE = 4
VALID_RATIO = 0.9  # of a lease: clocks may differ in pace, and what is checked is done a moment later
FORGET_MEMBER_AFTER_S = 3600.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def passed_s() -> float:
    """Seconds that also pass while this process is stopped and while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class LeaseLapsedError(UnreachableError, TemporaryError):
    """Nobody knows at this moment whether this controller still leads: it must not act."""


@dataclass(frozen=True, slots=True)
class Member:
    """A controller process on this database. `url` is where clients reach it."""

    id: str
    url: str
    host: str

    @classmethod
    def new(cls, url: str) -> Member:
        """This process."""
        return cls(secrets.token_hex(6), url, socket.gethostname())


@dataclass(frozen=True, slots=True)
class StoredLease:
    """The lease as the database has it. `beat` grows with each renewal; `released`: its holder let go of it."""

    epoch: int
    holder: str
    url: str
    lease_s: float
    beat: int
    released: bool
    taken_at: float


@dataclass(frozen=True, slots=True)
class Takeover:
    """How this controller came to lead. `former_url` is None where nobody led before; `silent_s` where it let go."""

    epoch: int
    former_url: str | None
    silent_s: float | None

    @property
    def words(self) -> str:
        """For the timeline."""
        if self.former_url is None:
            return "nobody led before"
        if self.silent_s is None:
            return f"{self.former_url} had let go"
        return f"{self.former_url} gave no sign for {self.silent_s:.1f} s"


class Lease:
    """What the leader may know of its own time. Read from any thread; one thread renews it.

    A database that only one controller can reach needs none: without `lease_s` it never lapses.
    """

    def __init__(self, lease_s: float | None = None) -> None:
        self._lease_s = lease_s
        self._valid_until = passed_s()

    def extend(self, began_s: float) -> None:
        """The database said that this controller leads, asked at `began_s`."""
        assert self._lease_s is not None
        self._valid_until = began_s + VALID_RATIO * self._lease_s

    def end(self) -> None:
        """It was let go of."""
        self._valid_until = 0.0

    @property
    def is_valid(self) -> bool:
        """Whether no other controller can lead at this moment."""
        return self._lease_s is None or passed_s() < self._valid_until

    def require(self) -> None:
        """Call right before whatever changes the world outside of the database. Raises LeaseLapsedError."""
        if not self.is_valid:
            raise LeaseLapsedError(
                "this controller does not know whether it still leads: it acts on nothing until it does",
                remedy="fleetctl status",
            )


class Leadership:
    """One process's part in who leads. Threading: its methods block, and are called on one thread of its own."""

    def __init__(self, database: Database, me: Member, lease_s: float) -> None:
        self.me = me
        self.lease = Lease(lease_s)
        self.peers: list[Member] = []  # as of the last renewal
        self._database = database
        self._lease_s = lease_s
        self._seen: tuple[int, int] | None = None  # epoch and beat of the lease as last read
        self._seen_at = 0.0
        self._peers: dict[str, tuple[int, float]] = {}  # member to its last beat, and when it was new to us
        self._epoch: int | None = None
        self._began_s = passed_s()

    @property
    def pause_s(self) -> float:
        """Between two renewals, or two looks of a standby."""
        return self._lease_s / RENEWALS_PER_LEASE

    def look(self, now: float) -> tuple[StoredLease | None, bool]:
        """As a standby: say that this process is there. The lease, and whether it may be taken. `now`: Unix seconds."""
        with self._database.engine.begin() as connection:
            self._tell_presence(connection, now)
            found = _read(connection)
        if found is None or found.released:
            return found, True
        at = passed_s()
        if self._seen != (found.epoch, found.beat):
            self._seen, self._seen_at = (found.epoch, found.beat), at
        return found, at - self._seen_at > found.lease_s

    def take(self, found: StoredLease | None, now: float) -> Takeover | None:
        """Take the lease that `look` found; None: another controller was first, or its holder gave a sign after all."""
        began_s = passed_s()
        values = {
            "holder": self.me.id,
            "url": self.me.url,
            "lease_s": self._lease_s,
            "beat": 0,
            "released": False,
            "taken_at": now,
        }
        with self._database.engine.begin() as connection:
            lock_epoch(connection)  # there is such a row from the start: it keeps two first ones apart
            if _mark(_read(connection, locks=True)) != _mark(found):
                return None
            epoch = next_epoch(connection)
            if found is None:
                connection.execute(sa.insert(leadership).values(id=1, epoch=epoch, **values))
            else:
                connection.execute(sa.update(leadership).values(epoch=epoch, **values))
        self._epoch = epoch
        self.lease.extend(began_s)
        if found is None:
            return Takeover(epoch, None, None)
        return Takeover(epoch, found.url, None if found.released else began_s - self._seen_at)

    def renew(self, now: float) -> None:
        """As the leader: go on leading, and look which other controllers are there.

        Raises FencedError when another one leads, StorageLostError while the database does not answer: the lease runs
        out then.
        """
        began_s = passed_s()
        with self._database.engine.begin() as connection:
            mine = sa.and_(leadership.c.epoch == self._epoch, leadership.c.holder == self.me.id)
            renewed = connection.execute(sa.update(leadership).where(mine).values(beat=leadership.c.beat + 1))
            if renewed.rowcount != 1:
                newer = _read(connection)
                raise FencedError(
                    f"{self._database.place}: {newer.url if newer else 'another controller'} took over with epoch"
                    f" {current_epoch(connection)}; this one had {self._epoch}",
                    remedy="ask the one that leads: fleetctl status",
                )
            self._tell_presence(connection, now)
            rows = connection.execute(sa.select(members)).all()
            self._forget_gone(connection)
        self.lease.extend(began_s)
        self.peers = self._present(rows)

    def release(self) -> None:
        """Let go: a standby takes over at once."""
        self.lease.end()
        with self._database.engine.begin() as connection:
            connection.execute(sa.update(leadership).where(leadership.c.epoch == self._epoch).values(released=True))

    def leave(self) -> None:
        """This process ends: nobody is to miss it."""
        with self._database.engine.begin() as connection:
            connection.execute(sa.delete(members).where(members.c.id == self.me.id))

    def _tell_presence(self, connection: sa.Connection, now: float) -> None:
        values = {"url": self.me.url, "host": self.me.host, "seen_at": now}
        mine = members.c.id == self.me.id
        if connection.execute(sa.update(members).where(mine).values(beat=members.c.beat + 1, **values)).rowcount == 0:
            connection.execute(sa.insert(members).values(id=self.me.id, beat=0, **values))

    def _present(self, rows: Sequence[Any]) -> list[Member]:
        """Those others whose beat changed within two leases: by our clock alone."""
        at = passed_s()
        for row in rows:
            if row.id == self.me.id:
                continue
            if row.id not in self._peers:
                self._peers[row.id] = (row.beat, -math.inf)  # it may be what one that was killed left behind
            elif self._peers[row.id][0] != row.beat:
                self._peers[row.id] = (row.beat, at)
        return [
            Member(row.id, row.url, row.host)
            for row in rows
            if row.id in self._peers and at - self._peers[row.id][1] < 2 * self._lease_s
        ]

    def _forget_gone(self, connection: sa.Connection) -> None:
        at = passed_s()
        for key, (beat, changed_at) in list(self._peers.items()):
            if at - max(changed_at, self._began_s) > FORGET_MEMBER_AFTER_S:
                del self._peers[key]
                connection.execute(sa.delete(members).where(members.c.id == key, members.c.beat == beat))


def _mark(lease: StoredLease | None) -> tuple[int, int] | None:
    return None if lease is None else (lease.epoch, lease.beat)


def _read(connection: sa.Connection, *, locks: bool = False) -> StoredLease | None:
    query = sa.select(leadership)
    row = connection.execute(query.with_for_update() if locks else query).first()
    if row is None:
        return None
    return StoredLease(row.epoch, row.holder, row.url, row.lease_s, row.beat, row.released, row.taken_at)
