"""Shared by all tests: asyncio for async tests, one torch thread, small helpers to wait for conditions."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.fixtures.postgres import PostgresCluster, running_cluster

if TYPE_CHECKING:
    from tests.fixtures.kubernetes.cluster import Cluster
    from tests.fixtures.kubernetes.control_plane import ControlPlane
    from tests.fixtures.kubernetes.kubelet import Kubelet

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before any torch import: test workers share the cores
# No test holds a timing threshold: hypothesis' own are of quiet machines.
settings.register_profile("fleetctl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fleetctl")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Among workers the files that may take longest begin first: a stage that ends with one of them has one worker.

    Long is what asks for a longer timeout, then what starts processes. A file's tests keep their order.
    """
    if not hasattr(config, "workerinput"):
        return
    length: dict[Path, tuple[float, bool]] = defaultdict(lambda: (0.0, False))
    for item in items:
        timeout = item.get_closest_marker("timeout")
        seconds = float(timeout.args[0]) if timeout else 0.0
        length[item.path] = max(length[item.path], (seconds, item.get_closest_marker("e2e") is not None))
    items.sort(key=lambda item: length[item.path], reverse=True)  # stable in reverse too


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


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One real Kubernetes control plane for all tests of this worker."""
    from tests.fixtures.kubernetes.cluster import running_plane  # its client library is slow to import

    yield from running_plane(tmp_path_factory.mktemp("plane"))


@pytest.fixture(scope="session")
def kubelet(plane: ControlPlane) -> Iterator[Kubelet]:
    """What runs its pods as processes."""
    from tests.fixtures.kubernetes.cluster import running_kubelet

    yield from running_kubelet(plane)


@pytest.fixture
def cluster(plane: ControlPlane, kubelet: Kubelet, tmp_path: Path) -> Iterator[Cluster]:
    """The test's own namespace of it."""
    from tests.fixtures.kubernetes.cluster import fresh_cluster

    yield from fresh_cluster(plane, kubelet, tmp_path)
