"""How numba compiles the kernels of this folder: floating-point rules, and where compiled code is kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numba

__all__ = ["EXACT", "FUSED", "SUMS"]


def _cache_folder() -> Path:
    """Beside the source where that may be written, else with the user's other caches. NUMBA_CACHE_DIR wins."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(chosen)
    here = Path(__file__).parent
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(here.glob("*.py")))).hexdigest()[:16]
    beside = here / "__pycache__"
    if os.access(beside if beside.exists() else here, os.W_OK):
        return beside / f"compiled-{sources}"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fleetctl" / f"kernels-{sources}"


# Compiled once on a machine: loading takes milliseconds. numba looks at one file's age, not at what it calls, so what
# was compiled from other sources lies in another folder.
numba.config.CACHE_DIR = str(_cache_folder())
# `fastmath` is always said: a function without it takes its first caller's, and `exp32` is wrong when regrouped.
EXACT = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": False}
# A product and a sum may be one instruction: the same one in every loop that the function is part of.
FUSED = {**EXACT, "fastmath": {"contract"}}
# Sums may be grouped into vectors. How, is settled when the kernel is compiled: a row's bits depend on that row alone.
SUMS = {**EXACT, "fastmath": {"reassoc", "contract", "nsz"}}
