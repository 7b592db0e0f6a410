"""One database behind one worker thread: SQLite by default, PostgreSQL by URL.

Every write is one transaction that first checks the fencing epoch, so that a controller that was replaced while it
slept can't change anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
import structlog

from fleetctl.controller import tables
from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from runbooks.schema import prepare

log = structlog.get_logger()

T = TypeVar("T")
R = TypeVar("R")
MAX_GROUP = 400  # items in one transaction: whoever writes meanwhile waits for it


class FencedError(FleetctlError):
    """Another controller took this state over: this one must stop."""


class StorageFullError(UnreachableError):
    """No space left where the state lies: nothing can be stored; what is held in memory goes on."""


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
        self._place = _place(url)
        self._epoch: int | None = None
        self.storage_error = ""  # why nothing can be stored at present
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="controller-db")
        try:
            self.engine = _create_engine(url, self._place)
            sa.event.listen(self.engine, "handle_error", self._tell_full)  # also of the journal's connections
            self._check_and_create()
        except BaseException:
            self.thread.shutdown(wait=False)
            raise

    def claim(self, epoch: int) -> None:
        """From now on writes are refused once a newer epoch was claimed."""
        with self.engine.begin() as connection:
            put_meta(connection, "epoch", epoch)
        self._epoch = epoch

    @property
    def epoch(self) -> int:
        """The epoch that this controller claimed; 0 before."""
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
        self.engine.dispose()

    def _run(self, work: Callable[[sa.Connection], T], writes: bool) -> T:
        result = self._transact(work, writes)
        if writes and self.storage_error:
            self.storage_error = ""
            log.info("storage.recovered", path=self._place)
        return result

    def _tell_full(self, context: sa.engine.ExceptionContext) -> None:
        """Raises StorageFullError in place of the driver's error, when it says that."""
        if getattr(context.original_exception, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:
            return
        message = f"{self._place}: no space left on the disk: nothing can be stored"
        remedy = "free space there; it goes on by itself once there is room"
        if not self.storage_error:
            self.storage_error = message
            log.error("storage.full", path=self._place, remedy=remedy)
        raise StorageFullError(message, remedy=remedy) from context.original_exception

    def _transact(self, work: Callable[[sa.Connection], T], writes: bool) -> T:
        with self.engine.begin() as connection:
            if writes and self._epoch is not None:
                current = get_meta(connection, "epoch")
                if current != self._epoch:
                    raise FencedError(
                        f"{self._place}: controller epoch {current} took over from {self._epoch}; this one stops",
                        remedy="run one controller per state",
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
                # A version that only adds is reached by adding; an older program then refuses the file.
                if get_meta(connection, "schema_version") != tables.SCHEMA_VERSION:
                    put_meta(connection, "schema_version", tables.SCHEMA_VERSION)
        except sa.exc.DatabaseError as error:
            # OperationalError is a DatabaseError: a file of zeros and an unreachable server arrive here alike.
            if self.engine.dialect.name == "sqlite":
                raise self._damaged(str(error.orig)) from error
            raise UnreachableError(
                f"{self._place}: {str(error.orig).strip()}",
                remedy="check controller.database_url and the server",
            ) from error

    def _check_version(self, connection: sa.Connection) -> None:
        version = get_meta(connection, "schema_version")
        if version is not None and (not isinstance(version, int) or version > tables.SCHEMA_VERSION):
            raise BadInputError(
                f"{self._place}: written by a newer fleetctl: schema {version}, not {tables.SCHEMA_VERSION}",
                remedy="upgrade fleetctl, or choose another folder with --state-dir",
            )

    def _damaged(self, reason: str) -> BadInputError:
        return BadInputError(
            f"{self._place}: can't be used as the controller's state: {reason}",
            remedy="restore it, or start with an empty history, which finds running nodes again:"
            f" mv {self._place} {self._place}.broken",
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


def _place(url: str) -> str:
    """The database as errors name it: a file's path, or the URL without its password."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise BadInputError(
            "controller.database_url: not a database URL",
            remedy="use sqlite:///PATH or postgresql+psycopg://HOST/NAME",
        ) from error
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        return parsed.database
    return parsed.render_as_string(hide_password=True)


def _create_engine(url: str, place: str) -> sa.Engine:
    parsed = sa.make_url(url)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    if is_sqlite:
        try:
            Path(place).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_private(Path(place))
        except OSError as error:
            raise BadInputError(
                f"{Path(place).parent}: {error.strerror or error}", remedy="choose another folder with --state-dir"
            ) from error
    try:
        engine = sa.create_engine(parsed) if is_sqlite else sa.create_engine(parsed, pool_pre_ping=True)
    except (sa.exc.NoSuchModuleError, ModuleNotFoundError) as error:
        raise BadInputError(
            f"{place}: no driver for this database: {error}", remedy="pip install 'psycopg[binary]' for PostgreSQL"
        ) from error
    if not is_sqlite:
        return engine
    sa.event.listen(engine, "connect", _begin_ourselves)
    sa.event.listen(engine, "begin", _begin_immediate)
    prepare(engine)
    return engine


def _make_private(path: Path) -> None:
    """The file, and those that SQLite makes beside it with its mode, are the owner's alone; older ones become so."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for own in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            own.chmod(0o600)


def _begin_ourselves(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # the driver begins none; see below


def _begin_immediate(connection: sa.Connection) -> None:
    # Two writers that both start by reading would deadlock in SQLite's deferred transactions.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
