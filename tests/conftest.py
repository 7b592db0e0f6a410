"""Shared by all tests: asyncio for async tests, one torch thread, small helpers to wait for conditions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.fixtures.postgres import PostgresCluster, running_cluster

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before any torch import: two test workers share two cores
# No test holds a timing threshold: hypothesis' own are of quiet machines.
settings.register_profile("fleetctl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fleetctl")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    """One PostgreSQL server for all tests of this worker."""
    yield from running_cluster()


@pytest.fixture(params=["sqlite", "postgres"])
def any_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database: what is stored must be the same on SQLite and PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state.sqlite'}"
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    return cluster.new_url()
