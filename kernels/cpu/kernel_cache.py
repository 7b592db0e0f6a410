"""Compiled kernels on disk, one file each: loading one takes milliseconds, compiling it seconds.

A cache that can't be read or written is done without and never raises: an unwritable folder, a full disk, a damaged
file. Each file begins with the digest of the rest, as a file that was cut short by a power loss is else found out by a
crash. What is wrong is logged, once for each file that can't be read and once for the folder.

One process compiles a kernel at a time, and others wait for it: nodes that start together need the same kernels, and
three that compiled each of them beside each other took three times as long as one.

The folder lies in NUMBA_CACHE_DIR, where that is set; else in the first place that can be written: beside the source,
systemd's CACHE_DIRECTORY, the user's cache folder. Its name holds the digest of all sources that a kernel may be made
of, called functions and constants too, and of the compiler's versions; a file's name holds the CPU's features. So an
update never finds code of before. Folders of other versions are removed but for the latest few.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle  # noqa: TID251 - numba's own form of compiled code; what is in it runs as this user anyway
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import structlog
from numba.core import serialize
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target

from kernels.cache_files import cache_homes, write_whole

__all__ = ["KernelFile", "cache_folder", "is_complete", "mark_complete"]

log = structlog.get_logger()

_DIGEST_BYTES = hashlib.sha256().digest_size
_SOURCE = Path(__file__).parent
_FOLDER = "kernels-"  # and the digest of what its files were made from
KEPT_FOLDERS = 4  # of other versions, beside our own: nodes of two versions may share a home
UNUSED_S = 3600.0  # before one of them is removed: its node may be at its start
_PACKAGE = __name__.rpartition(".")[0]
LONGEST_WAIT_S = 60.0  # the slowest kernel takes seconds of CPU to compile
_REMEDY = "kernels are compiled at every start; set NUMBA_CACHE_DIR to a folder that this user can write"


class KernelFile:
    """One kernel's file, in the form of a cache that `numba.core.ccallback.CFunc` asks before it compiles.

    Kernels from outside of this folder are not kept: the digest of the sources does not cover them.
    """

    def __init__(self, body: Callable[..., object]) -> None:
        self._body = body
        self._turn = _Turn()
        self._is_kept = body.__module__.rpartition(".")[0] == _PACKAGE

    def load_overload(self, signature: Any, target_context: Any) -> CompileResult | None:
        """The compiled kernel; None where there is none that can be used."""
        folder = cache_folder() if self._is_kept else None
        if folder is None:
            return None
        path = folder / self._name(target_context)
        data = _bytes(path)
        if data is None:
            self._turn.wait(path)
            data = _bytes(path)  # of another process, meanwhile
        if not data:
            return None
        self._turn.end()
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            log.warning("kernel_cache.damaged", path=str(path), remedy="it is compiled again and replaced")
            return None
        target_context.refresh()  # numba's own cache does so before it rebuilds
        return CompileResult._rebuild(target_context, *pickle.loads(data[_DIGEST_BYTES:]))  # noqa: S301 - our own file

    def save_overload(self, signature: Any, compiled: CompileResult) -> None:
        """Keeps a compiled kernel, whole or not at all."""
        folder = cache_folder() if self._is_kept else None
        if folder is None:
            return
        data = serialize.dumps(compiled._reduce())
        path = folder / self._name(compiled.target_context)
        try:
            write_whole(path, hashlib.sha256(data).digest() + data)
        except OSError as error:
            _say_unwritable(str(folder), str(error))
        finally:
            self._turn.end()

    def _name(self, target_context: Any) -> str:
        digest = _digest(target_context.codegen().magic_tuple())
        return f"{self._body.__module__.rpartition('.')[2]}.{self._body.__name__.strip('_')}-{digest}.kernel"


def is_complete(name: str) -> bool:
    """Whether `mark_complete` was called with this name, for this CPU and these compilers."""
    folder = cache_folder()
    return folder is not None and (folder / _mark(name)).exists()


def mark_complete(name: str) -> None:
    """Notes that all kernels of this name are in the folder: nobody need look at each of them."""
    folder = cache_folder()
    if folder is not None:
        with suppress(OSError):  # then they are looked at
            (folder / _mark(name)).touch()


def _mark(name: str) -> str:
    return f"{name}-{_digest(cpu_target.target_context.codegen().magic_tuple())}.complete"


def _digest(magic_tuple: object) -> str:
    parts = (platform.python_version(), numba.__version__, llvmlite.__version__, magic_tuple)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class _Turn:
    """Our turn to compile a kernel, a lock on a file beside its own: it ends with the process at the latest."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._path: Path | None = None

    def wait(self, kernel: Path) -> None:
        """Until it is there; without one where it can't be had in time, as both compile then."""
        if self._descriptor is not None:
            return
        deadline, descriptor = time.monotonic() + LONGEST_WAIT_S, None
        path = kernel.with_name(f".{kernel.name}.lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            while not _try_lock(descriptor):
                if time.monotonic() >= deadline:  # who has it is stopped, or far slower than this one
                    raise TimeoutError
                time.sleep(0.02)
        except OSError:  # also where there are no locks, as on some network file systems
            if descriptor is not None:
                os.close(descriptor)
            return
        self._descriptor, self._path = descriptor, path

    def end(self) -> None:
        """Lets the next in. The file goes first: who waits for it finds the kernel, and so does who makes a new one."""
        if self._descriptor is not None and self._path is not None:
            with suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = self._path = None


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


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """The folder, made and tried; None where nothing can be kept."""
    reasons = []
    for folder in _candidates():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
            os.utime(folder)
            _remove_old(folder, time.time())
            return folder
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
    _say_unwritable("none", "; ".join(reasons) or "no folder is known: no home")
    return None


def _candidates() -> Iterator[Path]:
    own = f"{_FOLDER}{_digest_of_sources()}"
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen) / own
        return
    yield _SOURCE / "__pycache__" / own
    yield from (home / own for home in cache_homes())


def _digest_of_sources() -> str:
    """Of what a kernel is made from: this folder, what lies beside it and holds constants, and the compiler."""
    sources = sorted([*_SOURCE.glob("*.py"), *_SOURCE.parent.glob("*.py")])
    versions = (platform.python_version(), numba.__version__, llvmlite.__version__)
    digest = hashlib.sha256(repr(versions).encode())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _remove_old(own: Path, now: float) -> None:
    """Removes folders of other versions, and files from before there were any, that nobody used for a while."""
    others = []
    for path in own.parent.iterdir():
        is_old = path.name.startswith((_FOLDER, "compiled-")) or path.suffix == ".kernel"
        if is_old and path != own:
            with suppress(OSError):  # another process is removing it too
                others.append((path.stat().st_mtime, path))
    for used_at, path in sorted(others, reverse=True)[KEPT_FOLDERS:]:
        if now - used_at > UNUSED_S:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


_told: set[str] = set()


def _say_unwritable(folder: str, reason: str) -> None:
    if folder in _told:
        return
    _told.add(folder)
    log.warning("kernel_cache.unwritable", folder=folder, reason=reason, remedy=_REMEDY)
