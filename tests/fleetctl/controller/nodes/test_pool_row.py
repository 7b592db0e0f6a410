"""Pools as they are stored: their size goes with what is done to nodes by hand, and older states get theirs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa

from fleetctl.controller.database import Database, put_meta
from fleetctl.controller.nodes.node_row import Role, change_node, delete_stopped, list_nodes, want_node
from fleetctl.controller.nodes.pool_row import (
    begin_scaling,
    end_scaling,
    get_pool,
    list_pools,
    list_revisions,
    note_unrecorded_pools,
    set_owner,
)
from fleetctl.controller.nodes.revision import Revision
from fleetctl.controller.tables import nodes, pools, revisions
from fleetctl.kit.errors import BadInputError, RefusedError
from fleetctl.providers.spec import NodeSpec
from runbooks.ports import PoolOwner
from tests.fixtures.controller import make_spec


@pytest.fixture
def database(any_database_url: str) -> Iterator[Database]:
    database = Database(any_database_url)
    yield database
    database.close()


def want(connection: sa.Connection, *names: str, spec: NodeSpec | None = None, at: float = 1.0) -> None:
    for name in names:
        want_node(connection, (spec or make_spec(name)).named(name), Role.MEMBER, at)


def unwant(connection: sa.Connection, name: str) -> None:
    change_node(connection, name, 2.0, {"wanted": False})


def size(connection: sa.Connection, pool: str = "default") -> int:
    found = get_pool(connection, pool)
    assert found is not None
    return found.wanted_size


def test_a_pools_size_goes_with_nodes_that_are_started_and_stopped_by_hand(database: Database) -> None:
    with database.engine.begin() as connection:
        want(connection, "n1", "n2", "n3")
        assert size(connection) == 3
        want(connection, "n4")
        assert size(connection) == 4, "while a node is replaced both are wanted"
        unwant(connection, "n1")
        unwant(connection, "n1")
        assert size(connection) == 3
        want(connection, "n1")
        assert size(connection) == 4, "a stopped node is wanted anew"


def test_nodes_carry_the_revision_of_what_they_are_started_with(database: Database) -> None:
    larger = make_spec("n3", "--max-num-seqs", "64")
    with database.engine.begin() as connection:
        want(connection, "n1", "n2")
        want(connection, "n3", spec=larger, at=2.0)
        first, second, third = (row.spec.revision for row in list_nodes(connection))
        assert first == second == Revision.of(make_spec("any")).id
        assert third == Revision.of(larger).id
        assert {row.revision.id for row in list_revisions(connection)} == {first, third}
        pool = get_pool(connection, "default")
        assert pool is not None
        assert pool.revision == first
        unwant(connection, "n1")
        unwant(connection, "n2")
        pool = get_pool(connection, "default")
        assert pool is not None
        assert pool.revision == third, "none of the other one is left"


def scale(connection: sa.Connection, by: str, *, start: tuple[str, ...] = (), stop: tuple[str, ...] = ()) -> None:
    begin_scaling(connection, "default", start=start, stop=stop, by=by, now=3.0)


def test_a_scaling_says_the_size_first_and_its_nodes_follow_without_moving_it(database: Database) -> None:
    with database.engine.begin() as connection:
        want(connection, "n1", "n2")
        scale(connection, "ann", start=("n3", "n4"))
        assert size(connection) == 4
        want(connection, "n3")
        assert size(connection) == 4
        scale(connection, "ann", start=("n3", "n4"))
        assert size(connection) == 4, "begun again after a crash"
        want(connection, "n4")
        scale(connection, "ann", stop=("n1", "n2"))
        assert size(connection) == 2
        unwant(connection, "n1")
        assert size(connection) == 2
        end_scaling(connection, "default", 4.0)
        assert size(connection) == 3, "it broke off: what is there is what is wanted"


def test_a_pool_has_one_owner_a_person_takes_it_and_the_autoscaler_may_not(database: Database) -> None:
    with database.engine.begin() as connection:
        want(connection, "n1", "n2")
        with pytest.raises(RefusedError, match="is a person's"):
            scale(connection, "autoscaler", start=("n3",))
        assert size(connection) == 2
        assert set_owner(connection, "default", PoolOwner.AUTOSCALER, "ann", 3.0) is PoolOwner.PERSON
        scale(connection, "autoscaler", start=("n3",))
        assert size(connection) == 3
        scale(connection, "bob", stop=("n2",))
        pool = get_pool(connection, "default")
        assert pool is not None
        assert (pool.wanted_size, pool.owner, pool.updated_by) == (1, PoolOwner.PERSON, "bob")
        with pytest.raises(RefusedError):
            scale(connection, "autoscaler", start=("n3",))
        with pytest.raises(BadInputError, match="no pool decode"):
            set_owner(connection, "decode", PoolOwner.PERSON, "ann", 4.0)


def test_a_pool_is_gone_with_its_last_node_and_its_revisions_stay(database: Database) -> None:
    with database.engine.begin() as connection:
        want(connection, "n1", "n2")
        for name in ("n1", "n2"):
            unwant(connection, name)
            assert delete_stopped(connection, name)
        assert not delete_stopped(connection, "n2")
        assert list_pools(connection) == []
        assert len(list_revisions(connection)) == 1


def test_a_state_from_before_pools_opens_with_one_for_each_name(any_database_url: str) -> None:
    url = any_database_url
    database = Database(url)
    with database.engine.begin() as connection:
        want(connection, "n1", "n2", "n3")
        want(connection, "d1", spec=replace(make_spec("d1"), pool="decode"))
        unwant(connection, "n3")
        # As the version before left it: no such tables and columns, and revisions that name nothing.
        pools.drop(connection)
        revisions.drop(connection)
        for index in nodes.indexes:
            index.drop(connection)
        for row in list_nodes(connection):
            old = {**row.spec.to_json(), "revision": "r1"}
            connection.execute(sa.update(nodes).where(nodes.c.name == row.name).values(spec=old))
        for column in ("pool", "revision"):
            connection.execute(sa.text(f"ALTER TABLE nodes DROP COLUMN {column}"))
        put_meta(connection, "schema_version", 4)
    database.close()

    database = Database(url)
    with database.engine.begin() as connection:
        for _ in range(2):  # the second time there is nothing left to do
            note_unrecorded_pools(connection, 5.0)
            assert {pool.name: pool.wanted_size for pool in list_pools(connection)} == {"default": 2, "decode": 1}
        assert {row.spec.revision for row in list_nodes(connection)} == {Revision.of(make_spec("any")).id}
        assert len(list_revisions(connection)) == 1
        unwant(connection, "n1")
        assert size(connection) == 1
    database.close()
