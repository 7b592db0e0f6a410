"""How many threads a CPU runner uses when nobody says."""

from __future__ import annotations

import os
from pathlib import Path

# A thread pays when a step reads much more than hand-overs cost (some 60 a step, ten microseconds each): smaller
# models run as fast on one, and leave the other CPUs to their neighbours.
SMALL_WEIGHTS_BYTES = 64 * 2**20
# libgomp's waiting threads spin for milliseconds by default. Where other processes want the CPU, each spins through
# its time slice while the thread that it waits for can't run: measured, steps of 30 ms took 120 to 250. Too few turns
# let the thread sleep in every gap between two products: on a quiet machine a step of 110M weights took 26 ms with
# 1,000 turns, 20 with 10,000 and 18 with 100,000. So many bridge the gaps inside a step.
SPIN_TURNS = 20_000
_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def spin_little() -> None:
    """To be called before torch is imported: OpenMP reads its environment once. What the user has set wins."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_TURNS))


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
