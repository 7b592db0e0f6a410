"""Memory for weights: copies that stay what they are, side by side, and weights where they were if there is none."""

from __future__ import annotations

import mmap

import pytest
import torch

from kernels.cpu import large_pages
from kernels.cpu.large_pages import CHUNK_BYTES, in_large_pages


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32], ids=str)
def test_copies_keep_their_numbers_whatever_comes_after_them(dtype: torch.dtype) -> None:
    tensors = [torch.randint(0, 100, shape).to(dtype) for shape in ((3, 7), (1,), (64, 33), (5, 5, 5))]
    copies = [in_large_pages(tensor) for tensor in tensors]
    assert all(copy.data_ptr() % 64 == 0 for copy in copies), "vectors are loaded from the start of a cache line"
    for i, copy in enumerate(copies):
        wanted = tensors[i].clone()
        tensors[i].zero_()
        assert torch.equal(copy, wanted)
        assert copy.dtype == dtype


def test_what_is_larger_than_a_chunk_has_one_of_its_own() -> None:
    copy = in_large_pages(torch.full((CHUNK_BYTES + 5,), 7, dtype=torch.uint8))
    assert copy.numel() == CHUNK_BYTES + 5
    assert int(copy.min()) == int(copy.max()) == 7


def test_without_memory_and_without_content_a_tensor_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty(0, 5)
    assert in_large_pages(empty) is empty

    def refuse(*arguments: object, **options: object) -> mmap.mmap:
        raise OSError("no memory")

    monkeypatch.setattr(large_pages.mmap, "mmap", refuse)
    tensor = torch.zeros(CHUNK_BYTES + 1, dtype=torch.uint8)
    assert in_large_pages(tensor) is tensor
