"""What a runner sets of its process on a CPU: OpenMP's threads and how long they spin, and what malloc keeps.

glibc returns large freed blocks to the kernel at once, and takes new, empty pages for the next ones. A step's
temporaries are megabytes and are made anew for every layer: measured, prompts of 300 tokens through 12 layers spent
more than a quarter of their time on 1.3 million page faults. So the process keeps freed memory while it works, and
gives it back when it rests.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from pathlib import Path

import structlog

log = structlog.get_logger()

# A thread pays when a step reads much more than its parallel regions cost to open (some 60 a step, ten microseconds
# each): smaller models run as fast on one, and leave the other CPUs to their neighbours.
SMALL_WEIGHTS_BYTES = 64 * 2**20
# libgomp's waiting threads spin for milliseconds by default. Where other processes want the CPU, each spins through
# its time slice while the thread that it waits for can't run: measured, steps of 30 ms took 120 to 250. Too few spins
# let the thread sleep in every gap between two products: on a quiet machine a step of 110M weights took 26 ms with
# 1,000 spins, 20 with 10,000 and 18 with 100,000. So many bridge the gaps inside a step.
SPIN_COUNT = 20_000
_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEEP_BYTES = 2**31 - 1
_MMAP_BYTES = (2**30, 2**25)  # the first that this glibc accepts: older ones stop at 32 MiB


def limit_openmp_spin() -> None:
    """Shortens libgomp's busy waiting; to be called before torch is imported, as OpenMP reads its environment once.

    OMP_WAIT_POLICY or GOMP_SPINCOUNT, where the user has set one, wins.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))


def find_triton_cache() -> Path | None:
    """Gives Triton a folder of this process alone where the home can't be written: its own cache would end the start.

    To be called before Triton is imported. TRITON_CACHE_DIR, where it is set, wins. Returns the folder; None where none
    is needed.
    """
    if os.environ.get("TRITON_CACHE_DIR") or os.environ.get("TRITON_HOME"):
        return None
    try:
        folder = Path.home() / ".triton" / "cache"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except (OSError, RuntimeError) as error:
        own = Path(tempfile.mkdtemp(prefix="fleetctl-triton-"))
        os.environ["TRITON_CACHE_DIR"] = str(own)
        remedy = "kernels are compiled at every start; set TRITON_CACHE_DIR to a folder that this user can write"
        log.warning("kernel_cache.unwritable", folder="~/.triton/cache", reason=str(error), remedy=remedy)
        return own


def default_num_threads(weight_bytes: int) -> int:
    """One for a small model, else one for each physical core that this process may use, within its CPU quota."""
    if weight_bytes <= SMALL_WEIGHTS_BYTES:
        return 1
    allowed = os.sched_getaffinity(0)
    cores = len({_siblings(cpu) for cpu in allowed})
    return max(min(cores, _quota_cpus() or cores), 1)


def _siblings(cpu: int) -> str:
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)


def _quota_cpus() -> int | None:
    """Whole CPUs of the container's quota; None without one."""
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return None if quota == "max" else max(int(quota) // int(period), 1)
    except (OSError, ValueError):
        return None


def keep_freed_memory() -> bool:
    """Lets freed memory stay with this process; to be called once, at its start. False where there is no glibc."""
    libc = _glibc()
    if libc is None:
        return False
    return any(libc.mallopt(_MMAP_THRESHOLD, size) for size in _MMAP_BYTES) and bool(
        libc.mallopt(_TRIM_THRESHOLD, _KEEP_BYTES)
    )


def return_freed_memory() -> bool:
    """Gives what is free back to the kernel; True when there was any."""
    libc = _glibc()
    return libc is not None and bool(libc.malloc_trim(0))


def _glibc() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):
            return libc
    return None
