from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleetctl.controller import database as database_module
from fleetctl.controller import tables
from fleetctl.controller.database import Database, FencedError, StorageLostError, get_meta, put_meta
from fleetctl.controller.leadership import LeaseLapsedError
from fleetctl.controller.state_lock import hold_state_lock
from fleetctl.kit.errors import BadInputError, UnreachableError
from runbooks.epoch import next_epoch
from runbooks.journal import Journal
from runbooks.run import RunStatus
from tests.fixtures.postgres import PostgresCluster
from tests.fixtures.runbooks import World, replace_node


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def test_refuses_a_file_that_is_no_database_and_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "controller.sqlite"
    path.write_bytes(b"not a database, but long enough to be taken for a header" * 100)
    with pytest.raises(BadInputError, match=r"controller\.sqlite: can't be used") as caught:
        Database(url_of(path))
    assert f"mv {path}" in str(caught.value.remedy)


def test_refuses_a_half_written_database(tmp_path: Path) -> None:
    path = tmp_path / "controller.sqlite"
    database = Database(url_of(path))
    with database.engine.begin() as connection:
        for number in range(300):
            put_meta(connection, f"key-{number}", "x" * 500)
    database.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInputError, match="can't be used"):
        Database(url_of(path))


def test_an_empty_file_is_a_new_state(tmp_path: Path) -> None:
    path = tmp_path / "controller.sqlite"
    path.touch()
    Database(url_of(path)).close()


def test_refuses_state_of_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "controller.sqlite"
    database = Database(url_of(path))
    with database.engine.begin() as connection:
        put_meta(connection, "schema_version", tables.SCHEMA_VERSION + 1)
    database.close()
    with pytest.raises(BadInputError, match="newer fleetctl") as caught:
        Database(url_of(path))
    assert "upgrade" in str(caught.value.remedy)


@pytest.mark.parametrize("url", ["nonsense", "sqlite+nothing:///x", "mongodb://host/name"])
def test_refuses_a_database_url_it_has_no_driver_for_and_leaves_no_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError):
        Database(url)
    assert list(tmp_path.iterdir()) == []


def test_a_password_in_the_url_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        Database("mongodb://user:secret-word@host/name")
    assert "secret-word" not in f"{caught.value.message}{caught.value.remedy}"


def leading(url: str) -> Database:
    """A controller's database, as its start leaves it."""
    database = Database(url)
    database.lead(Journal(database.engine).claim_epoch())
    return database


@pytest.mark.anyio
async def test_a_controller_that_was_replaced_can_not_write(any_database_url: str) -> None:
    first = leading(any_database_url)
    await first.write(lambda c: put_meta(c, "who", "first"))
    second = leading(any_database_url)
    with pytest.raises(FencedError, match="epoch 2 took over from 1"):
        await first.write(lambda c: put_meta(c, "who", "first again"))
    await second.write(lambda c: put_meta(c, "who", "second"))
    assert await first.read(lambda c: get_meta(c, "who")) == "second"
    first.close()
    second.close()


def test_a_write_that_was_begun_before_a_takeover_ends_before_it_or_not_at_all(
    postgres_cluster: PostgresCluster,
) -> None:
    """The epoch is read and kept under one lock: who takes over waits for what was let through, and nothing else is."""
    url = postgres_cluster.new_url()
    first, second = leading(url), Database(url)
    begun, go_on = threading.Event(), threading.Event()

    def slow_write(connection: sa.Connection) -> None:
        begun.set()
        assert go_on.wait(60)
        put_meta(connection, "who", "first")

    try:
        write = first.write_soon(slow_write)
        assert begun.wait(60)
        with ThreadPoolExecutor(1) as other:
            claim = other.submit(Journal(second.engine).claim_epoch)
            with pytest.raises(TimeoutError):
                claim.result(0.2)
            go_on.set()
            assert claim.result(60) == 2
        write.result(60)
        with pytest.raises(FencedError):
            first.write_soon(lambda c: put_meta(c, "who", "late")).result(60)
        with second.engine.begin() as connection:
            assert get_meta(connection, "who") == "first"
    finally:
        first.close()
        second.close()


def test_a_write_that_waits_for_a_takeover_is_refused_after_it(postgres_cluster: PostgresCluster) -> None:
    url = postgres_cluster.new_url()
    first, second = leading(url), Database(url)
    try:
        with second.engine.begin() as claiming:
            next_epoch(claiming)
            write = first.write_soon(lambda c: put_meta(c, "who", "first"))
            with pytest.raises(TimeoutError):
                write.result(0.2)
        with pytest.raises(FencedError, match="epoch 2 took over from 1"):
            write.result(60)
    finally:
        first.close()
        second.close()


@pytest.mark.anyio
async def test_a_failed_write_leaves_nothing_behind(any_database_url: str) -> None:
    database = Database(any_database_url)

    def fail(connection: sa.Connection) -> None:
        put_meta(connection, "half", 1)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        await database.write(fail)
    assert await database.read(lambda c: get_meta(c, "half")) is None
    database.close()


def test_commits_survive_power_loss_by_setting(tmp_path: Path) -> None:
    database = Database(url_of(tmp_path / "s.sqlite"))
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    database.close()


def test_a_second_controller_on_the_same_state_is_refused(tmp_path: Path) -> None:
    with (
        hold_state_lock(tmp_path),
        pytest.raises(BadInputError, match="another controller runs"),
        hold_state_lock(tmp_path),
    ):
        pass
    with hold_state_lock(tmp_path):  # free again once the first is gone
        pass


def test_sequence_numbers_are_never_reused(tmp_path: Path) -> None:
    database = Database(url_of(tmp_path / "s.sqlite"))
    database.close()
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        row = "insert into events (at, kind, text, data) values (1, 'a.b', 'x', '{}') returning seq"
        first = connection.execute(row).fetchone()[0]
        connection.execute("delete from events")
        assert connection.execute(row).fetchone()[0] > first
    connection.close()


def test_state_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "controller.sqlite"
    path.touch(0o644)  # as an earlier version left it
    database = Database(f"sqlite:///{path}")
    try:
        with database.engine.begin() as connection:
            put_meta(connection, "x", 1)
        modes = {one.name: one.stat().st_mode & 0o777 for one in tmp_path.iterdir()}
    finally:
        database.close()
    assert "controller.sqlite-wal" in modes
    assert set(modes.values()) == {0o600}


@pytest.mark.anyio
async def test_full_disk_is_told_with_the_path_and_nothing_is_half_stored(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'controller.sqlite'}")

    def fill(connection: sa.Connection) -> None:
        put_meta(connection, "half", 1)
        connection.exec_driver_sql("PRAGMA max_page_count=1")  # no page beyond those that there are
        put_meta(connection, "large", "x" * 1_000_000)

    try:
        with pytest.raises(UnreachableError, match=r"controller\.sqlite: no space left"):
            await database.write(fill)
        assert await database.read(lambda c: get_meta(c, "half")) is None
    finally:
        database.close()


@pytest.mark.anyio
async def test_full_disk_of_a_server_is_told_although_it_takes_what_needs_no_room(
    postgres_cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Database(postgres_cluster.new_url())
    is_full = sa.text("DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$")
    monkeypatch.setattr(database_module, "ASK_AGAIN_S", 0.0)
    try:
        with pytest.raises(UnreachableError, match="no space left on the disk"):
            await opened.write(lambda c: c.execute(is_full))
        await opened.write(lambda c: put_meta(c, "a", 1))
        assert "no space left" in opened.storage_error
        monkeypatch.setattr(database_module, "FULL_FOR_S", 0.0)
        await opened.write(lambda c: put_meta(c, "a", 2))
        assert not opened.storage_error
    finally:
        opened.close()


@pytest.mark.anyio
async def test_full_disk_is_told_until_something_can_be_stored_again(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'controller.sqlite'}")

    def fill(connection: sa.Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count=1")
        put_meta(connection, "large", "x" * 1_000_000)

    def through_the_engine() -> None:
        with database.engine.begin() as connection:  # as the journal of runs does
            fill(connection)

    def free(connection: sa.Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count=100000")

    try:
        with pytest.raises(StorageLostError, match="nothing can be stored"):
            await database.call(through_the_engine)
        assert "no space left" in database.storage_error
        await database.write(free)
        assert not database.storage_error
    finally:
        database.close()


@pytest.mark.anyio
async def test_a_database_that_is_away_for_a_moment_does_not_fail_the_step_that_met_it(any_database_url: str) -> None:
    world = World(any_database_url)
    try:
        world.fleet.errors["drain"] = [StorageLostError("away"), LeaseLapsedError("not known")]
        run = await replace_node(world.start())
        assert (run.status, run.step("do", 1).failures) == (RunStatus.SUCCEEDED, 2)
    finally:
        world.close()
