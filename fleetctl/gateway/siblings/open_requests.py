"""Which requests a worker has open, where its end can't take that along: slots of a file mapped into its memory.

A worker that is killed can't say what it carried. What it wrote here is there after SIGKILL too; the supervisor reads
it, and counts those requests as lost.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

MAX_OPEN = 4096  # those beyond are not noted
_SLOT = struct.Struct("<dB128s")  # Unix seconds of its arrival, length of its id (0: a free slot), its id
_LENGTH = struct.Struct("<B")
_LENGTH_AT = 8
_MAX_ID_BYTES = 128


class OpenRequest(NamedTuple):
    """A request without an end. `started_at`: Unix seconds."""

    request_id: str
    started_at: float


class OpenRequests:
    """One worker's open requests. About half a microsecond each; no system call."""

    def __init__(self, folder: Path, worker: int) -> None:
        """Raises OSError: no room, or the folder can't be written."""
        with _file_of(folder, worker).open("w+b") as file:
            # Reserved now: a page that the disk has no room for later would end the process (SIGBUS).
            os.posix_fallocate(file.fileno(), 0, MAX_OPEN * _SLOT.size)
            self._slots = mmap.mmap(file.fileno(), MAX_OPEN * _SLOT.size)
        self._free = list(range(MAX_OPEN - 1, -1, -1))
        self._used: dict[str, int] = {}

    def note(self, request_id: str, started_at: float) -> None:
        """It has come. Its id is not open here."""
        if self._free and len(request_id) <= _MAX_ID_BYTES:
            slot = self._used[request_id] = self._free.pop()
            _SLOT.pack_into(self._slots, slot * _SLOT.size, started_at, len(request_id), request_id.encode("ascii"))

    def forget(self, request_id: str) -> None:
        """It has its fate."""
        slot = self._used.pop(request_id, None)
        if slot is not None:
            _LENGTH.pack_into(self._slots, slot * _SLOT.size + _LENGTH_AT, 0)
            self._free.append(slot)


def read_open_requests(folder: Path, worker: int) -> list[OpenRequest]:
    """What the worker has open; of one that has ended, what ended with it. The oldest first."""
    try:
        slots = _file_of(folder, worker).read_bytes()
    except OSError:
        return []
    whole = slots[: len(slots) - len(slots) % _SLOT.size]
    found = [OpenRequest(name[:length].decode("ascii"), at) for at, length, name in _SLOT.iter_unpack(whole) if length]
    return sorted(found, key=lambda one: one.started_at)


def remove_open_requests(folder: Path, worker: int) -> None:
    """They are counted. Raises OSError."""
    _file_of(folder, worker).unlink(missing_ok=True)


def _file_of(folder: Path, worker: int) -> Path:
    return folder / f"open-of-{worker}"
