"""The small Triton kernels against their torch references."""

from __future__ import annotations

import pytest
import torch

from kernels.kv_cache import copy_blocks
from kernels.layer_ops import apply_rope, full_tables, rms_norm, silu_mul
from tests.fixtures.gpu_kernels import ON_DEVICES, TOLERANCE, Run, runner

pytest.importorskip("triton", reason="needs Triton")
WIDTHS = [(torch.float32, 1), (torch.float32, 100), (torch.bfloat16, 344), (torch.float16, 1000)]


@pytest.fixture(params=ON_DEVICES)
def run(request: pytest.FixtureRequest) -> Run:
    torch.manual_seed(0)
    return runner(request.param)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    near = TOLERANCE[expected.dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=near, rtol=near)


@pytest.mark.parametrize(("dtype", "width"), WIDTHS, ids=str)
def test_gpu_rms_norm_is_the_reference(run: Run, dtype: torch.dtype, width: int) -> None:
    x, residual = torch.randn(5, width).to(dtype), torch.randn(5, width).to(dtype)
    weight = torch.randn(width).to(dtype)
    y, h = run("kernels.gpu.rms_norm:rms_norm", x, weight, 1e-5, residual)
    assert_near(h, x + residual)
    # Of the h that was found, so that a last bit of h is not counted twice.
    assert_near(y, rms_norm(h, weight, 1e-5))
    assert_near(run("kernels.gpu.rms_norm:rms_norm", x, weight, 1e-5), rms_norm(x, weight, 1e-5))


def test_gpu_rms_norm_reads_heads_inside_a_fused_projection(run: Run) -> None:
    heads = torch.randn(3, 7, 24)[:, 2:5]
    weight = torch.randn(24)
    found = run("kernels.gpu.rms_norm:rms_norm", heads, weight, 1e-6)
    assert found.is_contiguous()
    assert_near(found, rms_norm(heads, weight, 1e-6))


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.float32, 80), (torch.bfloat16, 64), (torch.float16, 2)])
def test_gpu_rope_is_the_reference(run: Run, dtype: torch.dtype, head_dim: int) -> None:
    fused = torch.randn(3, 17, head_dim).to(dtype)
    q, k = fused[:, :11], fused[:, 11:14]
    cos, sin = full_tables(torch.rand(3, head_dim // 2) * 6)
    found = run("kernels.gpu.rope:apply_rope", q, k, cos, sin)
    for x, expected in zip(found, apply_rope(q, k, cos, sin), strict=True):
        assert_near(x, expected)


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 1), (torch.bfloat16, 1030), (torch.float16, 24)])
def test_gpu_silu_mul_is_the_reference(run: Run, dtype: torch.dtype, width: int) -> None:
    x = (torch.randn(3, 2 * width) * 4).to(dtype)
    # The reference in wider arithmetic: in 16 bits it rounds twice, the kernel once.
    expected = silu_mul(x.double()).to(dtype)
    assert_near(run("kernels.gpu.silu_mul:silu_mul", x), expected)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gpu_store_kv_writes_named_slots_only(run: Run, dtype: torch.dtype) -> None:
    fused = torch.randn(4, 9, 12).to(dtype)
    k, v = fused[:, 3:6], fused[:, 6:]
    k_cache, v_cache = torch.zeros(5, 3, 3, 12, dtype=dtype), torch.zeros(5, 3, 3, 12, dtype=dtype)
    run("kernels.gpu.kv_store:store_kv", k, v, k_cache, v_cache, torch.tensor([14, 0, -1, 7]))
    for cache, new in ((k_cache, k), (v_cache, v)):
        expected = torch.zeros(15, 3, 12, dtype=dtype)
        expected[[14, 0, 7]] = new[[0, 1, 3]]
        assert torch.equal(cache.view(15, 3, 12), expected)


@pytest.mark.parametrize("width", [4, 3], ids=["32-bit words", "16-bit words"])
def test_gpu_block_copies_happen_as_if_in_order(run: Run, width: int) -> None:
    pairs = [(0, 1), (1, 2), (5, 0), (2, 2), (3, 6), (4, 6)]
    cache = torch.randn(2, 2, 7, 1, 1, width).bfloat16()
    expected = cache.clone()
    copy_blocks(expected, pairs)
    run("kernels.gpu.block_copy:copy_blocks", cache, pairs)
    assert torch.equal(cache, expected)


def test_gpu_block_copies_of_one_launch_do_not_meet(run: Run) -> None:
    pairs = [(0, 1), (4, 5), (1, 2), (6, 3), (7, 3), (8, 7)]
    within = run("kernels.gpu.block_copy:independent", pairs, is_same=True)
    assert within == [[(0, 1), (4, 5)], [(1, 2), (6, 3)], [(7, 3)], [(8, 7)]]
    between = run("kernels.gpu.block_copy:independent", pairs, is_same=False)
    assert between == [[(0, 1), (4, 5), (1, 2), (6, 3)], [(7, 3), (8, 7)]]


def test_gpu_swap_moves_blocks_between_caches_of_other_sizes(run: Run) -> None:
    source, target = torch.randn(2, 2, 4, 2, 1, 8), torch.zeros(2, 2, 9, 2, 1, 8)
    expected = target.clone()
    expected[:, :, [8, 1]] = source[:, :, [0, 3]]
    run("kernels.gpu.block_copy:swap_blocks", source, target, [(0, 8), (3, 1)])
    assert torch.equal(target, expected)


@pytest.mark.gpu
def test_gpu_swap_through_pinned_host_memory_brings_blocks_back() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    from kernels.gpu.block_copy import swap_blocks

    cache = torch.randn(3, 2, 8, 16, 2, 64, device="cuda")
    host = torch.zeros(3, 2, 4, 16, 2, 64).pin_memory()
    before = cache.clone()
    swap_blocks(cache, host, [(5, 0), (7, 3)])
    cache[:, :, [5, 7]] = 0
    swap_blocks(host, cache, [(0, 5), (3, 7)])
    assert torch.equal(cache, before)
