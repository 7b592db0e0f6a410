"""The CPU's compiled kernels: equal to torch in double precision; rows depend on neither batch nor threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numba import carray

from kernels.cpu.dtypes import INT64, has_kernels
from kernels.cpu.kv_layout import in_plain, in_tiles, is_tiled
from kernels.cpu.likeliest import likeliest
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.task import enter, field, leave, next_chunk, offsets_of, pointer
from kernels.layer_ops import full_tables, rms_norm, rope_store, silu_mul, store_rows

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"], autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def _close(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [1, 100, 768])
def test_rms_norm_equals_its_reference(dtype: torch.dtype, width: int) -> None:
    x, residual, weight = (torch.randn(*shape).to(dtype) for shape in ((180, width), (180, width), (width,)))
    y, h = rms_norm(x, weight, 1e-5, residual)
    assert torch.equal(h, x + residual)
    expected = rms_norm(h.double(), weight.double(), 1e-5)
    _close(y, expected)
    assert torch.equal(rms_norm(x[3:4], weight, 1e-5, residual[3:4])[0], y[3:4])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("num_rows", "width"), [(1, 1), (7, 345), (180, 768)])
def test_store_rows_puts_each_row_at_its_place_and_touches_no_other(
    dtype: torch.dtype, num_rows: int, width: int
) -> None:
    rows, target, places = (
        torch.randn(num_rows, width).to(dtype),
        torch.randn(400, width).to(dtype),
        torch.randperm(400),
    )
    expected = target.clone()
    expected[places[:num_rows]] = rows
    store_rows(rows, target, places[:num_rows])
    assert torch.equal(target, expected)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("is_named", [False, True], ids=["plain", "named"])
def test_the_likeliest_token_is_the_first_of_the_highest_that_are_numbers(dtype: torch.dtype, is_named: bool) -> None:
    logits, table, tokens = torch.randn(9, 1001).to(dtype), torch.randn(3000, 40).to(dtype), torch.empty(9).long()
    logits[1] = 2.0
    logits[2, 70:80], logits[3, :500], logits[4] = 9.0, torch.nan, torch.nan
    names = torch.randperm(3000)[:1001] if is_named else None
    rows = likeliest(logits, names, table, tokens)
    best = logits.float().nan_to_num(-torch.inf).argmax(-1)
    best[1], best[2], best[4] = 0, 70, 0
    assert torch.equal(tokens, best if names is None else names[best])
    assert torch.equal(rows, table[tokens])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [1, 24, 345])
def test_silu_mul_equals_its_reference_also_at_the_ends_of_its_range(dtype: torch.dtype, width: int) -> None:
    x = torch.randn(400, 2 * width)
    x[0, :width], x[1, :width], x[2, :width] = 100.0, -100.0, torch.nan
    x = x.to(dtype)
    y = silu_mul(x)
    torch.testing.assert_close(
        y.float(), silu_mul(x.double()).float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], equal_nan=True
    )
    for rows in (slice(0, 1), slice(5, 38), slice(0, 400)):
        assert torch.equal(silu_mul(x[rows].contiguous()).nan_to_num(7), y[rows].nan_to_num(7))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("has_norms", [False, True], ids=["plain", "head-norms"])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(12, 4, 64), (2, 1, 6)])
def test_rope_store_equals_its_reference(
    dtype: torch.dtype, has_norms: bool, heads: int, kv_heads: int, width: int
) -> None:
    rows = 130
    qkv = torch.randn(rows, (heads + 2 * kv_heads) * width).to(dtype)
    cos, sin = full_tables(torch.rand(rows, width // 2) * 6)
    norms = {"q_norm": torch.randn(width).to(dtype), "k_norm": torch.randn(width).to(dtype)} if has_norms else {}
    slots = torch.randperm(160)[:rows]
    caches, expected_caches = (
        [torch.zeros(10, 16, kv_heads, width, dtype=kind) for _ in "kv"] for kind in (dtype, torch.float64)
    )
    q = rope_store(qkv, cos, sin, *caches, slots, **norms, eps=1e-5)
    wide = {name: norm.double() for name, norm in norms.items()}
    expected = rope_store(qkv.double(), cos, sin, *expected_caches, slots, **wide, eps=1e-5)
    _close(q, expected)
    plain = in_plain(*caches) if is_tiled(caches[0]) else caches
    for cache, wanted in zip(plain, expected_caches, strict=True):
        _close(cache, wanted)
    alone = rope_store(qkv[5:6], cos[5:6], sin[5:6], *caches, slots[5:6], **norms, eps=1e-5)
    assert torch.equal(alone, q[5:6])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("block_size", [16, 48])
def test_a_cache_in_tiles_holds_each_block_whole_and_gives_back_what_was_put_in(
    dtype: torch.dtype, block_size: int
) -> None:
    plain = [torch.randn(5, block_size, 3, 64).to(dtype) for _ in "kv"]
    tiled = in_tiles(*plain)
    for before, after, found in zip(plain, in_plain(*tiled), tiled, strict=True):
        assert torch.equal(before, after)
        assert torch.equal(found[2].flatten().sort().values, before[2].flatten().sort().values)


class CountTask(NamedTuple):
    num_chunks: int
    done: np.ndarray


AT = offsets_of(CountTask)


def _count(task):
    enter(task)
    done = carray(pointer(task, AT.done, INT64), (field(task, AT.num_chunks),))
    chunk = next_chunk(task)
    while chunk < field(task, AT.num_chunks):
        done[chunk] += 1
        chunk = next_chunk(task)
    leave(task)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_chunk_is_done_once_whatever_the_threads(threads: int) -> None:
    region, before = ParallelRegion(_count), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for num_chunks in (1, 3, 1001):
            done = np.zeros(num_chunks, dtype=np.int64)
            region.launch(num_chunks, CountTask(num_chunks, done))
            assert (done == 1).all()
    finally:
        torch.set_num_threads(before)


def test_bfloat16_is_rounded_to_even_as_torch_does() -> None:
    wide = torch.cat([torch.randn(4096), torch.tensor([torch.inf, -torch.inf, 0.0, 3.39e38, 1e-40])])
    ones = torch.ones(len(wide), 2, dtype=torch.bfloat16)
    # x + 0 is x: what the sum is stored as is what rounding makes of it.
    halves = (wide / 2).to(torch.bfloat16)
    x = halves[:, None] * ones
    _, h = rms_norm(x, torch.ones(2, dtype=torch.bfloat16), 1e-5, x * 1.25)
    assert torch.equal(h, x + x * 1.25)


def test_other_types_are_left_to_torch() -> None:
    assert not has_kernels(torch.ones(1, dtype=torch.float16))
    x = torch.randn(3, 8, dtype=torch.float16)
    assert torch.equal(silu_mul(x), torch.nn.functional.silu(x[:, :4]) * x[:, 4:])
