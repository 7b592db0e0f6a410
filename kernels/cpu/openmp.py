"""The OpenMP library that torch has loaded: its pool of threads runs our kernels too."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch

__all__ = ["openmp"]


@lru_cache(maxsize=1)
def openmp() -> ctypes.CDLL | None:
    """libgomp or libiomp with `GOMP_parallel` declared; None where it can't be found, and work stays on one thread."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - read line by line
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "libgomp" in line or "libiomp" in line}
    except OSError:
        return None
    of_torch = [path for path in sorted(paths) if "/torch" in path] or sorted(paths)
    if not of_torch or not torch.backends.openmp.is_available():
        return None
    library = ctypes.CDLL(of_torch[0])
    if not hasattr(library, "GOMP_parallel"):
        return None
    library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    library.GOMP_parallel.restype = None
    return library
