"""The kernels around attention: values against plain formulas, and rows that do not depend on the batch."""

from __future__ import annotations

import pytest
import torch

from kernels.kv_cache import copy_blocks, store_kv, swap_blocks
from kernels.layer_ops import apply_rope, full_tables, rms_norm, silu_mul

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
