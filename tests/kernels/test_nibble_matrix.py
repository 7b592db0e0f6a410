"""Weights of four bits and inputs of eight: whole numbers of a group exactly, the same bits in every batch and way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.block_weight import GROUP, ROUNDED_INT4, BlockWeight, quantised
from kernels.cpu.block_matrix import BlockMatrix
from kernels.cpu.byte_rows import MAX_OUTLIERS
from kernels.cpu.instructions import ByteDots
from kernels.cpu.nibble_matrix import NibbleMatrix
from kernels.linear import pack_blocks
from tests.kernels.test_byte_matrix import DTYPES, WAYS, _rounded, _threads, _with_outliers

__all__ = ["_threads"]  # a fixture that is used by itself

SHAPES = [(130, 96), (64, 32), (70, 2048), (2, 160), (1640, 64)]  # of the last, threads take several panels at once


def _weight(rows: int, width: int) -> BlockWeight:
    return quantised(torch.randn(rows, width) * 0.05, "w4a8")


def _product(x: torch.Tensor, weight: BlockWeight) -> torch.Tensor:
    """The scheme's arithmetic: whole numbers of each group exactly, scales in float64."""
    codes, scale = _rounded(x, "w8a8", None)
    groups = codes.unflatten(1, (-1, GROUP)).double()
    sums = torch.einsum("rgc,wgc->rwg", groups, weight.codes.double().unflatten(1, (-1, GROUP)) - 8)
    return (sums * weight.scales.double()).sum(-1) * scale.double()


@WAYS
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_whole_numbers(shape: tuple[int, int], way: ByteDots) -> None:
    weight, bias = _weight(*shape), torch.randn(shape[0])
    matrix = NibbleMatrix(weight, torch.float32, dots=way)
    for rows in (0, 1, 2, 4, 5, 7, 130):
        x = torch.randn(rows, shape[1]).clamp(-4, 4)  # no outliers
        wanted = _product(x, weight)
        torch.testing.assert_close(matrix(x).double(), wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(matrix(x, bias).double(), wanted + bias, rtol=1e-5, atol=1e-5)


@WAYS
def test_the_largest_sums_neither_saturate_nor_overflow(way: ByteDots) -> None:
    ends = torch.tensor([[0], [15], [15], [0]], dtype=torch.uint8).repeat(16, 64)
    weight = BlockWeight(ROUNDED_INT4, ends, torch.ones(64, 2, dtype=torch.float16))
    x = torch.tensor([[127.0], [-127.0]]).expand(2, 64)
    assert torch.equal(NibbleMatrix(weight, torch.float32, dots=way)(x), x @ weight.dequantised().T)


@WAYS
@DTYPES
@pytest.mark.parametrize("is_gated", [False, True])
def test_every_way_has_the_same_bits(way: ByteDots, dtype: torch.dtype, is_gated: bool) -> None:
    weight, x = _weight(130, 768), _with_outliers(37, 768).to(dtype)
    found, plain = (NibbleMatrix(weight, dtype, is_gated=is_gated, dots=dots)(x) for dots in (way, ByteDots.PLAIN))
    assert torch.equal(found, plain)


@DTYPES
def test_rows_have_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    matrix = NibbleMatrix(_weight(130, 768), dtype)
    group = matrix._group_rows()
    x = _with_outliers(group + 45, 768).to(dtype)
    whole = matrix(x)
    assert torch.equal(matrix(x.flip(0)).flip(0), whole)
    for first, last in ((0, 1), (3, 20), (16, 48), (group - 1, group + 40), (7, 7)):
        assert torch.equal(matrix(x[first:last]), whole[first:last])
    for count in range(1, 14):
        assert torch.equal(matrix(x[-count:]), whole[-count:])


@WAYS
def test_outliers_are_multiplied_as_they_are(way: ByteDots) -> None:
    weight, x = _weight(130, 768), _with_outliers(40, 768)
    exact = x.double() @ weight.dequantised().double().T
    kept = NibbleMatrix(weight, torch.float32, dots=way)(x).double() - exact
    rounded = _product(x, weight) - exact
    worst = (kept.square().mean(1) / rounded.square().mean(1)).sqrt()
    few = torch.arange(40) % 5
    for which, most in ((1, 0.2), (2, 0.3), (3, 0.6)):
        assert worst[few == which].mean() < most, f"of {MAX_OUTLIERS} at most"


def test_a_row_of_zeros_is_zeros_and_one_that_is_not_finite_tells() -> None:
    x = torch.zeros(5, 64)
    x[1, 7], x[2, 9], x[3, 3], x[4, 0] = float("nan"), float("inf"), float("-inf"), -float("nan")
    found = NibbleMatrix(_weight(70, 64), torch.float32)(x)
    assert (found[0] == 0).all()
    assert not found[1:].isfinite().any()


def test_rounding_at_load_makes_codes_of_four_bits_that_are_those_of_int4() -> None:
    weight = torch.randn(70, 64)
    rounded, plain = quantised(weight, "w4a8"), quantised(weight, "int4")
    assert torch.equal(rounded.dequantised(), plain.dequantised())
    assert rounded.num_bytes == plain.num_bytes
    assert isinstance(pack_blocks(weight, torch.float32, "w4a8"), NibbleMatrix)
    assert isinstance(pack_blocks(weight, torch.float32, "int4"), BlockMatrix)
    assert not isinstance(pack_blocks(torch.randn(8, 40), torch.float32, "w4a8"), NibbleMatrix)
    x = torch.randn(3, 64)
    near = pack_blocks(replace(plain, kind=ROUNDED_INT4), torch.float32, None)(x)  # type: ignore[operator]
    torch.testing.assert_close(near, x @ plain.dequantised().T, atol=0.3, rtol=0)
