"""What a supervisor and its workers say to each other, and what the supervisor writes down for others to read."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fleetctl.gateway.siblings.joined_views import WorkersNow
from fleetctl.kit.whole_file import write_whole
from fleetctl.settings.tree import Settings

SERVING = b"serving\n"
"""A worker's word: it takes connections."""
FAILED = b"failed "
"""A worker's word before it ends: why it can't serve, as one line."""
RETIRE, DRAIN, ABORT = b"retire\n", b"drain\n", b"abort\n"
"""Orders: take no more connections and end with the last one; end as by SIGTERM; end at once."""

STATE_FILE = "state.json"
SIGN_OF_LIFE_S = 5.0
"""How often a supervisor touches its state: it answers nobody, and one that stands still would be missed by no one."""
WORKER_MODULE = "fleetctl.gateway.workers.worker"
_LENGTH_BYTES = 4


def workers_folder(run_dir: Path, port: int) -> Path:
    """What the supervisor and workers of one address keep. Two gateways may share a run folder, never an address."""
    return run_dir / f"workers-{port}"


class Launch(BaseModel):
    """What the workers of one generation are started with. Holds secrets: it goes through a pipe, never into a file."""

    model_config = ConfigDict(frozen=True)

    settings: dict[str, Any]
    controller_url: str  # several are written with spaces between them

    @classmethod
    def from_settings(cls, settings: Settings) -> Launch:
        """The settings in force, as they are now."""
        urls = (settings.controller.base_url, *settings.controller.peers)
        return cls(settings=settings.revealed(), controller_url=" ".join(urls))

    def send(self) -> bytes:
        """Its bytes on a worker's channel."""
        text = self.model_dump_json().encode()
        return len(text).to_bytes(_LENGTH_BYTES, "big") + text

    @classmethod
    def receive(cls, channel: socket.socket) -> Launch | None:
        """Blocking. None: the supervisor is gone."""
        length = _read_exactly(channel, _LENGTH_BYTES)
        text = _read_exactly(channel, int.from_bytes(length, "big")) if length else b""
        return cls.model_validate_json(text) if text else None


class WorkerState(BaseModel):
    """One worker process. `phase`: starting, serving, or retiring (it only ends what it has)."""

    model_config = ConfigDict(frozen=True)

    pid: int
    number: int = 0  # in the workers' folder; 0: written before this was told
    generation: int
    index: int
    phase: str


class SupervisorState(BaseModel):
    """What runs under a supervisor, in `state.json` of its folder from its start to its orderly end."""

    model_config = ConfigDict(frozen=True)

    pid: int
    generation: int
    num_wanted: int
    deaths: int = 0  # ends of workers that nobody asked for
    reloads: int = 0  # that came to an end, well or not
    reload_error: str | None = None  # why the last one changed nothing
    shows_life: bool = False  # it touches this file every `SIGN_OF_LIFE_S`; one of older code does not
    workers: tuple[WorkerState, ...] = ()

    def write(self, folder: Path) -> None:
        """Put it in place of the one before. Raises OSError."""
        write_whole(folder / STATE_FILE, self.model_dump_json(indent=1))

    @classmethod
    def read(cls, folder: Path) -> SupervisorState | None:
        """The state in the folder; None without a readable one. Its processes may have ended since."""
        try:
            return cls.model_validate_json((folder / STATE_FILE).read_bytes())
        except (OSError, ValidationError):
            return None

    def silent_s(self, folder: Path) -> float | None:
        """Seconds since its last sign of life; None where it gives none, or nobody can tell."""
        if not self.shows_life:
            return None
        try:
            return max(0.0, time.time() - (folder / STATE_FILE).stat().st_mtime)
        except OSError:
            return None

    @property
    def is_alive(self) -> bool:
        """Whether the supervisor runs: a pid alone might be another program's by now."""
        return b"fleetctl.gateway" in _command_line(self.pid)

    def leftovers(self, folder: Path) -> list[WorkerState]:
        """Workers that run still."""
        return [one for one in self.workers if is_worker(one.pid, folder)]

    def workers_now(self, folder: Path) -> WorkersNow:
        """What the gateway tells: its counts, and since when it is silent."""
        phases = Counter(one.phase for one in self.workers)
        return WorkersNow(
            generation=self.generation,
            wanted=self.num_wanted,
            serving=phases["serving"],
            retiring=phases["retiring"],
            deaths=self.deaths,
            reloads=self.reloads,
            reload_error=self.reload_error,
            supervisor_silent_s=self.silent_s(folder),
        )


def end_leftovers(run_dir: Path) -> None:
    """Have workers drain whose supervisor was killed: they would serve on until another one comes."""
    for folder in run_dir.glob("workers-*"):
        state = SupervisorState.read(folder)
        for worker in [] if state is None or state.is_alive else state.leftovers(folder):
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)


def is_worker(pid: int, folder: Path) -> bool:
    """Whether a worker of the folder runs under the pid, which might be another program's by now."""
    words = _command_line(pid)
    return WORKER_MODULE.encode() in words and any(word.startswith(os.fsencode(folder) + b"/") for word in words)


def _command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _read_exactly(channel: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = channel.recv(size - len(got))
        if not part:
            return b""
        got += part
    return got
