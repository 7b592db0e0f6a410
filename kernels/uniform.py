"""Counter-based uniform numbers: a pure function of (seed, position), the same on every machine and in every batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# SplitMix64 (Steele, Lea, Flood 2014): the finaliser of a counter that steps by the golden ratio. The stream's start
# is the mixed seed, so that neighbouring seeds have unrelated streams. Plain 64-bit integer arithmetic, so that a GPU
# kernel gives the same numbers.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def uniform(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """One float64 in [0, 1) for each (seed, position). Seeds of any size or sign are taken modulo 2^64."""
    seed = np.array([s & _MASK for s in seeds], dtype=np.uint64)
    position = np.array([p & _MASK for p in positions], dtype=np.uint64)
    bits = _mix(_mix(seed + _STEP) + (position + np.uint64(1)) * _STEP)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * _MIX_A
    x = (x ^ (x >> np.uint64(27))) * _MIX_B
    return x ^ (x >> np.uint64(31))
