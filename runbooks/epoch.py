"""The fencing epoch: a number in the database that only the controller which claimed it last may write under.

Kleppmann, How to do distributed locking (2016): whoever was stopped while it led does not know that it leads no more,
so the store must refuse it. Check and write are one transaction here: `hold_epoch` takes the lock on the epoch's row
until the commit, on SQLite that on the file, and `next_epoch` waits for it: no write of an older epoch commits later.
"""

from __future__ import annotations

import sqlalchemy as sa

from runbooks.schema import meta


def lock_epoch(connection: sa.Connection) -> None:
    """Keep everybody else from writing, and from claiming an epoch, until this transaction ends."""
    connection.execute(sa.select(meta.c.epoch).with_for_update())


def next_epoch(connection: sa.Connection) -> int:
    """Claim the next epoch: waits for writes under the last one that were let through, and fences off later ones."""
    connection.execute(sa.update(meta).values(epoch=meta.c.epoch + 1))
    return current_epoch(connection)


def hold_epoch(connection: sa.Connection, epoch: int | None) -> bool:
    """Whether `epoch` is still the last one; if so, it stays that until this transaction ends."""
    # READ COMMITTED looks at the row once more after it waited for its lock, so a claim that came first is seen.
    held = connection.execute(sa.update(meta).where(meta.c.epoch == epoch).values(epoch=epoch))
    return held.rowcount == 1


def current_epoch(connection: sa.Connection) -> int:
    """The epoch that was claimed last; 0 before any."""
    return int(connection.execute(sa.select(meta.c.epoch)).scalar_one())
