"""Weights and inputs of eight bits: codes as the scheme says, sums of whole numbers, the same bits on every path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from kernels.block_weight import MAX_BYTE_WIDTH, BlockWeight, ByteKind, quantised
from kernels.cpu.byte_matrix import ByteMatrix
from kernels.cpu.byte_rows import MAX_OUTLIERS, ROW_TAIL, round_rows
from kernels.cpu.instructions import ByteDots, byte_dots
from kernels.linear import pack_blocks

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
# What a CPU has is all of the ways below its fastest; AVX-512 VNNI without AVX-VNNI is the exception, with AVX-512 VL.
USABLE = {ByteDots.PLAIN, ByteDots.I8MM} if byte_dots() is ByteDots.I8MM else {w for w in ByteDots if w <= byte_dots()}
WAYS = pytest.mark.parametrize("way", sorted(USABLE), ids=lambda way: way.name)
KINDS: dict[ByteKind, tuple[float, int] | None] = {
    "w8a8": None,
    "w8a8 with outliers": None,
    "w8a8 asymmetric": None,
    "w8a8 static": (0.02, 0),
}
SHAPES = [(130, 96), (64, 32), (70, 2048), (2, 160)]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(1)
    yield
    torch.set_num_threads(before)


def _weight(kind: ByteKind, rows: int, width: int, fixed: tuple[float, int] | None = None) -> BlockWeight:
    found = replace(quantised(torch.randn(rows, width) * 0.05, "w8a8"), kind=kind)
    return found if fixed is None else replace(found, inputs=torch.tensor([fixed]).expand(rows, 2))


def _rounded(x: torch.Tensor, kind: ByteKind, fixed: tuple[float, int] | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers and scales of rows, as compressed-tensors describes them, but for the largest code of a symmetric
    row: 127 stands for the largest number, and nothing is clipped.
    """
    x = x.float()
    if fixed is not None:
        scale, zero = torch.full((len(x), 1), fixed[0]), torch.full((len(x), 1), fixed[1])
    elif kind in ("w8a8", "w8a8 with outliers"):  # of which these rows have none
        scale, zero = x.abs().amax(1, keepdim=True) / 127, torch.zeros(len(x), 1)
    else:
        low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
        scale = (high - low) / 255
        zero = (-128 - low / scale).round()
    codes = ((x * (1 / scale)).round() + zero).clamp(-128, 127) - zero
    return codes.long(), scale


def _product(x: torch.Tensor, weight: BlockWeight, fixed: tuple[float, int] | None) -> torch.Tensor:
    """The scheme's arithmetic: whole numbers exactly, scales in float64."""
    codes, scale = _rounded(x, weight.kind, fixed)  # type: ignore[arg-type] # of bytes
    sums = codes @ weight.codes.long().T
    return sums.double() * scale.double() * weight.scales.double().T


@DTYPES
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_those_of_the_scheme(kind: ByteKind, dtype: torch.dtype) -> None:
    x = (torch.randn(33, 130)[:, :128] * torch.logspace(-6, 3, 33)[:, None]).to(dtype)
    x[5] = x[5].abs()  # a row without negative numbers
    for fixed in (KINDS[kind], None if KINDS[kind] is None else (0.5, -40)):
        found = torch.empty(33, 128 + ROW_TAIL, dtype=torch.uint8)
        round_rows(x.contiguous(), found, is_symmetric=kind != "w8a8 asymmetric", fixed=fixed)
        scales, zeros = (found[:, 128 + i :][:, :4].contiguous().view(torch.float32) for i in (0, 4))
        codes, scale = _rounded(x, kind, fixed)
        assert torch.equal(found[:, :128].long() - zeros.view(torch.int32), codes)
        assert torch.equal(scales, scale)


def _with_outliers(rows: int, width: int) -> torch.Tensor:
    """Rows with none, a few and many numbers that are far larger than the others."""
    x = torch.randn(rows, width)
    for i in range(rows):
        places = torch.randperm(width)[: (0, 1, 3, MAX_OUTLIERS, MAX_OUTLIERS + 9)[i % 5]]
        x[i, places] *= 60
    return x


@WAYS
@DTYPES
def test_outliers_are_multiplied_as_they_are_and_leave_the_others_their_digits(
    way: ByteDots, dtype: torch.dtype
) -> None:
    weight, x = quantised(torch.randn(130, 768) * 0.05, "w8a8"), _with_outliers(40, 768).to(dtype)
    assert weight.kind == "w8a8 with outliers"
    wanted = x.double() @ weight.dequantised().double().T
    found, rounded = (
        ByteMatrix(replace(weight, kind=kind), dtype, dots=way)(x).double() - wanted
        for kind in ("w8a8 with outliers", "w8a8")
    )
    worst = (found.square().mean(1) / rounded.square().mean(1)).sqrt()
    few = torch.arange(40) % 5
    assert (worst[few == 0] == 1).all()
    assert (worst[few == 4] <= 1.01).all()  # of too many the largest
    # Of sixteen some are no six times as large as is usual, as they are usual themselves.
    for which, most in ((1, 0.2), (2, 0.3), (3, 0.6)):
        assert worst[few == which].mean() < (most if dtype == torch.float32 else 0.7)  # the result's own digits
    plain = ByteMatrix(weight, dtype, dots=ByteDots.PLAIN)(x)
    assert torch.equal(ByteMatrix(weight, dtype, dots=way)(x), plain)


def test_a_row_of_zeros_has_codes_of_zero_and_one_that_is_not_finite_a_scale_that_tells() -> None:
    x = torch.zeros(5, 64)
    x[1, 7], x[2, 9], x[3, 3], x[4, 0] = float("nan"), float("inf"), float("-inf"), -float("nan")
    weight = torch.randn(70, 64)
    for kind, fixed in KINDS.items():
        found = ByteMatrix(_weight(kind, 70, 64, fixed), torch.float32)(x)
        assert (found[0] == 0).all()
        assert not found[1:].isfinite().any()
    assert weight.isfinite().all()


@WAYS
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_whole_numbers(kind: ByteKind, shape: tuple[int, int], way: ByteDots) -> None:
    fixed = KINDS[kind]
    weight, bias = _weight(kind, *shape, fixed), torch.randn(shape[0])
    matrix = ByteMatrix(weight, torch.float32, dots=way)
    for rows in (0, 1, 2, 5, 7, 13, 130):
        x = torch.randn(rows, shape[1])
        wanted = _product(x, weight, fixed)
        torch.testing.assert_close(matrix(x).double(), wanted, rtol=3e-7, atol=1e-30)
        torch.testing.assert_close(matrix(x, bias).double(), wanted + bias, rtol=1e-6, atol=1e-6)


@WAYS
def test_the_largest_sums_neither_saturate_nor_overflow(way: ByteDots) -> None:
    ends = torch.tensor([[127], [-128], [-128], [127]], dtype=torch.int8).repeat(16, MAX_BYTE_WIDTH)
    weight = BlockWeight("w8a8 static", ends, torch.ones(64, 1), inputs=torch.tensor([[1.0, 0.0]]).expand(64, 2))
    x = torch.tensor([[127.0], [-128.0]]).expand(2, MAX_BYTE_WIDTH)
    wanted = x.double() @ ends.double().T
    assert torch.equal(ByteMatrix(weight, torch.float32, dots=way)(x), wanted.float())


@WAYS
@DTYPES
@pytest.mark.parametrize("is_gated", [False, True])
def test_every_way_has_the_same_bits(way: ByteDots, dtype: torch.dtype, is_gated: bool) -> None:
    weight, x = _weight("w8a8", 130, 768), torch.randn(37, 768).to(dtype)
    found, plain = (ByteMatrix(weight, dtype, is_gated=is_gated, dots=dots)(x) for dots in (way, ByteDots.PLAIN))
    assert torch.equal(found, plain)


@DTYPES
@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_the_same_bits_in_every_batch(kind: ByteKind, dtype: torch.dtype) -> None:
    matrix = ByteMatrix(_weight(kind, 130, 768, KINDS[kind]), dtype)
    group = matrix._group_rows()
    x = _with_outliers(group + 45, 768).to(dtype)
    whole = matrix(x)
    assert torch.equal(matrix(x.flip(0)).flip(0), whole)
    for first, last in ((0, 1), (3, 20), (16, 48), (group - 1, group + 40), (7, 7)):
        assert torch.equal(matrix(x[first:last]), whole[first:last])
    for count in range(1, 14):
        assert torch.equal(matrix(x[-count:]), whole[-count:])


def test_bfloat16_is_rounded_once() -> None:
    weight, x = _weight("w8a8", 70, 96), torch.randn(9, 96).bfloat16()
    assert torch.equal(ByteMatrix(weight, torch.bfloat16)(x), ByteMatrix(weight, torch.float32)(x.float()).bfloat16())


def test_matrices_that_read_the_same_take_the_widest_of_their_ranges() -> None:
    def fixed(*ranges: tuple[float, int]) -> tuple[float, int] | None:
        rows = torch.zeros(len(ranges), 32)
        return BlockWeight("w8a8 static", rows, rows[:, :1], inputs=torch.tensor(ranges)).fixed_inputs()

    assert fixed((0.5, 3), (0.5, 3)) == (0.5, 3)
    assert fixed((0.5, 0), (0.25, 0)) == (0.5, 0)
    scale, zero = fixed((0.5, -128), (0.5, 127)) or (0.0, 0)  # 0 to 127.5, and -127.5 to 0
    assert scale == 1.0
    assert zero in (0, -1)


def test_rounding_at_load_makes_bytes_where_sums_fit() -> None:
    assert isinstance(pack_blocks(torch.randn(8, 64), torch.float32, "w8a8"), ByteMatrix)
    assert not isinstance(pack_blocks(torch.randn(2, MAX_BYTE_WIDTH + 32), torch.float32, "w8a8"), ByteMatrix)
