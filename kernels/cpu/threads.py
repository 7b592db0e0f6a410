"""Row loops on torch's own threads.

numba has a pool of its own for parallel loops. Two pools on the same CPUs, each with threads that spin while they wait,
slow both down: measured, a copy of 20 microseconds took 150. So loops are handed to the OpenMP pool that torch has.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache

import torch

GRAIN_ELEMENTS = 1 << 17  # some 100 microseconds of work: handing a part over costs 20 to 40


def over_rows(kernel: Callable[..., None], num_rows: int, num_elements: int, *arguments: object) -> None:
    """`kernel(first, last, *arguments)` for all rows: in one piece, or in one for each thread when that pays.

    `kernel` is compiled with `nogil` and treats each row alike. Raises what it raises.
    """
    threads = min(torch.get_num_threads(), num_rows)
    pool = _pool() if threads > 1 and num_elements >= GRAIN_ELEMENTS else None
    if pool is None:
        kernel(0, num_rows, *arguments)
        return
    failed: list[Exception] = []

    def part(_: object) -> None:
        # Fewer threads may come than were asked for; each takes its share of those that came.
        mine, all_ = pool.omp_get_thread_num(), pool.omp_get_num_threads()
        try:
            kernel(num_rows * mine // all_, num_rows * (mine + 1) // all_, *arguments)
        except Exception as error:  # noqa: BLE001 - raised below: it can't cross the C frames
            failed.append(error)

    pool.GOMP_parallel(_Part(part), None, threads, 0)
    if failed:
        raise failed[0]


_Part = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@lru_cache(maxsize=1)
def _pool() -> ctypes.CDLL | None:
    """The OpenMP library that torch has loaded; None where it can't be found, and loops stay on one thread."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - read line by line
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "libgomp" in line or "libiomp" in line}
    except OSError:
        return None
    ours = [path for path in sorted(paths) if "/torch" in path] or sorted(paths)
    if not ours or not torch.backends.openmp.is_available():
        return None
    pool = ctypes.CDLL(ours[0])
    if not hasattr(pool, "GOMP_parallel"):
        return None
    pool.GOMP_parallel.argtypes = [_Part, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    pool.GOMP_parallel.restype = None
    return pool
