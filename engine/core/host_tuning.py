"""What a runner sets of its process on a CPU: OpenMP's threads, how long they spin and for how long they want a CPU at
a time, and what malloc keeps.

glibc returns large freed blocks to the kernel at once, and takes new, empty pages for the next ones. A step's
temporaries are megabytes and are made anew for every layer: measured, prompts of 300 tokens through 12 layers spent
more than a quarter of their time on 1.3 million page faults. So the process keeps freed memory while it works, and
gives it back when it rests.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
import tempfile
from pathlib import Path
from struct import Struct

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
# What a thread asks the scheduler for at a time, the least there is. Linux gives a thread that wakes up its CPU at once
# only if it asks for less than the one that runs there does; else it waits for that one's slice or the next tick, 4 or
# 10 ms, however low that one's priority is. Threads of a step wake each other several times in such a time.
TIME_SLICE_NS = 100_000
_SCHED_GETATTR, _SCHED_SETATTR = {"x86_64": (315, 314), "aarch64": (275, 274)}.get(platform.machine(), (None, None))
_RESET_ON_FORK = 1
_SCHED_ATTR = Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period
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


def ask_for_short_slices() -> bool:
    """Lets this thread, and those that it starts, run soon after they wake up beside others that are busy.

    Its share of a CPU stays the same. To be called before torch is imported. False where the system knows nothing of
    it; kernels before 6.12 accept it without effect.
    """
    if _SCHED_GETATTR is None or not sys.platform.startswith("linux"):
        return False
    libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(_SCHED_ATTR.size)
    if libc.syscall(_SCHED_GETATTR, 0, attributes, _SCHED_ATTR.size, 0):
        return False
    _, policy, flags, nice, priority, *_ = _SCHED_ATTR.unpack(attributes.raw)
    if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):  # others have no slices, or were chosen by somebody
        return False
    attributes.raw = _SCHED_ATTR.pack(
        _SCHED_ATTR.size, policy, flags & _RESET_ON_FORK, nice, priority, TIME_SLICE_NS, 0, 0
    )
    return not libc.syscall(_SCHED_SETATTR, 0, attributes, 0)


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
