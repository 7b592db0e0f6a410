"""Weights of four bits times bfloat16 as it is: pairs of a group, then its scale, the same bits in every batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.block_weight import BlockWeight, quantised
from kernels.cpu import instructions
from kernels.cpu.block_matrix import BlockMatrix
from kernels.cpu.pair_block_matrix import DIRECT_ROWS, PairBlockMatrix
from kernels.cpu.recorder import Arena, Recorder
from kernels.cpu.recording import Recording
from kernels.linear import pack_blocks
from tests.kernels.test_byte_matrix import _threads

__all__ = ["_threads"]  # a fixture that is used by itself

SHAPES = [(130, 96), (64, 32), (70, 2048), (2, 160), (1640, 64)]  # of the last, threads take several panels at once
pytestmark = pytest.mark.skipif(
    not instructions.has_dot() or instructions.has_neon_dot(), reason="this CPU does not multiply pairs by vdpbf16ps"
)


def _weight(rows: int, width: int) -> BlockWeight:
    return quantised(torch.randn(rows, width) * 0.05, "int4")


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_the_dequantised_numbers(shape: tuple[int, int], is_gated: bool) -> None:
    weight, bias = _weight(*shape), torch.randn(shape[0])
    found, wanted = (
        PairBlockMatrix(weight, is_gated=is_gated),
        BlockMatrix(weight, torch.float32, is_gated=is_gated),
    )
    for rows in (0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 130, 700):
        x = torch.randn(rows, shape[1]).bfloat16()
        for of in (None, bias):
            torch.testing.assert_close(found(x, of).float(), wanted(x.float(), of), rtol=2**-8, atol=1e-5)


def test_whole_numbers_are_exact() -> None:
    """Every code of every column counts once, with its own number and scale."""
    codes = torch.randint(0, 16, (64, 96), dtype=torch.uint8)
    weight = BlockWeight("int4", codes, torch.randint(1, 4, (64, 3)).half())
    for rows in (1, 4, DIRECT_ROWS + 1):
        x = torch.zeros(rows, 96)
        x[:, 5::7] = 1.0
        assert torch.equal(
            PairBlockMatrix(weight)(x.bfloat16()).float(), (x @ weight.dequantised().T).bfloat16().float()
        )


def test_rows_have_the_same_bits_in_every_batch() -> None:
    matrix = PairBlockMatrix(_weight(130, 768))
    group = matrix._group_rows()
    x = torch.randn(group + 45, 768).bfloat16()
    whole = matrix(x)
    assert torch.equal(matrix(x.flip(0)).flip(0), whole)
    for first, last in ((0, 1), (3, 20), (16, 48), (group - 1, group + 40), (7, 7)):
        assert torch.equal(matrix(x[first:last]), whole[first:last])
    for count in range(1, DIRECT_ROWS + 9):
        assert torch.equal(matrix(x[-count:]), whole[-count:])


def test_columns_may_lie_in_an_order_of_their_own() -> None:
    plain, order = _weight(130, 160), torch.randperm(160)
    for rows in (1, 3, 40):
        x = torch.randn(rows, 160).bfloat16()
        found = PairBlockMatrix(replace(plain, order=order))(x)
        assert torch.equal(found, PairBlockMatrix(plain)(x[:, order].contiguous()))


def test_a_row_that_is_not_finite_tells_and_its_neighbours_do_not() -> None:
    x = torch.zeros(11, 64).bfloat16()
    x[1, 7], x[2, 9], x[10, 0] = float("nan"), float("inf"), float("-inf")
    found = PairBlockMatrix(_weight(70, 64))(x)
    bad = torch.zeros(11, dtype=torch.bool)
    bad[[1, 2, 10]] = True
    assert (found[~bad] == 0).all()
    assert not found[bad].isfinite().all(1).any()


def test_a_replay_reads_what_is_there_now() -> None:
    matrix, x = PairBlockMatrix(_weight(130, 96)), torch.randn(3, 96).bfloat16()
    with Recorder(Arena()) as recorder:
        result = matrix(x)
    recording = Recording(recorder)
    x.copy_(torch.randn(3, 96))
    recording.replay()
    assert torch.equal(result, matrix(x))


def test_it_is_taken_for_bfloat16_where_the_cpu_multiplies_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(8, 64)
    assert isinstance(pack_blocks(weight.bfloat16(), torch.bfloat16, "int4"), PairBlockMatrix)
    assert not isinstance(pack_blocks(weight, torch.float32, "int4"), PairBlockMatrix)
    monkeypatch.setattr(instructions, "has_dot", lambda: False)
    assert not isinstance(pack_blocks(weight.bfloat16(), torch.bfloat16, "int4"), PairBlockMatrix)
