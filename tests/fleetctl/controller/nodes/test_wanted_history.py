"""What was wanted within the last hour, in the database: across restarts, forgotten nodes and clocks that are set."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from fleetctl.controller.database import Database
from fleetctl.controller.nodes.node_row import Role, change_node, want_node
from fleetctl.controller.nodes.wanted_history import KEPT_S, WantedHistory, note_unrecorded
from fleetctl.controller.tables import nodes, wanted_changes
from runbooks.wanted_past import WantedPast
from tests.fixtures.controller import make_spec
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio


async def ages(history: WantedHistory) -> list[tuple[str, bool, float]]:
    return [(change.name, change.wanted, change.age_s) for change in await history.changes()]


async def test_what_was_wanted_survives_a_restart_and_the_end_of_its_node(any_database_url: str) -> None:
    url, clock = any_database_url, DrivenClock()
    first = Database(url)
    await first.write(lambda c: want_node(c, make_spec("n1"), Role.MEMBER, clock.now()))
    clock.move(100.0)
    await first.write(lambda c: change_node(c, "n1", clock.now(), {"wanted": False}))
    await first.write(lambda c: change_node(c, "n1", clock.now(), {"route": "none"}))
    first.close()
    clock.move(50.0)
    second = Database(url)
    try:
        await second.write(lambda c: c.execute(sa.delete(nodes)))
        assert await ages(WantedHistory(second, clock, lambda: 0.0)) == [("n1", True, 150.0), ("n1", False, 50.0)]
    finally:
        second.close()


async def test_a_clock_that_is_set_ahead_or_back_ages_nothing(any_database_url: str) -> None:
    clock, seconds = DrivenClock(), [0.0]
    database = Database(any_database_url)
    try:
        await database.write(lambda c: want_node(c, make_spec("n1"), Role.MEMBER, clock.now()))
        history = WantedHistory(database, clock, lambda: seconds[0])
        assert await ages(history) == [("n1", True, 0.0)]
        clock.move(7200.0)
        seconds[0] = 10.0
        assert await ages(history) == [("n1", True, 10.0)]
        clock.move(-9000.0)
        assert await ages(history) == [("n1", True, 0.0)], "never more than is sure, and never less than nothing"
    finally:
        database.close()


async def test_restart_with_a_clock_that_was_set_back_does_not_let_floors_sink(any_database_url: str) -> None:
    clock, seconds = DrivenClock(), [0.0]

    def pass_s(number: float) -> None:
        clock.move(number)
        seconds[0] += number

    database = Database(any_database_url)
    try:
        names = [f"n{number}" for number in range(5)]
        for name in names:
            await database.write(lambda c, name=name: want_node(c, make_spec(name), Role.MEMBER, clock.now()))
        clock.move(-5 * 3600.0)
        history = WantedHistory(database, clock, lambda: seconds[0])
        await history.changes()
        for name in names[:3]:
            pass_s(60.0)
            await database.write(lambda c, name=name: change_node(c, name, clock.now(), {"wanted": False}))
        pass_s(60.0)
        past = WantedPast(tuple(await history.changes()))
        assert past.peak(lambda change: True) == 5
        pass_s(2 * 3600.0)
        past = WantedPast(tuple(await history.changes()))
        assert past.peak(lambda change: True) == 2, "and an hour is an hour"
    finally:
        database.close()


async def test_a_state_of_before_begins_with_what_is_wanted_and_old_changes_go(any_database_url: str) -> None:
    clock = DrivenClock()
    database = Database(any_database_url)
    try:
        for name in ("n1", "n2"):
            await database.write(lambda c, name=name: want_node(c, make_spec(name), Role.MEMBER, clock.now()))
        await database.write(lambda c: c.execute(sa.delete(wanted_changes)))
        await database.write(lambda c: change_node(c, "n2", clock.now(), {"wanted": False}))
        await database.write(lambda c: note_unrecorded(c, clock.now()))
        history = WantedHistory(database, clock, lambda: 0.0)
        assert await ages(history) == [("n2", False, 0.0), ("n1", True, 0.0)]
        clock.move(KEPT_S + 1)
        await database.write(lambda c: want_node(c, make_spec("n3"), Role.MEMBER, clock.now()))
        assert [name for name, _, _ in await ages(history)] == ["n1", "n3"], "what is wanted still is kept"
    finally:
        database.close()
