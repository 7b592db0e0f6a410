"""Several tensors that go to a device together."""

from __future__ import annotations

import pytest
import torch

from kernels.one_copy import ALIGN_BYTES, in_one_copy


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_parts_are_what_they_were_and_begin_at_aligned_addresses(dtype: torch.dtype) -> None:
    parts = [torch.arange(n, dtype=dtype).view(shape) for n, shape in ((3, (3,)), (10, (2, 5)), (0, (0, 4)), (1, (1,)))]
    moved = in_one_copy(parts, "cpu")
    assert all(torch.equal(part, found) for part, found in zip(parts, moved, strict=True))
    first = moved[0].data_ptr()
    assert all((part.data_ptr() - first) % ALIGN_BYTES == 0 for part in moved if part.numel())
