"""Weights in blocks times bfloat16 as it is: pairs of a group, then its scale, the same bits in every batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.block_weight import BlockWeight, Kind, quantised
from kernels.cpu import instructions
from kernels.cpu.block_matrix import BlockMatrix
from kernels.cpu.pair_block_matrix import DIRECT_ROWS, PairBlockMatrix
from kernels.cpu.recorder import Arena, Recorder
from kernels.cpu.recording import Recording
from kernels.linear import pack_blocks
from tests.kernels.test_block_matrix import _blocks
from tests.kernels.test_byte_matrix import _threads

__all__ = ["_threads"]  # a fixture that is used by itself

SHAPES = [(130, 96), (64, 32), (70, 2048), (2, 160), (1640, 64)]  # of the last, threads take several panels at once
# Each kind of codes, of scales, of what is added; the others are two of these together.
SOME: tuple[Kind, ...] = (
    "int4",
    "int4 with offsets",
    "int4 with zeros",
    "int4 with wide offsets",
    "int8",
    "fp8",
    "int8 by sixteens with wide offsets",
)
KINDS = pytest.mark.parametrize("kind", SOME)
pytestmark = pytest.mark.skipif(
    not instructions.has_dot() or instructions.has_neon_dot(), reason="this CPU does not multiply pairs by vdpbf16ps"
)


@KINDS
def test_products_are_those_of_the_dequantised_numbers(kind: Kind) -> None:
    """No weight is rounded: what is left of the difference is the order in which float32 numbers are added."""
    for shape in SHAPES:
        weight, bias = _blocks(kind, *shape), torch.randn(shape[0])
        matrix, numbers = PairBlockMatrix(weight), weight.dequantised().double()
        for rows in (0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 130):
            x = torch.randn(rows, shape[1]).bfloat16()
            wanted = x.double() @ numbers.T
            room = 2**-8 * wanted.abs() + 2**-18 * (x.double().abs() @ numbers.abs().T)
            assert ((matrix(x).double() - wanted).abs() <= room).all()
            assert ((matrix(x, bias).double() - wanted - bias).abs() <= room + 2**-8 * bias.abs()).all()


@KINDS
def test_a_gated_one_has_the_products_of_one_that_is_not(kind: Kind) -> None:
    weight = _blocks(kind, 130, 96)
    gated, wanted = PairBlockMatrix(weight, is_gated=True), BlockMatrix(weight, torch.float32, is_gated=True)
    for rows in (1, 13, 700):
        x = torch.randn(rows, 96).bfloat16()
        torch.testing.assert_close(gated(x).float(), wanted(x.float()), rtol=2**-7, atol=1e-4)


@KINDS
def test_every_code_of_every_column_counts_once(kind: Kind) -> None:
    """Whole numbers and scales are exact."""
    weight = _blocks(kind, 64, 96)
    scales = torch.randint(1, 3, weight.scales.shape).to(weight.scales.dtype)
    offsets = None if weight.offsets is None else torch.randint(-3, 9, weight.scales.shape).to(scales.dtype)
    weight = replace(weight, scales=scales, offsets=offsets)
    for rows in (1, 4, DIRECT_ROWS + 1, 40):
        x = torch.zeros(rows, 96)
        x[:, 5::7] = 1.0
        x[0, 3] = -2.0
        wanted = (x @ weight.dequantised().T).bfloat16()
        assert torch.equal(PairBlockMatrix(weight)(x.bfloat16()), wanted)


@KINDS
def test_rows_have_the_same_bits_in_every_batch(kind: Kind) -> None:
    matrix = PairBlockMatrix(_blocks(kind, 130, 768))
    group = matrix._group_rows()
    x = torch.randn(group + 45, 768).bfloat16()
    whole = matrix(x)
    assert torch.equal(matrix(x.flip(0)).flip(0), whole)
    for first, last in ((0, 1), (3, 20), (16, 48), (group - 1, group + 40), (7, 7)):
        assert torch.equal(matrix(x[first:last]), whole[first:last])
    for count in range(1, DIRECT_ROWS + 9):
        assert torch.equal(matrix(x[-count:]), whole[-count:])


def test_columns_may_lie_in_an_order_of_their_own() -> None:
    plain, order = _blocks("int4 with zeros", 130, 160), torch.randperm(160)
    for rows in (1, 3, 40):
        x = torch.randn(rows, 160).bfloat16()
        found = PairBlockMatrix(replace(plain, order=order))(x)
        assert torch.equal(found, PairBlockMatrix(plain)(x[:, order].contiguous()))


@KINDS
def test_a_row_that_is_not_finite_tells_and_its_neighbours_do_not(kind: Kind) -> None:
    x = torch.zeros(11, 64).bfloat16()
    x[1, 7], x[2, 9], x[10, 0] = float("nan"), float("inf"), float("-inf")
    found = PairBlockMatrix(_blocks(kind, 70, 64))(x)
    bad = torch.zeros(11, dtype=torch.bool)
    bad[[1, 2, 10]] = True
    assert (found[~bad] == 0).all()
    assert not found[bad].isfinite().all(1).any()


def test_a_replay_reads_what_is_there_now() -> None:
    """Sums of the inputs' groups too."""
    matrix, x = PairBlockMatrix(_blocks("int4 with offsets", 130, 96)), torch.randn(3, 96).bfloat16()
    with Recorder(Arena()) as recorder:
        result = matrix(x)
    recording = Recording(recorder)
    x.copy_(torch.randn(3, 96))
    recording.replay()
    assert torch.equal(result, matrix(x))


@KINDS
def test_it_is_taken_for_bfloat16_where_the_cpu_multiplies_pairs(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = _blocks(kind, 8, 64)
    assert isinstance(pack_blocks(weight, torch.bfloat16, None), PairBlockMatrix)
    assert not isinstance(pack_blocks(weight, torch.float32, None), PairBlockMatrix)
    monkeypatch.setattr(instructions, "has_dot", lambda: False)
    assert not isinstance(pack_blocks(weight, torch.bfloat16, None), PairBlockMatrix)


def test_what_is_rounded_at_load_is_multiplied_so() -> None:
    weight = torch.randn(70, 64)
    found, x = pack_blocks(weight.bfloat16(), torch.bfloat16, "int4"), torch.randn(5, 64).bfloat16()
    assert isinstance(found, PairBlockMatrix)
    blocks: BlockWeight = quantised(weight.bfloat16(), "int4")
    torch.testing.assert_close(found(x).float(), x.float() @ blocks.dequantised().T, rtol=2**-8, atol=1e-4)
