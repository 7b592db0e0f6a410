"""Copies whole KV blocks: inside one cache (copy on write), and between device and pinned host memory (swap)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import POINTERS, Variant

Pairs = Sequence[tuple[int, int]]

CHUNK = 2048  # 32-bit words a program copies
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


@triton.jit
def _copy_blocks_kernel(source_ptr, target_ptr, pair_ptr, words, source_blocks, target_blocks, CHUNK: tl.constexpr):
    """Program (pair, plane, chunk); a plane is the keys or the values of one layer."""
    pair, plane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    a = tl.load(pair_ptr + 2 * pair).to(tl.int64)
    b = tl.load(pair_ptr + 2 * pair + 1).to(tl.int64)
    word = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    mask = word < words
    values = tl.load(source_ptr + (plane * source_blocks + a) * words + word, mask=mask)
    tl.store(target_ptr + (plane * target_blocks + b) * words + word, values, mask=mask)


def copy_blocks(cache: Tensor, pairs: Pairs) -> None:
    """Copies block `source` onto block `target` for each (source, target), as if one after the other.

    Shapes: cache: [layers, 2, num_blocks, ...], contiguous. Changes cache. Bytes moved: each block in and out.
    """
    swap_blocks(cache, cache, pairs)


def swap_blocks(source: Tensor, target: Tensor, pairs: Pairs) -> None:
    """Copies block `a` of source onto block `b` of target for each (a, b), as if one after the other.

    Shapes: source, target: [layers, 2, num_blocks, ...], contiguous, equal but for num_blocks; one of them on the GPU,
    the other too or in pinned host memory, which the GPU reads and writes over the bus in the same launch. A copy to
    the host is complete when the stream is. Bytes moved: each block in and out.
    Source: Kwon et al. 2023 (copy on write and swapping of blocks in PagedAttention).
    """
    if not pairs:
        return
    device = source.device if source.is_cuda else target.device
    reads, writes = _words(source), _words(target)
    planes, words = reads.shape[0], reads.shape[2]
    for batch in independent(pairs, is_same=source.data_ptr() == target.data_ptr()):
        table = torch.tensor(batch, dtype=torch.int32, device=device)
        grid = (len(batch), planes, triton.cdiv(words, CHUNK))
        _copy_blocks_kernel[grid](reads, writes, table, words, reads.shape[1], writes.shape[1], CHUNK=CHUNK, **_OPTIONS)


def independent(pairs: Pairs, *, is_same: bool) -> list[list[tuple[int, int]]]:
    """The pairs in order, cut where one reads or writes what another before it in its part has written or read."""
    batches: list[list[tuple[int, int]]] = [[]]
    read: set[int] = set()
    written: set[int] = set()
    for a, b in pairs:
        if b in written or (is_same and (a in written or b in read)):
            batches.append([])
            read, written = set(), set()
        batches[-1].append((a, b))
        read.add(a)
        written.add(b)
    return batches


def _words(cache: Tensor) -> Tensor:
    """The cache as [layers x 2, num_blocks, 32-bit words]. A block of an odd number of 16-bit values stays as it is."""
    flat = cache.view(cache.shape[0] * 2, cache.shape[2], -1)
    return flat.view(torch.int32) if flat.shape[2] * flat.element_size() % 4 == 0 else flat.view(torch.int16)


def variants(arch: int) -> Iterator[Variant]:
    """Blocks of whole 32-bit words, and of an odd number of 16-bit ones."""
    for name, pointer in (("32-bit words", POINTERS[torch.int32]), ("16-bit words", "*i16")):
        types = {
            "source_ptr": pointer,
            "target_ptr": pointer,
            "pair_ptr": "*i32",
            "words": "i32:16",
            "source_blocks": "i32",
            "target_blocks": "i32",
        }
        yield Variant(name, _copy_blocks_kernel, types, {"CHUNK": CHUNK}, _OPTIONS)
