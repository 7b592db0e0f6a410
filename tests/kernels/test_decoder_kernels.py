"""The kernels around attention: values against plain formulas, and rows that do not depend on the batch."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.block_copy import copy_blocks, swap_blocks
from kernels.kv_store import store_kv
from kernels.linear import linear_products, row_linear
from kernels.rms_norm import rms_norm
from kernels.rope import apply_rope, full_tables
from kernels.row_tiles import ROW_TILES, agreeing_tiles, padded_rows, split_rows
from kernels.silu_mul import silu_mul

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [1, 32, 100, 344])
def test_rms_norm_is_its_formula(dtype: torch.dtype, width: int) -> None:
    x, residual, weight = torch.randn(5, width).to(dtype), torch.randn(5, width).to(dtype), torch.randn(width).to(dtype)
    y, h = rms_norm(x, weight, 1e-5, residual)
    assert torch.equal(h, x + residual)
    wide = h.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(y.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(rms_norm(h, weight, 1e-5), y)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_rope_turns_pairs_by_their_angle(dtype: torch.dtype) -> None:
    q, k = torch.randn(3, 4, 8).to(dtype), torch.randn(3, 2, 8).to(dtype)
    angles = torch.rand(3, 4) * 6
    turned = apply_rope(q, k, *full_tables(angles))
    for x, y in zip((q, k), turned, strict=True):
        pairs = torch.complex(x[..., :4].double(), x[..., 4:].double()) * torch.exp(1j * angles.double())[:, None]
        expected = torch.cat([pairs.real, pairs.imag], -1)
        torch.testing.assert_close(y.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [1, 24, 344])
def test_silu_mul_is_its_formula(dtype: torch.dtype, width: int) -> None:
    x = torch.randn(7, 2 * width).to(dtype)
    gate, up = x.double().split(width, -1)
    expected = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(silu_mul(x).double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("threads", [1, 3])
def test_silu_mul_rows_do_not_depend_on_the_batch(threads: int) -> None:
    x = torch.randn(300, 2 * 345)
    torch.set_num_threads(threads)
    try:
        whole = silu_mul(x)
    finally:
        torch.set_num_threads(1)
    for rows in (1, 2, 16, 33, 299):
        assert torch.equal(silu_mul(x[:rows].contiguous()), whole[:rows])


def test_store_kv_writes_its_slots_and_nothing_else() -> None:
    k_cache, v_cache = torch.zeros(4, 2, 3, 5), torch.zeros(4, 2, 3, 5)
    k, v = torch.randn(3, 3, 5), torch.randn(3, 3, 5)
    store_kv(k, v, k_cache, v_cache, torch.tensor([7, 0, 3]))
    for cache, rows in ((k_cache, k), (v_cache, v)):
        flat = cache.view(8, 3, 5)
        assert torch.equal(flat[[7, 0, 3]], rows)
        assert not flat[[1, 2, 4, 5, 6]].any()


def test_copies_are_done_in_the_order_written() -> None:
    cache = torch.arange(4.0).view(1, 1, 4, 1).repeat(2, 2, 1, 3)
    copy_blocks(cache, [(0, 1), (1, 2), (3, 1)])
    assert cache[1, 1, :, 0].tolist() == [0.0, 3.0, 0.0, 3.0]


@pytest.mark.parametrize("pairs", [[(0, 5), (3, 1)], [(0, 1), (2, 1)], []], ids=str)
def test_swaps_move_blocks_between_caches(pairs: list[tuple[int, int]]) -> None:
    source, target = torch.randn(2, 2, 4, 8, 3), torch.randn(2, 2, 6, 8, 3)
    expected = target.clone()
    for a, b in pairs:
        expected[:, :, b] = source[:, :, a]
    swap_blocks(source, target, pairs)
    assert torch.equal(target, expected)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [16, 48, 64, 320, 416])
def test_row_linear_is_a_linear_layer(rows: int, bias: bool) -> None:
    x, weight, offset = torch.randn(rows, 40), torch.randn(24, 40), torch.randn(24) if bias else None
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if offset is None else offset.double())
    torch.testing.assert_close(row_linear(x, weight, offset).double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(256, 128), (128, 344), (1191, 128), (40, 33)], ids=str)
def test_linear_rows_do_not_depend_on_the_batch(shape: tuple[int, int]) -> None:
    weight, x = torch.randn(shape), torch.randn(592, shape[1])
    tiles, exact = agreeing_tiles(linear_products([weight]))
    assert exact
    whole = row_linear(x, weight, tiles=tiles)
    for first, rows in ((0, 1), (5, 3), (100, 17), (0, 100), (300, 292)):
        part = torch.zeros(padded_rows(rows), shape[1])
        part[:rows] = x[first : first + rows]
        assert torch.equal(row_linear(part, weight, tiles=tiles)[:rows], whole[first : first + rows])


def test_rows_are_padded_where_one_more_pass_over_the_weights_costs_more() -> None:
    tiles = (256, 128, 64, 32, 16, 8, 4)
    assert [padded_rows(rows, tiles) for rows in (1, 4, 5, 33, 256, 300, 600)] == [4, 4, 8, 64, 256, 320, 640]
    for rows in range(1, 600):
        padded = padded_rows(rows, tiles)
        assert rows <= padded
        assert sum(size for _, size in split_rows(padded, tiles)) == padded


def test_tiles_that_differ_are_not_used_together() -> None:
    def depends_on_rows(rows: torch.Tensor) -> torch.Tensor:
        return rows * (1.001 if len(rows) == 64 else 1.0)

    def depends_on_place(rows: torch.Tensor) -> torch.Tensor:
        return rows + torch.arange(len(rows))[:, None]

    assert agreeing_tiles([(depends_on_rows, 4, torch.float32)]) == ((256, 16), True)
    assert agreeing_tiles([(depends_on_place, 4, torch.float32)]) == ((16,), False)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 80, 256, 257, 1000])
def test_split_rows_covers_all_rows_once(rows: int) -> None:
    parts = split_rows(rows)
    assert [start for start, _ in parts] == [sum(size for _, size in parts[:i]) for i in range(len(parts))]
    assert {size for _, size in parts} <= set(ROW_TILES)
    assert sum(size for _, size in parts) == padded_rows(rows) == math.ceil(rows / 16) * 16
