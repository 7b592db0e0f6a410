"""A connection to the API server that breaks as it is used again: what may be done twice is, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fleetctl.kit.errors import UnreachableError
from fleetctl.providers.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes.control_plane import write_kubeconfig


class _Server(ThreadingHTTPServer):
    """Answers the first request of a connection and hangs up at the second, without a word."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    has_answered = False

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.has_answered:
            self.close_connection = True
            return
        self.has_answered = True
        body = b'{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "host-a"}}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PATCH = do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def cluster(server: _Server, tmp_path: Path) -> Iterator[Cluster]:
    url = f"http://127.0.0.1:{server.server_port}"
    made = Cluster(write_kubeconfig(tmp_path / "kubeconfig", url, "token", "default"))
    assert made.find("nodes", "", "host-a") is not None
    yield made
    made.close()


def test_a_look_and_a_plain_patch_are_sent_once_more(cluster: Cluster, server: _Server) -> None:
    assert cluster.find("nodes", "", "host-a") is not None
    cluster.patch("nodes", "", "host-a", {"spec": {"unschedulable": True}})
    assert [line.split()[0] for line in server.asked] == ["GET", "GET", "GET", "PATCH", "PATCH"]


def test_a_patch_of_one_version_is_not(cluster: Cluster, server: _Server) -> None:
    """Had the first been done, the second would be refused, and what was done be told as not done."""
    with pytest.raises(UnreachableError, match="gave no answer"):
        cluster.patch("nodes", "", "host-a", {"metadata": {"resourceVersion": "7"}, "spec": {"unschedulable": True}})
    assert [line.split()[0] for line in server.asked] == ["GET", "PATCH"]


def test_a_json_patch_is_not_as_it_tests_the_version_that_its_first_has_changed(
    cluster: Cluster, server: _Server
) -> None:
    same = {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    with pytest.raises(UnreachableError, match="gave no answer"):
        cluster.patch_json("nodes", "", "host-a", [same, {"op": "replace", "path": "/spec", "value": {}}])
    assert [line.split()[0] for line in server.asked] == ["GET", "PATCH"]


def test_an_eviction_is_not(cluster: Cluster, server: _Server) -> None:
    with pytest.raises(UnreachableError, match="gave no answer"):
        cluster.evict("default", "pod-1", uid="u")
    assert [line.split()[0] for line in server.asked] == ["GET", "POST"]
