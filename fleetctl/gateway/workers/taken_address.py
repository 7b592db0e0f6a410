"""The address of a gateway, taken once: bound anew, or inherited with the workers that serve on it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from fleetctl.gateway.http.listener import bind_listener
from fleetctl.gateway.workers.launch import DRAIN, SupervisorState, WorkerState, workers_folder
from fleetctl.gateway.workers.succession import succeed
from fleetctl.kit.errors import BadInputError

log = structlog.get_logger()

LEFTOVERS_LIMIT_S = 3.0
POLL_S = 0.05


def shared_folder(folder: Path) -> Path:
    """Where the workers meet: that of a supervisor that was killed, so that its counts go on, or a new one."""
    left = sorted(one for one in folder.glob("[0-9]*/") if one.name.isdigit())
    return left[-1] if left else folder / str(time.time_ns())


@dataclass(frozen=True, slots=True)
class TakenAddress:
    """The bound listener, and channels to workers of a killed supervisor that serve on it still."""

    listener: socket.socket
    channels: tuple[socket.socket, ...] = ()

    def is_at(self, host: str, port: int) -> bool:
        """Whether it is the address that is wanted now."""
        with suppress(OSError):
            wanted = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
            return bool(wanted == self.listener.getsockname())
        return False

    def give_up(self) -> None:
        """The settings have another address: its workers end what they have."""
        for channel in self.channels:
            with suppress(OSError):
                channel.send(DRAIN)
            channel.close()
        self.listener.close()


def take_address(host: str, port: int, run_dir: Path) -> TakenAddress:
    """The address, from the workers of a supervisor that was killed where there are any. Those that hold it and do not
    answer are ended.

    Raises BadInputError: somebody else has it.
    """
    folder = workers_folder(run_dir, port)
    state = SupervisorState.read(folder)
    left = [] if state is None or state.is_alive else state.leftovers(folder)
    if inherited := _inherit(folder, left):
        if inherited.is_at(host, port):
            return inherited
        inherited.give_up()
    deadline = time.monotonic() + LEFTOVERS_LIMIT_S
    while True:
        left = [] if state is None or state.is_alive else state.leftovers(folder)
        try:
            return TakenAddress(bind_listener(host, port))
        except BadInputError:
            if not left:
                raise
        if time.monotonic() > deadline:
            log.warning("supervisor.leftovers_killed", pids=[one.pid for one in left])
            for one in left:
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _inherit(folder: Path, left: Sequence[WorkerState]) -> TakenAddress | None:
    """The listener of those that serve. None: nobody handed it on."""
    heirs = {one.number for one in left if one.phase == "serving" and one.number}
    shared = shared_folder(folder)
    channels: list[socket.socket] = []
    listener: socket.socket | None = None
    deadline = time.monotonic() + LEFTOVERS_LIMIT_S
    while heirs and time.monotonic() < deadline:
        for number in sorted(heirs):
            if (got := succeed(shared, number)) is not None:
                heirs.discard(number)
                channels.append(got[0])
                if listener is None:
                    listener = got[1]
                else:
                    got[1].close()
        if heirs:
            time.sleep(POLL_S)
    if listener is None:
        return None
    log.info("supervisor.inherited", workers=len(channels), without_answer=len(heirs))
    return TakenAddress(listener, tuple(channels))
