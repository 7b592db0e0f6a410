"""What the sampler's kernels are told of each row: a table, 64 bits a column, floats by their bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from kernels.sample_row import SampleRow

MIN_TEMPERATURE = 1e-5  # of a random draw
SEED, POSITION, TOP_K, IS_RANDOM, TEMPERATURE, LOG_MIN_P, TOP_P = (tl.constexpr(i) for i in range(7))
COLUMNS = tl.constexpr(8)


def table_of(rows: Sequence[SampleRow], vocab: int, device: torch.device) -> Tensor:
    """[num_rows, 8], int64: the parameters of each row, floats by their bits."""
    whole = np.zeros((len(rows), COLUMNS.value), dtype=np.int64)
    floats = whole.view(np.float64)
    for i, row in enumerate(rows):
        whole[i, SEED.value] = (row.seed + 2**63) % 2**64 - 2**63
        whole[i, POSITION.value] = row.position
        whole[i, TOP_K.value] = row.top_k if 0 < row.top_k < vocab else 0
        whole[i, IS_RANDOM.value] = row.temperature > 0
        floats[i, TEMPERATURE.value] = max(row.temperature, MIN_TEMPERATURE)
        floats[i, LOG_MIN_P.value] = math.log(row.min_p) if row.min_p > 0 else -math.inf
        floats[i, TOP_P.value] = row.top_p
    table = torch.from_numpy(whole)
    # From pinned memory the copy is queued behind the step that makes the logits; from other memory it waits for that.
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table
