"""The address of a gateway: bound once, by who owns it."""

from __future__ import annotations

import errno
import socket

from fleetctl.kit.errors import BadInputError


def bind_listener(host: str, port: int) -> socket.socket:
    """A bound TCP socket. Raises BadInputError naming the address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BadInputError(f"gateway: cannot listen on {host}:{port}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        remedy = "stop the process that holds it, or choose another port" if error.errno == errno.EADDRINUSE else None
        message = f"gateway: cannot listen on {host}:{port}: {error.strerror or error}"
        raise BadInputError(message, remedy=remedy) from error
    return listener
