"""One database behind one worker thread: SQLite by default, PostgreSQL by URL.

Every write is one transaction that first takes the lock on the fencing epoch (`runbooks.epoch`), so that a controller
that was replaced while it slept can't change anything.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
import structlog

from fleetctl.controller import tables
from fleetctl.controller.database_engine import DATABASE_TIMEOUT_S, StuckConnections, is_full, make_engine, place_of
from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from runbooks.epoch import current_epoch, hold_epoch
from runbooks.ports import TemporaryError

log = structlog.get_logger()

T = TypeVar("T")
R = TypeVar("R")
FULL_FOR_S = (
    30.0  # a server's full disk still takes what needs no new page: a lease that was renewed says nothing of it
)
ASK_AGAIN_S = 1.0  # a server that did not answer is asked again
LOST_REMEDY = "check the server and controller.database_url; it goes on by itself once the server answers"
MAX_GROUP = 400  # items in one transaction: whoever writes meanwhile waits for it


class FencedError(FleetctlError):
    """Another controller took this state over: this one must stop."""


class StorageLostError(UnreachableError, TemporaryError):
    """The disk is full, or the database does not answer: what was asked for is not stored."""


class Database:
    """Runs functions of a connection on its own thread, in the order they were given.

    Threading: `read` and `write` from the event loop; `write_soon` from any thread; `engine` is for the journal, which
    opens its own connections, and `thread` for those who call it.
    """

    def __init__(self, url: str) -> None:
        """Open, create the tables where they are missing and check what is there.

        Raises BadInputError when the file is damaged, not a database, or newer than this program;
        UnreachableError when a database server doesn't answer.
        """
        self.place = place_of(url)
        self._epoch: int | None = None
        self.state_id = ""  # of this state and its copies: one that is made anew has another
        self.storage_error = ""  # why nothing can be stored at present
        self._lost_at = 0.0
        self._full_at: float | None = None  # when a server last said so
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="controller-db")
        self._stuck: StuckConnections | None = None
        try:
            self.engine = make_engine(url, self.place)
            if self.is_shared:
                self._stuck = StuckConnections(self.engine, self.place, DATABASE_TIMEOUT_S)
            sa.event.listen(self.engine, "handle_error", self._tell_lost)  # also of the journal's connections
            self._check_and_create()
        except BaseException:
            self.close()
            raise

    @property
    def is_shared(self) -> bool:
        """Whether controllers of several machines can reach it, and one of them leads; a SQLite file has one."""
        return self.engine.dialect.name != "sqlite"

    def lead(self, epoch: int) -> None:
        """Write under this epoch, which was claimed: writes are refused once a newer one is."""
        self._epoch = epoch

    @property
    def epoch(self) -> int:
        """The epoch that this controller writes under; 0 before."""
        return self._epoch or 0

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` on the worker thread, without checking the epoch."""
        return await asyncio.wrap_future(self.thread.submit(self._run, work, False))

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` in one transaction. Raises FencedError when another controller took over."""
        return await asyncio.wrap_future(self.thread.submit(self._run, work, True))

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work`, which opens its own connections (the journal's methods do), on the same thread."""
        return await asyncio.wrap_future(self.thread.submit(work))

    def write_soon(self, work: Callable[[sa.Connection], T]) -> Future[T]:
        """As `write`, without waiting: the order among writes is kept."""
        return self.thread.submit(self._run, work, True)

    def close(self) -> None:
        """Finish what was asked, then let go of the database."""
        self.thread.shutdown(wait=True)
        if self._stuck is not None:
            self._stuck.stop()
        if hasattr(self, "engine"):
            self.engine.dispose()

    def _run(self, work: Callable[[sa.Connection], T], writes: bool) -> T:
        if self.is_shared and self.storage_error and time.monotonic() - self._lost_at < ASK_AGAIN_S:
            # Each would wait for its own time limit, and all who ask wait in one row.
            raise StorageLostError(self.storage_error, remedy=LOST_REMEDY)
        result = self._transact(work, writes)
        if writes:
            self.note_stored()
        return result

    def note_stored(self) -> None:
        """Something could be stored just now."""
        if self._full_at is not None and time.monotonic() - self._full_at < FULL_FOR_S:
            return
        if self.storage_error:
            self.storage_error, self._full_at = "", None
            log.info("storage.recovered", database=self.place)

    def _tell_lost(self, context: sa.engine.ExceptionContext) -> None:
        """Raises StorageLostError in place of the driver's error, when it says that."""
        error = context.original_exception
        if is_full(error):
            message = f"{self.place}: no space left on the disk: nothing can be stored"
            remedy = "free space there; it goes on by itself once there is room"
            self._full_at = time.monotonic() if self.is_shared else None
        elif self.is_shared and (context.is_disconnect or _is_lost(error)):
            message = f"{self.place}: nothing can be stored: {_words_of(error)}"
            remedy = LOST_REMEDY
        else:
            return
        if not self.storage_error:
            log.error("storage.lost", database=self.place, reason=str(error).strip(), remedy=remedy)
        self.storage_error = message
        self._lost_at = time.monotonic()
        raise StorageLostError(message, remedy=remedy) from error

    def _transact(self, work: Callable[[sa.Connection], T], writes: bool) -> T:
        with self.engine.begin() as connection:
            if writes and self._epoch is not None and not hold_epoch(connection, self._epoch):
                newer = current_epoch(connection)
                raise FencedError(
                    f"{self.place}: controller epoch {newer} took over from {self._epoch}; this one stops",
                    remedy="ask the one that leads: fleetctl status",
                )
            return work(connection)

    def _check_and_create(self) -> None:
        try:
            with self.engine.begin() as connection:
                if connection.dialect.name == "sqlite":
                    verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                    if verdict != "ok":
                        raise self._damaged(str(verdict))
                if sa.inspect(connection).has_table(tables.meta.name):
                    self._check_version(connection)
                tables.metadata.create_all(connection)
                _add_missing_columns(connection)
                if get_meta(connection, "state_id") is None:
                    put_meta(connection, "state_id", secrets.token_hex(8))
                self.state_id = get_meta(connection, "state_id")
                # A version that only adds is reached by adding; an older program then refuses the file.
                if get_meta(connection, "schema_version") != tables.SCHEMA_VERSION:
                    put_meta(connection, "schema_version", tables.SCHEMA_VERSION)
        except sa.exc.DatabaseError as error:
            # OperationalError is a DatabaseError: a file of zeros and an unreachable server arrive here alike.
            if self.engine.dialect.name == "sqlite":
                raise self._damaged(str(error.orig)) from error
            raise BadInputError(
                f"{self.place}: {_words_of(error.orig)}", remedy="check controller.database_url and the user's rights"
            ) from error

    def _check_version(self, connection: sa.Connection) -> None:
        version = get_meta(connection, "schema_version")
        if version is not None and (not isinstance(version, int) or version > tables.SCHEMA_VERSION):
            raise BadInputError(
                f"{self.place}: written by a newer fleetctl: schema {version}, not {tables.SCHEMA_VERSION}",
                remedy="upgrade fleetctl, or choose another folder with --state-dir",
            )

    def _damaged(self, reason: str) -> BadInputError:
        return BadInputError(
            f"{self.place}: can't be used as the controller's state: {reason}",
            remedy="restore it, or start with an empty history, which finds running nodes again:"
            f" mv {self.place} {self.place}.broken",
        )


class GroupCommit(Generic[T, R]):
    """Many small writes in few transactions: those that come while one is under way go together into the next.

    A fleet of thousands changes all at once; one commit each would take minutes. Threading: belongs to one event loop.
    """

    def __init__(self, database: Database, write: Callable[[sa.Connection, Sequence[T]], Sequence[R]]) -> None:
        """`write` stores all items, in their order, and gives each one's result."""
        self._database = database
        self._write = write
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._writer: asyncio.Task[None] | None = None

    def add(self, item: T) -> asyncio.Future[R]:
        """The item's result, once its transaction is committed. Raises what the transaction raised."""
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, result))
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_all(), name="group-commit")
        return result

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
                items = [item for item, _ in batch]
                try:
                    results = await self._database.write(lambda c, items=items: self._write(c, items))  # type: ignore[misc]
                except asyncio.CancelledError:
                    for _, result in (*batch, *self._waiting):
                        result.cancel()
                    raise
                except BaseException as error:  # noqa: BLE001 - each of those who wait gets it, whatever it is
                    for _, result in batch:
                        if not result.done():
                            result.set_exception(error)
                else:
                    for (_, result), value in zip(batch, results, strict=True):
                        if not result.done():
                            result.set_result(value)
        finally:
            self._writer = None


def _add_missing_columns(connection: sa.Connection) -> None:
    """Give tables that an earlier version made the columns that they lack, and their indexes."""
    for column in tables.ADDED_COLUMNS:
        table = column.table
        if column.name in {found["name"] for found in sa.inspect(connection).get_columns(table.name)}:
            continue
        kind = column.type.compile(connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}")
        for index in table.indexes:
            if column.name in index.columns:
                index.create(connection)


def get_meta(connection: sa.Connection, key: str) -> Any:
    """The stored JSON value, or None."""
    return connection.execute(sa.select(tables.meta.c.value).where(tables.meta.c.key == key)).scalar()


def put_meta(connection: sa.Connection, key: str, value: Any) -> None:
    """Store one value under a key, in place of what was there."""
    changed = connection.execute(sa.update(tables.meta).where(tables.meta.c.key == key).values(value=value))
    if changed.rowcount == 0:
        connection.execute(sa.insert(tables.meta).values(key=key, value=value))


def _is_lost(error: BaseException | None) -> bool:
    """Whether a server's driver says that it can't be reached, or is going down, starting up or too full of clients."""
    state = getattr(error, "sqlstate", None)
    if state is None:  # no word of the server: the connection was refused, or ended
        return "OperationalError" in {kind.__name__ for kind in type(error).__mro__}
    return state[:2] in ("08", "53", "57")  # connection exception, insufficient resources, operator intervention


def _words_of(error: BaseException | None) -> str:
    """The first line of what the driver says. It names host, port and user; it does not know the password's text."""
    return (str(error).strip().splitlines() or ["no answer"])[0]
