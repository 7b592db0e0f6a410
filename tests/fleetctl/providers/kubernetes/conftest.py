"""One real control plane for a worker's session; each test has a namespace of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes.control_plane import ControlPlane
from tests.fixtures.kubernetes.kubelet import Kubelet


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    made = ControlPlane.start(tmp_path_factory.mktemp("plane"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def kubelet(plane: ControlPlane) -> Iterator[Kubelet]:
    made = Kubelet(plane, plane.folder / "kubelet")
    yield made
    made.stop()


@pytest.fixture
def cluster(plane: ControlPlane, kubelet: Kubelet, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster.make(plane, kubelet, tmp_path)
    yield made
    made.remove()
