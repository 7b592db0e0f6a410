"""Weights in blocks: products have the bits of those with their dequantised numbers, alone and in every batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args

import gguf
import numpy as np
import pytest
import torch

from kernels.block_weight import SIXTEENS, BlockWeight, GroupKind, Kind, empty_blocks, quantised
from kernels.cpu.block_matrix import DIRECT_ROWS, BlockMatrix
from kernels.cpu.recorder import Arena, Recorder
from kernels.cpu.recording import Recording
from kernels.cpu.vector_matrix import VectorMatrix
from kernels.linear import pack, pack_blocks

KINDS = pytest.mark.parametrize("kind", get_args(GroupKind))
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
SHAPES = [(130, 96), (64, 32), (70, 2048), (2, 160), (1640, 64)]  # of the last, threads take several panels at once


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _blocks(kind: Kind, rows: int, width: int) -> BlockWeight:
    random = torch.Generator().manual_seed(rows + width)
    if kind.startswith("int8"):
        codes = torch.randint(-128, 128, (rows, width), generator=random, dtype=torch.int8)
    elif kind == "fp8":  # every number but the two NaN
        codes = torch.randint(0, 127, (rows, width), generator=random, dtype=torch.uint8)
        codes += torch.randint(0, 2, (rows, width), generator=random, dtype=torch.uint8) * 128
    else:
        codes = torch.randint(0, 16, (rows, width), generator=random, dtype=torch.uint8)
    size = 16 if kind in SIXTEENS else 32
    scales, offsets = (torch.randn(rows, width // size, generator=random).mul(0.05).half() for _ in range(2))
    if kind in ("fp8", "int8 with wide scales", "int8 by sixteens"):
        scales = torch.randn(rows, width // size, generator=random) * 0.05
    if kind == "int4 with zeros":
        offsets = torch.randint(0, 17, offsets.shape, generator=random).half()
    if "wide offsets" in kind:  # a K-quant's scale has 17 digits, and its product with a code is exact
        scales, offsets = scales.float() * 3, torch.randn(offsets.shape, generator=random) * 0.05
    return BlockWeight(kind, codes, scales, offsets if "offsets" in kind or "zeros" in kind else None)


@KINDS
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_have_the_bits_of_the_dequantised_numbers(kind: Kind, shape: tuple[int, int], is_gated: bool) -> None:
    weight, bias = _blocks(kind, *shape), torch.randn(shape[0])
    found, wanted = (
        BlockMatrix(weight, torch.float32, is_gated=is_gated),
        VectorMatrix(weight.dequantised(), is_gated=is_gated),
    )
    for rows in (0, 1, 2, 3, 4, 5, 7, 13, 130, 600):
        x = torch.randn(rows, shape[1])
        assert torch.equal(found(x), wanted(x))
        assert torch.equal(found(x, bias), wanted(x, bias))


@KINDS
@DTYPES
def test_rows_have_the_same_bits_in_every_batch(kind: Kind, dtype: torch.dtype) -> None:
    matrix = BlockMatrix(_blocks(kind, 130, 768), dtype)
    group = matrix._group_rows()
    x = torch.randn(group + 45, 768).to(dtype)
    whole = matrix(x)
    assert torch.equal(matrix(x.flip(0)).flip(0), whole)
    for first, last in ((0, 1), (3, 20), (16, 48), (group - 1, group + 40), (7, 7)):
        assert torch.equal(matrix(x[first:last]), whole[first:last])
    for count in range(1, DIRECT_ROWS + 9):
        assert torch.equal(matrix(x[-count:]), whole[-count:])


@KINDS
def test_bfloat16_is_rounded_once(kind: Kind) -> None:
    weight, x = _blocks(kind, 70, 96), torch.randn(9, 96).bfloat16()
    wide = BlockMatrix(weight, torch.float32)(x.float())
    assert torch.equal(BlockMatrix(weight, torch.bfloat16)(x), wide.bfloat16())


@DTYPES
def test_columns_may_lie_in_an_order_of_their_own(dtype: torch.dtype) -> None:
    """As GPTQ's act-order has them: sorted by group, inputs are taken in that order too."""
    plain = _blocks("int4 with zeros", 130, 160)
    order = torch.randperm(160)
    found = replace(plain, order=order)
    assert torch.equal(found.dequantised()[:, order], plain.dequantised())
    assert [torch.equal(part.order, order) for part in found.split([30, 100]) if part.order is not None] == [True, True]
    for rows in (1, 3, 40):
        x = torch.randn(rows, 160).to(dtype)
        assert torch.equal(BlockMatrix(found, dtype)(x), BlockMatrix(plain, dtype)(x[:, order].contiguous()))


def test_a_replay_takes_the_columns_of_what_is_there_now() -> None:
    matrix = BlockMatrix(replace(_blocks("int4", 64, 96), order=torch.randperm(96)), torch.bfloat16)
    x = torch.randn(2, 96).bfloat16()
    with Recorder(Arena()) as recorder:
        result = matrix(x)
    recording = Recording(recorder)
    x.copy_(torch.randn(2, 96))
    recording.replay()
    assert torch.equal(result, matrix(x))


@pytest.mark.parametrize("kind", [kind for kind in get_args(GroupKind) if kind != "fp8" and "zeros" not in kind])
def test_every_kind_of_whole_numbers_is_one_by_sixteens_too(kind: Kind) -> None:
    weight = _blocks(kind, 70, 96)
    found = weight.by_sixteens()
    assert torch.equal(found.dequantised(), weight.dequantised())
    place = empty_blocks(70, 96, found.kind)
    place.copy_(found)
    assert torch.equal(place.dequantised(), found.dequantised())


@pytest.mark.parametrize(("kind", "of_gguf"), [("int8", "Q8_0"), ("int4", "Q4_0")])
def test_rounding_is_no_worse_than_the_reference(kind: Literal["int8", "int4"], of_gguf: str) -> None:
    weight = torch.randn(64, 512) * 0.02
    weight[3] = 0.0
    weight[5] = 1e-9  # below what a float16 scale can say
    type_ = gguf.GGMLQuantizationType[of_gguf]
    theirs = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(np.asarray(weight), type_), type_))
    ours = quantised(weight, kind).dequantised()
    assert (ours - weight).square().mean() <= (theirs - weight).square().mean() * 1.001
    assert (ours[3] == 0).all()
    assert ours.isfinite().all()


def test_what_has_no_whole_blocks_is_packed_as_it_is() -> None:
    assert isinstance(pack_blocks(torch.randn(8, 33), torch.float32, "int4"), VectorMatrix)
    assert isinstance(pack_blocks(torch.randn(8, 64), torch.float32, "int4"), BlockMatrix)
    assert type(pack_blocks(torch.randn(8, 64), torch.float32, None)) is type(pack(torch.randn(8, 64)))
