"""Compiled kernels on disk, one file each: loading one takes milliseconds, compiling it seconds.

A cache that can't be read or written is done without and never raises: an unwritable folder, a full disk, a damaged
file. Each file begins with the digest of the rest, as a file that was cut short by a power loss is else found out by a
crash. What is wrong is logged, once for each file that can't be read and once for the folder.

One process compiles at a time for a folder: nodes that start together need the same kernels, and three that compiled
each of them beside each other took three times as long as one.

The folder is NUMBA_CACHE_DIR, where that is set; else the first that can be written: beside the source, systemd's
CACHE_DIRECTORY, the user's cache folder. Its name holds the digest of this folder's sources.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle  # noqa: TID251 - numba's own form of compiled code; what is in it runs as this user anyway
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import structlog
from numba.core import serialize
from numba.core.compiler import CompileResult

__all__ = ["KernelFile"]

log = structlog.get_logger()

_DIGEST_BYTES = hashlib.sha256().digest_size
_SOURCE = Path(__file__).parent
_PACKAGE = __name__.rpartition(".")[0]
LONGEST_WAIT_S = 60.0  # the slowest kernel takes seconds of CPU to compile
_REMEDY = "kernels are compiled at every start; set NUMBA_CACHE_DIR to a folder that this user can write"


class KernelFile:
    """One kernel's file, in the form of a cache that `numba.core.ccallback.CFunc` asks before it compiles.

    Kernels from outside of this folder are not kept: the digest of the sources does not cover them.
    """

    def __init__(self, body: Callable[..., object]) -> None:
        self._body = body
        self._is_kept = body.__module__.rpartition(".")[0] == _PACKAGE

    def load_overload(self, signature: Any, target_context: Any) -> CompileResult | None:
        """The compiled kernel; None where there is none that can be used."""
        folder = _cache_folder() if self._is_kept else None
        if folder is None:
            return None
        path = folder / self._name(target_context)
        data = _bytes(path)
        if data is None:
            _turn.wait(folder)
            data = _bytes(path)  # of another process, meanwhile
        if not data:
            return None
        _turn.end()
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            log.warning("kernel_cache.damaged", path=str(path), remedy="it is compiled again and replaced")
            return None
        target_context.refresh()  # numba's own cache does so before it rebuilds
        return CompileResult._rebuild(target_context, *pickle.loads(data[_DIGEST_BYTES:]))  # noqa: S301 - our own file

    def save_overload(self, signature: Any, compiled: CompileResult) -> None:
        """Keeps a compiled kernel, whole or not at all."""
        folder = _cache_folder() if self._is_kept else None
        if folder is None:
            return
        data = serialize.dumps(compiled._reduce())
        path = folder / self._name(compiled.target_context)
        try:
            _write_whole(path, hashlib.sha256(data).digest() + data)
        except OSError as error:
            _say_unwritable(str(folder), str(error))
        finally:
            _turn.end()

    def _name(self, target_context: Any) -> str:
        parts = (
            platform.python_version(),
            numba.__version__,
            llvmlite.__version__,
            target_context.codegen().magic_tuple(),
        )
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        return f"{self._body.__module__.rpartition('.')[2]}.{self._body.__name__.strip('_')}-{digest}.kernel"


class _Turn:
    """Our turn to compile for a folder, a lock on the folder itself: it ends with the process at the latest."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def wait(self, folder: Path) -> None:
        """Until it is there; without one where it can't be had in time, as both compile then."""
        if self._descriptor is not None:
            return
        deadline, descriptor = time.monotonic() + LONGEST_WAIT_S, None
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            while not _try_lock(descriptor):
                if time.monotonic() >= deadline:  # who has it is stopped, or far slower than this one
                    raise TimeoutError
                time.sleep(0.02)
        except OSError:  # also where there are no locks, as on some network file systems
            if descriptor is not None:
                os.close(descriptor)
            return
        self._descriptor = descriptor

    def end(self) -> None:
        """Let the next compile."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_turn = _Turn()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _bytes(path: Path) -> bytes | None:
    """None: there is no file. Nothing: it can't be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("kernel_cache.unreadable", path=str(path), reason=str(error), remedy="it is compiled again")
        return b""


def _write_whole(path: Path, data: bytes) -> None:
    """Puts a file in place at once: who reads it meanwhile, or after a power loss, sees all of it or the one before."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


@lru_cache(maxsize=1)
def _cache_folder() -> Path | None:
    """The folder, made and tried; None where nothing can be kept."""
    reasons = []
    for folder in _candidates():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
    _say_unwritable("none", "; ".join(reasons) or "no folder is known: no home")
    return None


def _candidates() -> Iterator[Path]:
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen)
        return
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_SOURCE.glob("*.py")))).hexdigest()[:16]
    yield _SOURCE / "__pycache__" / f"compiled-{sources}"
    for name in ("CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        if parent := os.environ.get(name):
            yield Path(parent.partition(":")[0]) / "fleetctl" / f"kernels-{sources}"
    try:
        yield Path.home() / ".cache" / "fleetctl" / f"kernels-{sources}"
    except RuntimeError:  # a user without a home, as systemd's DynamicUser makes them
        return


_told: set[str] = set()


def _say_unwritable(folder: str, reason: str) -> None:
    if folder in _told:
        return
    _told.add(folder)
    log.warning("kernel_cache.unwritable", folder=folder, reason=reason, remedy=_REMEDY)
