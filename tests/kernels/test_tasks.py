"""Tasks: what Python writes under a name is what compiled code reads under it, and what the README says of it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numba import carray, cfunc, types

from kernels.cpu import (
    byte_rows,
    expert_matrices,
    likeliest,
    paged_attention,
    panel_matrix,
    peak,
    recording,
    rms_norm,
    rope_store,
    sampling,
    silu_mul,
)
from kernels.cpu.dtypes import FLOAT32, FLOAT64
from kernels.cpu.task import encode, field, float32_field, offsets_of, pointer

README = Path(panel_matrix.__file__).with_name("README.md")
LAYOUTS = [
    rms_norm.RmsNormTask,
    silu_mul.SiluMulTask,
    rope_store.RopeStoreTask,
    panel_matrix.ProductTask,
    expert_matrices.ChooseTask,
    expert_matrices.DealTask,
    expert_matrices.AddUpTask,
    byte_rows.RoundRowsTask,
    paged_attention.AttentionTask,
    likeliest.LikeliestTask,
    sampling.DrawTask,
    peak.PeakTask,
    paged_attention.PlanDescriptor,
    recording.ReplayHeader,
    recording.LaunchRow,
]


class SumTask(NamedTuple):
    count: int
    scale: float
    numbers: torch.Tensor
    total: np.ndarray
    absent: torch.Tensor | None = None
    is_negative: bool = False


AT = offsets_of(SumTask)


def _sum(task):
    numbers = carray(pointer(task, AT.numbers, FLOAT32), (field(task, AT.count),))
    total = carray(pointer(task, AT.total, FLOAT64), (1,))
    sign = -1 if field(task, AT.is_negative) else 1
    if field(task, AT.absent) == 0:
        total[0] = sign * float32_field(task, AT.scale) * numbers.sum()


@pytest.mark.parametrize("scale", [0.5, -1.25, 1e-30])
@pytest.mark.parametrize("is_negative", [False, True])
def test_compiled_code_reads_each_field_under_the_name_it_was_written(scale: float, is_negative: bool) -> None:
    numbers, total = torch.arange(5, dtype=torch.float32), np.zeros(1)
    fields = encode(SumTask(5, scale, numbers, total, is_negative=is_negative))
    compiled = cfunc(types.void(types.intp))(_sum)
    ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)(compiled.address)(fields.buffer_info()[0])
    assert total[0] == (-1 if is_negative else 1) * np.float32(scale) * 10
    assert fields[0] == 0, "no chunk is taken yet"


def test_a_field_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="not str"):
        encode((1, "2"))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_the_readme_names_every_field_in_its_order(layout: Any) -> None:
    [row] = [line for line in README.read_text().splitlines() if line.startswith(f"| `{layout.__name__}` |")]
    named = row.split("|")[2].split("`")[1::2]
    assert tuple(named) == layout._fields
