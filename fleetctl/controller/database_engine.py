"""How a database is opened: SQLite's file and its transactions, PostgreSQL's limits on those who stop in the middle."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog

from fleetctl.kit.errors import BadInputError
from runbooks.schema import prepare

log = structlog.get_logger()

DATABASE_TIMEOUT_S = 10.0
"""A transaction that a database server keeps waiting for longer is given up: what it does is not known then."""
IDLE_IN_TRANSACTION_S = 4.0
"""A controller that stands still for longer in a transaction loses it, and its locks, which hold up its successor."""
CONNECT_TIMEOUT_S = 3
WATCH_S = 0.5
DISK_FULL = "53100"  # PostgreSQL's error code; an out-of-memory, or a configured limit, of the same class is none


def make_engine(url: str, place: str) -> sa.Engine:
    """Raises BadInputError when there is no driver for it, or its folder can't be used."""
    parsed = sa.make_url(url)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    try:
        engine = sa.create_engine(parsed) if is_sqlite else _make_server_engine(parsed)
    except (sa.exc.NoSuchModuleError, ModuleNotFoundError) as error:
        raise BadInputError(
            f"{place}: no driver for this database: {error}",
            remedy="pip install 'llm-fleetctl[postgres]', and write postgresql+psycopg://HOST/NAME",
        ) from error
    if is_sqlite:
        try:
            Path(place).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_private(Path(place))
        except OSError as error:
            raise BadInputError(
                f"{Path(place).parent}: {error.strerror or error}", remedy="choose another folder with --state-dir"
            ) from error
        sa.event.listen(engine, "connect", _begin_ourselves)
        sa.event.listen(engine, "begin", _begin_immediate)
        prepare(engine)
    return engine


def place_of(url: str) -> str:
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
    # Parameters may hold secrets too (`?password=`), and tell nobody which database it is.
    return parsed.set(query={}).render_as_string(hide_password=True)


def is_shared(url: str) -> bool:
    """Whether controllers of several machines can reach it, and one of them leads; a SQLite file has one."""
    place_of(url)
    return sa.make_url(url).get_backend_name() != "sqlite"


def is_full(error: BaseException | None) -> bool:
    """Whether the driver says that there is no space left to store something."""
    if getattr(error, "sqlstate", None) == DISK_FULL:
        return True
    # To SQLite a write that the kernel refused for a quota or a file size limit is an I/O error.
    full = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC)
    return getattr(error, "sqlite_errorcode", None) in full


class StuckConnections:
    """Ends connections to a server that keeps a transaction waiting: the driver itself would wait for ever.

    Threading: a thread of its own; `watch` and `release` are called by whoever uses a connection.
    """

    def __init__(self, engine: sa.Engine, place: str, limit_s: float) -> None:
        self._place = place
        self._limit_s = limit_s
        self._began: dict[int, tuple[float, Any]] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        sa.event.listen(engine, "checkout", lambda connection, record, proxy: self._watch(connection))
        sa.event.listen(engine, "checkin", lambda connection, record: self._release(connection))
        self._thread = threading.Thread(target=self._end_stuck, name="database-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    def _watch(self, connection: Any) -> None:
        with self._lock:
            self._began[id(connection)] = (time.monotonic(), connection)

    def _release(self, connection: Any) -> None:
        with self._lock:
            self._began.pop(id(connection), None)

    def _end_stuck(self) -> None:
        while not self._stopping.wait(WATCH_S):
            with self._lock:
                late = [(key, one) for key, (at, one) in self._began.items() if time.monotonic() - at > self._limit_s]
                for key, connection in late:
                    del self._began[key]
                    log.warning("database.stuck", database=self._place, limit_s=self._limit_s)
                    _cut(connection)


def _cut(connection: Any) -> None:
    """Whoever waits on this connection gets an error at once; the descriptor stays the driver's to close."""
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def _make_server_engine(url: sa.URL) -> sa.Engine:
    arguments: dict[str, Any] = {}
    if url.get_driver_name() == "psycopg":
        arguments = {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "keepalives_idle": 2,  # a server whose machine is gone sends no word
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "tcp_user_timeout": int(DATABASE_TIMEOUT_S * 1000),
            "application_name": "fleetctl",
            "prepare_threshold": None,  # a pooler in transaction mode keeps none
        }
        arguments = {key: value for key, value in arguments.items() if key not in url.query}
    # READ COMMITTED: see `runbooks.epoch`.
    engine = sa.create_engine(url, connect_args=arguments, isolation_level="READ COMMITTED", pool_timeout=5)
    if engine.dialect.name == "postgresql":
        sa.event.listen(engine, "connect", _limit_transactions)
    return engine


def _limit_transactions(connection: Any, _: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = {int(IDLE_IN_TRANSACTION_S * 1000)}")
        cursor.execute(f"SET statement_timeout = {int(DATABASE_TIMEOUT_S * 1000)}")
    connection.commit()


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
