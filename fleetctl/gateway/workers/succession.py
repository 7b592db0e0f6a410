"""The address after a supervisor was killed: its workers serve on, and hand the listener to the next supervisor.

A worker that loses its supervisor opens a door in the workers' folder. Who comes through it gets the listener, and is
obeyed from then on. So nobody is refused while the gateway is started again.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from fleetctl.gateway.siblings.siblings import ShortAddress

SUCCESSOR_LIMIT_S = 90.0  # longer than the longest back-off of a gateway's restart; then the worker drains
ANSWER_LIMIT_S = 1.0
_HERE = b"listener\n"


async def wait_for_successor(folder: Path, worker: int, listener: socket.socket) -> socket.socket | None:
    """The next supervisor's channel, once it has the listener. None: none came in time.

    Raises OSError when the door can't be opened.
    """
    path = _door_of(folder, worker)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        with ShortAddress(path) as address:
            door.bind(address)
        door.listen(1)
        door.setblocking(False)
        try:
            async with asyncio.timeout(SUCCESSOR_LIMIT_S):
                channel, _ = await asyncio.get_running_loop().sock_accept(door)
        except TimeoutError:
            return None
        finally:
            path.unlink(missing_ok=True)
    socket.send_fds(channel, [_HERE], [listener.fileno()])
    return channel


def succeed(folder: Path, worker: int) -> tuple[socket.socket, socket.socket] | None:
    """The worker's channel and its listener. None: it has no door, or not yet, or does not answer. Blocking."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(ANSWER_LIMIT_S)
    try:
        with ShortAddress(_door_of(folder, worker)) as address:
            channel.connect(address)
        said, descriptors, _, _ = socket.recv_fds(channel, len(_HERE), 1)
    except OSError:
        channel.close()
        return None
    if said != _HERE or not descriptors:
        channel.close()
        return None
    return channel, socket.socket(fileno=descriptors[0])


def _door_of(folder: Path, worker: int) -> Path:
    return folder / f"{worker}.door"
