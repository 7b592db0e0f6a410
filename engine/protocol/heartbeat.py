"""The core's sign of life: one page of memory that the core writes and the API process reads.

A message says what was done; the page says what is being done right now, and how long that should take. Reading it
needs nothing of the core, so it tells of a core that hangs, and it is as true when the reader itself was late.

Beside the heartbeat lies one number, the time of the last progress inside a step: kernels write it at each chunk of
their work, so that a core that stops in the middle of a step of a minute is told from one that computes it.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import tempfile
from dataclasses import dataclass, replace
from enum import IntEnum

_COUNT = struct.Struct("<Q")
_FIELDS = struct.Struct("<dQQdQQQQ")
_PROGRESS = struct.Struct("=d")
_BEGUN_AT, _FIELDS_AT, _ENDED_AT = 0, 8, 8 + _FIELDS.size  # a write's number, its fields, its number again
_PROGRESS_AT = 512  # of a cache line of its own
_SIZE_BYTES = mmap.PAGESIZE
_TRIES = 8


class CoreState(IntEnum):
    """What the core process is doing."""

    STARTING = 0  # nothing was written yet
    IDLE = 1  # no requests; looks at its inbox about once a second
    BETWEEN_STEPS = 2
    STEP = 3


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the core does since `at` (monotonic seconds). The rest describes the step it computes, or did last."""

    at: float
    state: CoreState
    step_id: int = 0
    predicted_s: float | None = None  # None: no step was measured yet
    num_seqs: int = 0
    num_tokens: int = 0
    context_tokens: int = 0  # positions whose KV is read
    marks: int = 1  # about how often the step shows progress, at even intervals; 1: only by its end
    progress_at: float = 0.0  # of the last progress inside a step (monotonic seconds); read, not written with the rest


class HeartbeatPage:
    """One writer in one process, any readers. A reader sees a whole heartbeat or the one before, never a mixture."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._count = 0
        self._last: Heartbeat | None = None

    @classmethod
    def private(cls) -> HeartbeatPage:
        """A page of this process alone."""
        return cls(mmap.mmap(-1, _SIZE_BYTES))

    @classmethod
    def shared(cls) -> tuple[HeartbeatPage, int]:
        """A page and the descriptor by which a child process opens it; the caller closes the descriptor."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("engine-heartbeat")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, _SIZE_BYTES)
        return cls(mmap.mmap(fd, _SIZE_BYTES)), fd

    @classmethod
    def open(cls, fd: int) -> HeartbeatPage:
        """The page behind a descriptor, which is closed. Raises ValueError when there is none."""
        try:
            memory = mmap.mmap(fd, _SIZE_BYTES)
            os.close(fd)
        except (OSError, ValueError) as error:
            raise ValueError(f"--heartbeat-fd {fd}: not a page of memory ({error})") from error
        return cls(memory)

    def write(self, heartbeat: Heartbeat) -> None:
        """Replace the page's heartbeat. One process may write."""
        self._count += 1
        _COUNT.pack_into(self._memory, _BEGUN_AT, self._count)
        _FIELDS.pack_into(
            self._memory,
            _FIELDS_AT,
            heartbeat.at,
            heartbeat.state,
            heartbeat.step_id,
            math.nan if heartbeat.predicted_s is None else heartbeat.predicted_s,
            heartbeat.num_seqs,
            heartbeat.num_tokens,
            heartbeat.context_tokens,
            heartbeat.marks,
        )
        _COUNT.pack_into(self._memory, _ENDED_AT, self._count)

    def progress_memory(self) -> memoryview:
        """The eight bytes that hold the time of the last progress, for who computes to write."""
        return memoryview(self._memory)[_PROGRESS_AT : _PROGRESS_AT + _PROGRESS.size]

    def read(self) -> Heartbeat | None:
        """The last whole heartbeat; None before the first. A core that stopped while it wrote leaves the one before."""
        for _ in range(_TRIES):
            # In the other order than it is written: if no write began since this one ended, the fields are its own.
            (ended,) = _COUNT.unpack_from(self._memory, _ENDED_AT)
            fields = _FIELDS.unpack_from(self._memory, _FIELDS_AT)
            (begun,) = _COUNT.unpack_from(self._memory, _BEGUN_AT)
            if ended == begun and begun > 0:
                self._last = _heartbeat(*fields)
                break
        if self._last is None:
            return None
        (progress_at,) = _PROGRESS.unpack_from(self._memory, _PROGRESS_AT)
        return replace(self._last, progress_at=progress_at)


def _heartbeat(
    at: float,
    state: int,
    step_id: int,
    predicted_s: float,
    num_seqs: int,
    num_tokens: int,
    context_tokens: int,
    marks: int,
) -> Heartbeat:
    predicted = None if math.isnan(predicted_s) else predicted_s
    return Heartbeat(at, CoreState(state), step_id, predicted, num_seqs, num_tokens, context_tokens, marks)
