"""A port between the moment it is chosen and the moment its server listens."""

from __future__ import annotations

import errno
import socket
import sys

import pytest

from fleetctl.kit.reserved_port import MAX_HELD, reserve_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is held")


def test_a_reserved_port_is_taken_for_others_and_free_for_its_server() -> None:
    port = reserve_port()
    with socket.socket() as other:
        with pytest.raises(OSError) as caught:
            other.bind(("127.0.0.1", port))
        assert caught.value.errno == errno.EADDRINUSE
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED, "nobody listens yet"
    for _ in range(2):  # its server may start again
        with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()


def test_so_many_are_held_that_a_long_lived_process_keeps_its_descriptors() -> None:
    first = reserve_port()
    ports = [reserve_port() for _ in range(MAX_HELD)]
    assert len({first, *ports}) == MAX_HELD + 1
    with socket.socket() as other:
        other.bind(("127.0.0.1", first))
