"""Keys and values in eight bits: what is stored is the reference's rounding, what attends is close to the numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels import kv_codes
from kernels.cpu.kv_layout import in_plain, is_tiled
from kernels.cpu.paged_attention import KEY_BLOCK
from kernels.kv_cache import copy_blocks, store_kv, swap_blocks
from kernels.layer_ops import full_tables, rope_store
from kernels.paged_attention import attend_plainly, paged_attention
from tests.fixtures.cpu_paths import CPU_PATHS, take_path

KINDS = pytest.mark.parametrize("kind", list(kv_codes.DTYPES))
SHAPES = [(12, 4, 64), (3, 1, 128), (4, 2, 6), (8, 2, 80)]  # heads, KV heads, numbers of a head
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 4e-2}  # of numbers up to 12


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=CPU_PATHS)
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    return take_path(request.param, monkeypatch)


def _caches(kind: str, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> list[torch.Tensor]:
    """Two of them, full of what is no number where it can be one."""
    shape = (num_blocks, block_size, kv_heads, kv_codes.row_bytes(head_dim))
    return [torch.full(shape, -1, dtype=torch.int8).view(kv_codes.DTYPES[kind]) for _ in "kv"]


def _filled(kind: str, numbers: list[torch.Tensor]) -> list[torch.Tensor]:
    """Caches as a CPU has them, with keys and values [num_blocks, block_size, kv_heads, head_dim] in them."""
    plain = _caches(kind, *numbers[0].shape)
    slots = torch.arange(numbers[0].shape[0] * numbers[0].shape[1])
    store_kv(*(x.flatten(0, 1) for x in numbers), *plain, slots)
    return list(kv_codes.in_tiles(*plain))


@KINDS
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_stored_is_the_reference_rounding_to_the_bit(
    kind: str, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    (heads, kv_heads, width), rows = shape, 130
    qkv = torch.randn(rows, (heads + 2 * kv_heads) * width) * torch.logspace(-20, 4, rows)[:, None]
    qkv[7, -width:] = 0.0
    qkv = qkv.to(dtype)
    cos, sin = full_tables(torch.rand(rows, width // 2) * 6)
    slots = torch.randperm(160)[:rows]
    codes = _caches(kind, 10, 16, kv_heads, width)
    numbers = [torch.zeros(10, 16, kv_heads, width, dtype=dtype) for _ in "kv"]
    assert torch.equal(rope_store(qkv, cos, sin, *codes, slots), rope_store(qkv, cos, sin, *numbers, slots))
    numbers = list(in_plain(*numbers)) if is_tiled(numbers[0]) else numbers
    at = (slots // 16, slots % 16)
    for cache, wanted in zip(kv_codes.in_plain(*codes), numbers, strict=True):
        stored, scales = (part[at] for part in kv_codes.plain_parts(cache))
        expected = kv_codes.quantised(wanted[at], kv_codes.DTYPES[kind])
        assert torch.equal(scales, expected[1])
        assert torch.equal(stored, expected[0])
        far = (kv_codes.dequantised(stored, scales) - wanted[at].float()).abs()
        assert (far <= wanted[at].float().abs().amax(-1, keepdim=True) * (0.005 if kind == "int8" else 0.04)).all()


class Batch:
    """Sequences in scattered blocks of one cache: (tokens, queries) each."""

    def __init__(self, work: list[tuple[int, int]], shape: tuple[int, int, int], block_size: int = 16) -> None:
        heads, kv_heads, width = shape
        need = [-(-length // block_size) for length, _ in work]
        order = torch.randperm(sum(need) + 3)
        self.work, self.tables, used = work, torch.zeros(len(work), max(need), dtype=torch.int32), 3
        for row, count in enumerate(need):
            self.tables[row, :count] = order[used : used + count]
            used += count
        self.numbers = [torch.randn(len(order), block_size, kv_heads, width) * 3 for _ in "kv"]
        self.q = [torch.randn(queries, heads, width) for _, queries in work]

    def arguments(self, rows: list[int]) -> tuple[torch.Tensor, ...]:
        counts = torch.tensor([0, *(self.work[i][1] for i in rows)], dtype=torch.int32)
        lens = torch.tensor([self.work[i][0] for i in rows], dtype=torch.int32)
        return self.tables[rows], lens, counts.cumsum(0, dtype=torch.int32)

    def queries(self, rows: list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.cat([self.q[i] for i in rows]).to(dtype)


WORK = [(1, 1), (15, 1), (300, 200), (90, 90), (KEY_BLOCK + 1, 1), (700, 3)]


@KINDS
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_that_of_the_rounded_numbers(
    kind: str, shape: tuple[int, int, int], window: int | None, dtype: torch.dtype
) -> None:
    batch, rows = Batch(WORK, shape), list(range(len(WORK)))
    codes = _filled(kind, batch.numbers)
    scale = shape[2] ** -0.5
    found = paged_attention(
        batch.queries(rows, dtype), *codes, *batch.arguments(rows), scale=scale, sliding_window=window
    )
    wide = batch.queries(rows, dtype).float()
    plain = kv_codes.in_plain(*codes)
    wanted = attend_plainly(wide, *plain, *batch.arguments(rows), scale=scale, sliding_window=window)
    torch.testing.assert_close(found.float(), wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@KINDS
@pytest.mark.parametrize("block_size", [16, 48])
def test_a_row_has_the_same_bits_alone_and_in_every_batch_and_chunk(
    kind: str, block_size: int, dtype: torch.dtype
) -> None:
    shape = SHAPES[0]
    batch, rows = Batch(WORK, shape, block_size), list(range(len(WORK)))
    codes = _filled(kind, batch.numbers)

    def attend(rows: list[int]) -> torch.Tensor:
        return paged_attention(batch.queries(rows, dtype), *codes, *batch.arguments(rows), scale=0.1)

    together = attend(rows).split([queries for _, queries in WORK])
    for row in rows:
        assert torch.equal(attend([row]), together[row])
    last = batch.q[2][-1:].to(dtype)
    lens, starts = torch.tensor([300], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    alone = paged_attention(last, *codes, batch.tables[2:3], lens, starts, scale=0.1)
    assert torch.equal(alone, together[2][-1:])


@KINDS
def test_what_is_no_number_stays_in_its_sequence_and_is_seen_there(kind: str, dtype: torch.dtype) -> None:
    batch, rows = Batch([(40, 1), (50, 1), (20, 1)], SHAPES[0]), [0, 1, 2]
    batch.numbers[0][batch.tables[1, 1], 3, 2, 5] = torch.nan
    batch.numbers[1][batch.tables[2, 0], 3, 2, 5] = torch.inf
    # Behind the first sequence's end, in its last tile.
    batch.numbers[1][batch.tables[0, 2], 9] = torch.nan
    found = paged_attention(
        batch.queries(rows, dtype), *_filled(kind, batch.numbers), *batch.arguments(rows), scale=0.1
    )
    assert found.isfinite().flatten(1).all(1).tolist() == [True, False, False]


@KINDS
def test_blocks_are_whole_when_they_are_copied_and_swapped(kind: str) -> None:
    cache = torch.randint(-128, 128, (2, 2, 8, 16, 3, 66), dtype=torch.int8).view(kv_codes.DTYPES[kind])
    host = torch.zeros(2, 2, 4, 16, 3, 66, dtype=cache.dtype)
    before = cache.clone()
    copy_blocks(cache, [(5, 0), (0, 1)])
    swap_blocks(cache, host, [(7, 2)])
    assert torch.equal(cache[:, :, 1], before[:, :, 5])
    assert torch.equal(host[:, :, 2], before[:, :, 7])


@KINDS
@pytest.mark.parametrize("block_size", [16, 32])
def test_both_layouts_hold_the_same_blocks(kind: str, block_size: int) -> None:
    plain = [
        torch.randint(-128, 128, (5, block_size, 3, 18), dtype=torch.int8).view(kv_codes.DTYPES[kind]) for _ in "kv"
    ]
    tiled = kv_codes.in_tiles(*plain)
    for before, after, found in zip(plain, kv_codes.in_plain(*tiled), tiled, strict=True):
        assert torch.equal(before, after)
        assert torch.equal(found[2].flatten().sort().values, before[2].flatten().sort().values)
