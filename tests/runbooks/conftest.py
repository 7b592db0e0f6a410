"""Fixtures of the runbook tests, on SQLite, and on PostgreSQL too when FLEETCTL_TEST_POSTGRES_URL is set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from runbooks.journal import Journal
from runbooks.schema import metadata, open_engine
from tests.fixtures.runbooks import World

POSTGRES_URL = os.environ.get("FLEETCTL_TEST_POSTGRES_URL")


@pytest.fixture(autouse=True)
def _plain_tracebacks() -> Iterator[None]:
    """One with every local of each frame takes seconds, and runs that fail on purpose log many."""
    render = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[render])
    yield
    structlog.reset_defaults()


@pytest.fixture(params=["sqlite", "postgres"] if POSTGRES_URL else ["sqlite"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.sqlite'}"
    assert POSTGRES_URL is not None
    engine = open_engine(POSTGRES_URL)
    metadata.drop_all(engine)
    engine.dispose()
    return POSTGRES_URL


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
