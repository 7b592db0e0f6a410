"""Ports for processes that are about to start: until they listen, nobody else is given them."""

from __future__ import annotations

import os
import socket
import sys
from collections import deque

MAX_HELD = 64  # by then the processes that the oldest were for listen, or ended

_held: deque[int] = deque()  # descriptors of bound sockets that do not listen


def reserve_port() -> int:
    """A port of 127.0.0.1 that the kernel gives to nobody who asks for any port: no server, no outgoing connection.

    It stays bound here, without a listener, until this process ends or has reserved 64 more. The server that it is for
    binds it beside that, because both allow it (SO_REUSEADDR, which servers set to start again at once). Elsewhere than
    on Linux that does not hold, and the port is only one that was free.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        if sys.platform == "linux":
            _held.append(reserved.detach())
    if len(_held) > MAX_HELD:
        os.close(_held.popleft())
    return port
