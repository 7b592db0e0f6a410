"""Fixtures of the runbook tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from runbooks.journal import Journal
from tests.fixtures.runbooks import World


@pytest.fixture(autouse=True)
def _plain_tracebacks() -> Iterator[None]:
    """One with every local of each frame takes seconds, and runs that fail on purpose log many."""
    render = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[render])
    yield
    structlog.reset_defaults()


@pytest.fixture
def database_url(any_database_url: str) -> str:
    """The URL of an empty database: the whole suite runs on SQLite and on PostgreSQL."""
    return any_database_url


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """A fleet of three nodes, a clock and a database that outlive controllers."""
    made = World(database_url)
    yield made
    made.close()


@pytest.fixture
def journal(world: World) -> Journal:
    """The world's journal, claimed by this controller."""
    made = Journal(world.engine)
    made.claim_epoch()
    return made
