"""Rollouts as they are stored, also in a state of before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from fleetctl.controller import tables
from fleetctl.controller.database import Database, get_meta, put_meta
from fleetctl.controller.nodes.pool_row import list_pools
from fleetctl.controller.rollouts.deploy_before import deploy_before, nothing_to_take_back
from fleetctl.controller.rollouts.rollout import Rollout, RolloutState
from fleetctl.controller.rollouts.rollout_row import earlier_revision, get_under_way, list_rollouts, put_rollout

BEGUN = Rollout("rollout-1", "chat", "rev-a", "rev-b", (0.05, 1.0), 10.0, "ann").at_step(
    0, at=10.0, by="ann", why="test"
)
DONE = BEGUN.moved(RolloutState.DONE, at=20.0, by="controller", why="all nodes")


def test_state_of_before_gets_its_table_and_its_pools_their_columns(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'controller.sqlite'}"
    with Database(url).engine.begin() as connection:
        tables.rollouts.drop(connection)
        for name in ("stable_revision", "num_stable", "override"):
            connection.exec_driver_sql(f"ALTER TABLE pools DROP COLUMN {name}")
        row = {"name": "chat", "model": "m", "wanted_size": 2, "revision": "rev-a", "owner": "person"}
        connection.execute(
            sa.text(
                "INSERT INTO pools (name, model, wanted_size, revision, owner, updated_at, updated_by)"
                " VALUES (:name, :model, :wanted_size, :revision, :owner, 1.0, 'ann')"
            ),
            row,
        )
        put_meta(connection, "schema_version", 7)
    with Database(url).engine.begin() as connection:
        (pool,) = list_pools(connection)
        assert (pool.name, pool.stable_revision, pool.num_stable, pool.override) == ("chat", "", 0, "")
        assert list_rollouts(connection) == []
        put_rollout(connection, BEGUN)
        assert get_meta(connection, "schema_version") == tables.SCHEMA_VERSION


def test_rollout_is_read_as_it_was_stored_and_has_one_row(tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path / 'controller.sqlite'}").engine.begin() as connection:
        put_rollout(connection, BEGUN)
        assert get_under_way(connection, "chat") == BEGUN
        assert get_under_way(connection, "code") is None
        put_rollout(connection, DONE)
        assert list_rollouts(connection, "chat") == [DONE]
        assert get_under_way(connection, "chat") is None


def test_rollout_that_an_earlier_version_stored_with_more_than_we_keep_is_read() -> None:
    stored = {**BEGUN.to_json(), "step_began_at": 10.0}
    assert Rollout.from_json(stored) == BEGUN


def test_what_began_before_a_rollout_did_not_begin_with_it() -> None:
    """A queue that grew since 28 s was said to have "begun with" a rollout, and its rollback was proposed."""
    rollout = replace(BEGUN, history=tuple(replace(one, at=1000.0) for one in BEGUN.history))
    assert deploy_before([rollout], "chat", 972.0) is None
    assert deploy_before([rollout], "chat", 995.0) is rollout, "by as much as a scrape is apart"
    assert deploy_before([rollout], "chat", 1300.0) is rollout
    assert deploy_before([rollout], "chat", 1000.0 + 3600) is None


def test_a_rollout_that_went_back_by_itself_is_told_where_a_rollback_would_be_proposed() -> None:
    back = BEGUN.moved(RolloutState.ROLLED_BACK, at=60.0, by="controller", why="errors")
    assert deploy_before([back], "chat", 120.0) is None
    assert nothing_to_take_back([back], "chat", 120.0) == (
        "rollout-1 of its pool is rolled back already: nothing is left to take back"
    )
    assert nothing_to_take_back([back], "code", 120.0).startswith("no rollout of its pool within 30 minutes before")


def test_a_rollout_that_was_taken_back_since_is_not_taken_back_once_more() -> None:
    back = replace(DONE, id="rollout-2", from_revision="rev-b", to_revision="rev-a", is_return=True, started_at=30.0)
    assert deploy_before([DONE], "chat", 40.0) is DONE
    assert deploy_before([DONE, back], "chat", 40.0) is None
    assert nothing_to_take_back([DONE, back], "chat", 40.0) == (
        "rollout-1 of its pool is taken back by rollout-2 already: nothing is left to take back"
    )


def test_rollback_goes_to_where_the_last_rollout_came_from_and_not_to_what_was_left(tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path / 'controller.sqlite'}").engine.begin() as connection:
        put_rollout(connection, DONE)
        assert earlier_revision(connection, "chat", "rev-b") == "rev-a"
        back = replace(
            DONE, id="rollout-2", from_revision="rev-b", to_revision="rev-a", is_return=True, started_at=30.0
        )
        put_rollout(connection, back)
        assert earlier_revision(connection, "chat", "rev-a") == ""
