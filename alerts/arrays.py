"""The array types that everything here computes with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Times = NDArray[np.int64]
"""Unix milliseconds."""
Bools = NDArray[np.bool_]
Index = NDArray[np.intp]
