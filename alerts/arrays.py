"""The array types that everything here computes with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Times = NDArray[np.int64]
"""Unix milliseconds."""
Bools = NDArray[np.bool_]
Index = NDArray[np.intp]


def sorted_unique(numbers: Index) -> Index:
    """Each number once, rising. numpy's `unique` brings masked arrays along, 2 MB of code for one call."""
    ordered = np.sort(numbers)
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]
