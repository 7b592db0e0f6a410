"""Products on the matrix registers and compiled attention: right, and the same bits in every batch."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu import amx
from kernels.cpu.kv_layout import in_tiles, is_tiled
from kernels.cpu.tile_matrix import MAX_GROUP_ROWS, TileMatrix
from kernels.linear import gated_linear, pack
from kernels.paged_attention import attend_plainly, paged_attention
from tests.fixtures.cpu_paths import CPU_PATHS, take_path


@pytest.mark.parametrize("shape", [(96, 64), (130, 32), (1, 768), (1280, 768), (4096, 2048)])
@pytest.mark.parametrize("threads", [1, 2])
def test_tile_products_are_right_and_do_not_depend_on_other_rows(shape: tuple[int, int], threads: int) -> None:
    if not amx.has_amx():
        pytest.skip("this CPU has no matrix registers")
    generator = torch.Generator().manual_seed(7)
    weight = (torch.randn(shape, generator=generator) * shape[1] ** -0.5).bfloat16()
    matrix = TileMatrix(weight)
    x = torch.randn((MAX_GROUP_ROWS + 45, shape[1]), generator=generator).bfloat16()
    bias = torch.randn(shape[0], generator=generator).bfloat16()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole, biased = matrix(x), matrix(x, bias)
        expected = x.double() @ weight.double().T
        torch.testing.assert_close(whole.double(), expected, atol=0.03, rtol=0.01)
        torch.testing.assert_close(biased.double(), expected + bias.double(), atol=0.03, rtol=0.01)
        for first, last in ((0, 1), (3, 20), (15, 16), (16, 48), (MAX_GROUP_ROWS - 1, MAX_GROUP_ROWS + 40), (7, 7)):
            assert torch.equal(matrix(x[first:last]), whole[first:last])
            assert torch.equal(matrix(x[first:last], bias), biased[first:last])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(64, 64), (108, 32), (4096, 768)])
def test_gated_tile_products_are_right_and_do_not_depend_on_other_rows(shape: tuple[int, int]) -> None:
    if not amx.has_amx():
        pytest.skip("this CPU has no matrix registers")
    generator = torch.Generator().manual_seed(7)
    weight = (torch.randn(shape, generator=generator) * shape[1] ** -0.5).bfloat16()
    x = torch.randn((70, shape[1]), generator=generator).bfloat16()
    bias = torch.randn(shape[0], generator=generator).bfloat16()
    matrix = pack(weight, is_gated=True)
    for added in (None, bias):
        gate, up = (x.double() @ weight.double().T + (0 if added is None else added.double())).chunk(2, dim=-1)
        found = gated_linear(x, matrix, added)
        torch.testing.assert_close(found.double(), torch.nn.functional.silu(gate) * up, atol=0.03, rtol=0.01)
        assert torch.equal(gated_linear(x[33:34], matrix, added), found[33:34])


def test_tile_products_keep_nan_and_infinity_in_their_row() -> None:
    if not amx.has_amx():
        pytest.skip("this CPU has no matrix registers")
    matrix = TileMatrix(torch.ones(40, 64).bfloat16())
    x = torch.ones(20, 64).bfloat16()
    x[3, 5], x[18, 0] = torch.nan, torch.inf
    found = matrix(x)
    assert found[3].isnan().all()
    assert (found[18] == torch.inf).all()
    assert (found[[*range(3), *range(4, 18), 19]] == 64).all()


def _ragged(dtype: torch.dtype, heads: int, kv_heads: int, width: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(11)
    block_size, lens, counts = 16, [1, 15, 300, 513, 700, 90, 129], [1, 1, 1, 1, 200, 90, 129]
    tables = torch.zeros((len(lens), 44), dtype=torch.int32)
    order = torch.randperm(400, generator=generator).to(torch.int32)
    used = 0
    for i, length in enumerate(lens):
        need = -(-length // block_size)
        tables[i, :need] = order[used : used + need]
        used += need
    # Blocks that nobody owns, and rows past a sequence's end, hold what must never be read.
    caches = torch.full((2, 400, block_size, kv_heads, width), torch.nan, dtype=dtype)
    for i, length in enumerate(lens):
        for position in range(length):
            block = int(tables[i, position // block_size])
            caches[:, block, position % block_size] = torch.randn((2, kv_heads, width), generator=generator).to(dtype)
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    q = torch.randn((int(starts[-1]), heads, width), generator=generator).to(dtype)
    return q, caches[0], caches[1], tables, torch.tensor(lens, dtype=torch.int32), starts


def _kept(*caches: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Plain caches as attention finds them on this machine."""
    return in_tiles(*caches) if is_tiled(caches[0]) else caches


@pytest.fixture(params=CPU_PATHS)
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    return take_path(request.param, monkeypatch)


@pytest.mark.parametrize("window", [None, 70, 600])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width"), [(12, 4, 64), (4, 4, 32), (8, 1, 128), (6, 2, 96), (34, 2, 80)]
)
def test_compiled_attention_equals_the_plain_one(
    dtype: torch.dtype, window: int | None, heads: int, kv_heads: int, width: int
) -> None:
    q, k, v, *batch = _ragged(dtype, heads, kv_heads, width)
    found = paged_attention(q, *_kept(k, v), *batch, scale=width**-0.5, sliding_window=window)
    expected = attend_plainly(q, k, v, *batch, scale=width**-0.5, sliding_window=window)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_attention_gives_a_sequence_the_same_bits_alone(
    dtype: torch.dtype, window: int | None, threads: int
) -> None:
    q, k, v, tables, lens, starts = _ragged(dtype, 12, 4, 64)
    caches = _kept(k, v)

    def attend(q: torch.Tensor, *batch: torch.Tensor) -> torch.Tensor:
        return paged_attention(q, *caches, *batch, scale=0.125, sliding_window=window)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = attend(q, tables, lens, starts)
    finally:
        torch.set_num_threads(before)
    for i in range(len(lens)):
        first, last = int(starts[i]), int(starts[i + 1])
        own = (q[first:last], tables[i : i + 1], lens[i : i + 1], torch.tensor([0, last - first], dtype=torch.int32))
        assert torch.equal(attend(*own), together[first:last])
        # The last query of a prompt, as a decoding one.
        single = (q[last - 1 : last], tables[i : i + 1], lens[i : i + 1], torch.tensor([0, 1], dtype=torch.int32))
        assert torch.equal(attend(*single), together[last - 1 : last])


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(12, 4, 64), (6, 2, 96)])
def test_attention_in_float32_has_the_same_bits_from_plain_caches_and_from_tiles(
    heads: int, kv_heads: int, width: int
) -> None:
    q, k, v, tables, lens, starts = _ragged(torch.float32, heads, kv_heads, width)
    halves = torch.stack([2 * tables, 2 * tables + 1], dim=2).flatten(1)  # blocks of 8: too small for tiles
    plain = [cache.view(-1, 8, kv_heads, width) for cache in (k, v)]
    assert is_tiled(k)
    assert not is_tiled(plain[0])
    found = paged_attention(q, *in_tiles(k, v), tables, lens, starts, scale=0.125)
    assert torch.equal(found, paged_attention(q, *plain, halves, lens, starts, scale=0.125))


def test_products_of_torch_are_right_after_attention_on_the_same_thread() -> None:
    """Both set the matrix registers up, each in its own way."""
    q, k, v, *batch = _ragged(torch.bfloat16, 12, 4, 64)
    left, right = torch.randn(64, 96).bfloat16(), torch.randn(96, 48).bfloat16()
    expected = left @ right
    for _ in range(3):
        paged_attention(q, k, v, *batch, scale=0.125)
        assert torch.equal(left @ right, expected)
