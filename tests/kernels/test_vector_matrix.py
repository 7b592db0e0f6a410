"""Products on the vector registers: right in every shape, and a row's bits the same in every batch."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch

from kernels.cpu import amx, instructions
from kernels.cpu.pair_matrix import PairMatrix
from kernels.cpu.panel_matrix import PanelMatrix
from kernels.cpu.tile_matrix import TileMatrix
from kernels.cpu.vector_matrix import BLOCK_ROWS, MAX_GROUP_ROWS, SMALL_BLOCK_ROWS, VectorMatrix
from kernels.linear import gated_linear, pack, row_linear

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.03}


class Kind(NamedTuple):
    """A way to multiply on the vector registers."""

    pack: Callable[..., PanelMatrix]
    dtype: torch.dtype
    step: int  # its widths are multiples of it


KINDS = {
    "float32": Kind(VectorMatrix, torch.float32, 1),
    "bfloat16 widened": Kind(VectorMatrix, torch.bfloat16, 1),
    "bfloat16 in pairs": Kind(PairMatrix, torch.bfloat16, 2),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param.endswith("pairs") and not instructions.has_dot():
        pytest.skip("this CPU multiplies no pairs")
    return KINDS[request.param]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _random(*shape: int, dtype: torch.dtype, seed: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


@pytest.mark.parametrize("width", [1, 17, 48, 100, 768, 2048])
@pytest.mark.parametrize("out", [1, 33, 130, 1280])
def test_products_are_right(kind: Kind, out: int, width: int) -> None:
    width, dtype = -(-width // kind.step) * kind.step, kind.dtype
    weight, bias = _random(out, width, dtype=dtype, seed=1, scale=width**-0.5), _random(out, dtype=dtype, seed=2)
    matrix, tolerance = kind.pack(weight), TOLERANCE[dtype]
    for rows in (0, 1, 3, 4, 5, 7, 13, 130):
        x = _random(rows, width, dtype=dtype, seed=3)
        expected = x.double() @ weight.double().T
        for added in (None, bias):
            found = row_linear(x, matrix, added)
            assert (found.dtype, found.shape) == (dtype, (rows, out))
            wanted = expected if added is None else expected + bias.double()
            torch.testing.assert_close(found.double(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_bfloat16_is_rounded_once_and_after_the_bias(dtype: torch.dtype) -> None:
    weight, x, bias = (_random(*s, dtype=dtype, seed=i) for i, s in enumerate([(70, 90), (9, 90), (70,)]))
    wide = VectorMatrix(weight.float())(x.float(), bias.float())
    assert torch.equal(VectorMatrix(weight)(x, bias), wide.to(dtype))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(130, 768), (33, 100), (70, 2048), (1280, 300)])
def test_rows_have_the_same_bits_in_every_batch(kind: Kind, threads: int, shape: tuple[int, int]) -> None:
    """Alone, in every place of the sixes and fours, at the borders of groups, among many."""
    (out, width), dtype = shape, kind.dtype
    weight, bias = _random(out, width, dtype=dtype, seed=1, scale=width**-0.5), _random(out, dtype=dtype, seed=2)
    matrix = kind.pack(weight)
    group = matrix._group_rows()
    x = _random(group + 45, width, dtype=dtype, seed=3)
    torch.set_num_threads(threads)
    whole, biased = matrix(x), matrix(x, bias)
    assert torch.equal(matrix(x.flip(0)).flip(0), whole)
    for first, last in ((0, 1), (3, 20), (16, 48), (group - 1, group + 40), (group - 7, group + 1), (7, 7)):
        assert torch.equal(matrix(x[first:last]), whole[first:last])
        assert torch.equal(matrix(x[first:last], bias), biased[first:last])
    for count in range(1, 2 * BLOCK_ROWS + SMALL_BLOCK_ROWS):
        assert torch.equal(matrix(x[:count]), whole[:count])
        assert torch.equal(matrix(x[-count:], bias), biased[-count:])


def test_groups_hold_whole_blocks_and_at_most_so_many_rows() -> None:
    for width in (1, 768, 2048, 8192, 500_000):
        rows = VectorMatrix(torch.zeros(1, width))._group_rows()
        assert rows % BLOCK_ROWS == 0
        assert BLOCK_ROWS <= rows <= MAX_GROUP_ROWS


@pytest.mark.parametrize("shape", [(64, 64), (108, 33), (4096, 768), (2, 5)])
def test_gated_products_are_right_and_do_not_depend_on_other_rows(kind: Kind, shape: tuple[int, int]) -> None:
    (out, width), dtype = shape, kind.dtype
    width += width % kind.step
    weight = _random(out, width, dtype=dtype, seed=1, scale=width**-0.5)
    x, bias = _random(70, width, dtype=dtype, seed=2), _random(shape[0], dtype=dtype, seed=3)
    matrix, tolerance = kind.pack(weight, is_gated=True), TOLERANCE[dtype]
    for added in (None, bias):
        gate, up = (x.double() @ weight.double().T + (0 if added is None else added.double())).chunk(2, dim=-1)
        found = gated_linear(x, matrix, added)
        torch.testing.assert_close(found.double(), torch.nn.functional.silu(gate) * up, atol=tolerance, rtol=tolerance)
        assert torch.equal(gated_linear(x[33:34], matrix, added), found[33:34])


def test_nan_and_infinity_stay_in_their_row(kind: Kind) -> None:
    matrix = kind.pack(torch.ones(40, 100).to(kind.dtype))
    x = torch.ones(21, 100).to(kind.dtype)
    x[3, 5], x[18, 0], x[20, 99] = torch.nan, torch.inf, -torch.inf
    found = matrix(x)
    assert found[3].isnan().all()
    assert (found[18] == torch.inf).all()
    assert (found[20] == -torch.inf).all()
    assert (found[[*range(3), *range(4, 18), 19]] == 100).all()


@pytest.mark.parametrize("rows", [1, 5, 7, 15])
def test_nothing_is_read_past_the_last_row(kind: Kind, rows: int) -> None:
    """The inputs end where memory ends: reading on would end the process."""
    page, width = mmap.PAGESIZE, 100
    memory = mmap.mmap(-1, 5 * page)
    numbers = torch.frombuffer(memory, dtype=torch.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(numbers.data_ptr() + 4 * page), ctypes.c_size_t(page), 0) == 0
    x = numbers[: 4 * page].view(kind.dtype)[-rows * width :].view(rows, width)
    x.copy_(_random(rows, width, dtype=kind.dtype, seed=1))
    matrix = kind.pack(_random(70, width, dtype=kind.dtype, seed=2))
    assert torch.equal(matrix(x), matrix(x.clone()))


def test_an_input_that_is_a_view_is_read_as_such() -> None:
    weight, x = _random(40, 30, dtype=torch.float32, seed=1), _random(30, 9, dtype=torch.float32, seed=2)
    assert torch.equal(VectorMatrix(weight)(x.T), VectorMatrix(weight)(x.T.contiguous()))


def test_every_weight_that_has_kernels_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(pack(torch.zeros(8, 64)), VectorMatrix)
    assert isinstance(pack(torch.zeros(8, 33).bfloat16()), VectorMatrix)
    for has_amx, has_dot, wanted in (
        (True, True, TileMatrix),
        (False, True, PairMatrix),
        (True, False, TileMatrix),
        (False, False, VectorMatrix),
    ):
        monkeypatch.setattr(amx, "has_amx", lambda found=has_amx: found)
        monkeypatch.setattr(instructions, "has_dot", lambda found=has_dot: found)
        assert isinstance(pack(torch.zeros(8, 64).bfloat16()), wanted)
    half = torch.zeros(8, 64).half()
    assert pack(half) is half


def test_a_weight_that_is_not_packed_is_multiplied_plainly() -> None:
    x, weight, bias = (_random(*s, dtype=torch.float16, seed=i) for i, s in enumerate([(5, 40), (24, 40), (24,)]))
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(row_linear(x, weight, bias).double(), expected, atol=0.05, rtol=0.01)
    gate, up = expected.chunk(2, dim=-1)
    found = gated_linear(x, weight, bias).double()
    torch.testing.assert_close(found, torch.nn.functional.silu(gate) * up, atol=0.2, rtol=0.02)
