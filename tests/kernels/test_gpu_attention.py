"""The Triton paged attention against a plain formula, over ragged batches."""

from __future__ import annotations

import random

import pytest
import torch

from kernels.gpu.attention_plan import KEY_ALIGN, plan_attention, plan_on_host
from kernels.gpu.fixed_plan import decoding_room, mixed_room
from tests.fixtures.gpu_kernels import ON_DEVICES, TOLERANCE, Run, runner

pytest.importorskip("triton", reason="needs Triton")

BLOCK_SIZE = 8
# (tokens in the cache, queries): decoding short and in several parts, a verify of 3, chunks of one tile and of more.
WORK = [(1, 1), (37, 1), (1100, 1), (600, 3), (20, 20), (90, 71), (515, 9)]


@pytest.fixture(params=ON_DEVICES)
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


class Batch:
    """Sequences with random keys, values and queries, in scattered blocks among NaN."""

    def __init__(self, work: list[tuple[int, int]], heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype):
        self.work, self.share = work, heads // kv_heads
        self.k, self.v, self.q = [], [], []
        for length, queries in work:
            draw = torch.Generator().manual_seed(length * 1000 + queries)
            for into, shape in ((self.k, (length, kv_heads)), (self.v, (length, kv_heads)), (self.q, (queries, heads))):
                into.append(torch.randn((*shape, head_dim), generator=draw).to(dtype))
        need = [-(-length // BLOCK_SIZE) for length, _ in work]
        order = torch.randperm(sum(need) + 3, generator=torch.Generator().manual_seed(7)).tolist()
        shape = (len(order), BLOCK_SIZE, kv_heads, head_dim)
        self.k_cache, self.v_cache = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
        self.tables = torch.zeros((len(work), max(need)), dtype=torch.int32)
        for index, count in enumerate(need):
            blocks = [order.pop() for _ in range(count)]
            self.tables[index, :count] = torch.tensor(blocks)
            at = torch.arange(work[index][0])
            for cache, rows in ((self.k_cache, self.k[index]), (self.v_cache, self.v[index])):
                cache[torch.tensor(blocks)[at // BLOCK_SIZE], at % BLOCK_SIZE] = rows

    def attend(self, run: Run, window: int | None = None, padding: int = 0) -> list[torch.Tensor]:
        counts = [queries for _, queries in self.work]
        starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        lens = torch.tensor([length for length, _ in self.work], dtype=torch.int32)
        q = torch.cat([*self.q, self.q[0].new_ones((padding, *self.q[0].shape[1:]))])
        args = (q, self.k_cache, self.v_cache, self.tables, lens, starts)
        scale = q.shape[-1] ** -0.5
        out = run("kernels.gpu.paged_attention:paged_attention", *args, scale=scale, sliding_window=window)
        assert not out[len(q) - padding :].any()
        return list(out[: len(q) - padding].split(counts))

    def expected(self, index: int, window: int | None = None) -> torch.Tensor:
        length, queries = self.work[index]
        q = self.q[index].double().transpose(0, 1)
        k, v = (x[index].double().repeat_interleave(self.share, 1).transpose(0, 1) for x in (self.k, self.v))
        at, keys = torch.arange(length - queries, length)[:, None], torch.arange(length)
        hidden = (keys > at) if window is None else (keys > at) | (keys <= at - window)
        scores = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(0, 1)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    near = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), expected, atol=near, rtol=near)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype"),
    [
        (4, 2, 16, torch.float32),
        (7, 1, 24, torch.float32),
        (3, 3, 64, torch.float16),
        (8, 2, 32, torch.bfloat16),
    ],
    ids=str,
)
def test_gpu_attention_is_its_formula(run: Run, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    batch = Batch(WORK, heads, kv_heads, head_dim, dtype)
    for index, found in enumerate(batch.attend(run, padding=3)):
        assert_near(found, batch.expected(index))


@pytest.mark.parametrize("window", [1, 50, 530])
def test_gpu_attention_sees_its_window_only(run: Run, window: int) -> None:
    batch = Batch([(1100, 1), (30, 30), (700, 2), (170, 100)], 2, 1, 16, torch.float32)
    for index, found in enumerate(batch.attend(run, window)):
        assert_near(found, batch.expected(index, window))


def test_gpu_attention_merges_more_parts_than_it_reads_at_a_time(run: Run) -> None:
    batch = Batch([(8700, 1)], 1, 1, 16, torch.float32)
    batch.k[0][-1] = batch.q[0][0] * 1.5  # the largest score is in the last part
    at = torch.arange(8700)
    batch.k_cache[batch.tables[0, at // BLOCK_SIZE].long(), at % BLOCK_SIZE] = batch.k[0]
    assert_near(batch.attend(run)[0], batch.expected(0))


@pytest.mark.parametrize("window", [None, 1, 300, 1000])
def test_gpu_plan_covers_each_visible_key_once_and_few_others(window: int | None) -> None:
    lens, counts = [1, 37, 1100, 600, 20, 90, 515, 3000], [1, 1, 1, 3, 20, 71, 9, 200]
    starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    arrangement = (torch.zeros((8, 400), dtype=torch.int32), torch.tensor(lens, dtype=torch.int32), starts)
    plan = plan_attention(*arrangement, num_heads=8, num_kv_heads=2, sliding_window=window, device="cpu")
    reads = [[0] * length for length in lens]
    rows: dict[int, set[int]] = {}
    for group in plan.groups:
        for seq, row, queries, position, first, end, _, _ in group.items.tolist():
            assert first % KEY_ALIGN == 0
            assert queries * 4 <= group.rows
            assert row - starts[seq] == position - (lens[seq] - counts[seq])
            for query in range(row, row + queries):
                rows.setdefault(query, set()).update(range(first, end))
            lowest = 0 if window is None else max(position - window + 1, 0)
            assert lowest // KEY_ALIGN * KEY_ALIGN <= first < end <= position + queries
            reads[seq][first:end] = [n + 1 for n in reads[seq][first:end]]
    for seq, (length, count) in enumerate(zip(lens, counts, strict=True)):
        for query in range(count):
            position = length - count + query
            lowest = 0 if window is None else max(position - window + 1, 0)
            assert set(range(lowest, position + 1)) <= rows[int(starts[seq]) + query]
        if count * 4 <= 64:
            assert max(reads[seq]) == 1


def test_gpu_attention_of_many_heads_on_one_kv_head(run: Run) -> None:
    batch = Batch([(70, 1), (5, 3)], 40, 1, 16, torch.float32)
    for index, found in enumerate(batch.attend(run)):
        assert_near(found, batch.expected(index))


@pytest.mark.parametrize("alone", [2, 3, 5, 6], ids=["decode", "verify", "chunk", "short chunk"])
def test_gpu_attention_does_not_depend_on_the_batch(run: Run, alone: int) -> None:
    shape = (4, 2, 16, torch.float32)
    together = Batch(WORK, *shape).attend(run)[alone]
    assert torch.equal(Batch([WORK[alone]], *shape).attend(run)[0], together)


@pytest.mark.parametrize("window", [None, 600])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([(1100, 1), (1500, 1), (37, 1)], [(1100, 1)]),  # in parts, beside room for more sequences
        ([(900, 3), (40, 2)], [(520, 2), (3, 3)]),  # with tokens ahead
        ([(7, 1), (40, 1), (9, 1)], [(12, 1), (1, 1)]),
        (
            [(80, 71), (600, 1), (520, 9)],
            [(37, 1), (60, 20), (530, 9), (1100, 1)],
        ),  # chunks of prompts of both sizes of tiles
        ([(80, 71), (600, 1)], [(44, 44)]),  # no small tile
        ([(520, 9), (70, 50)], [(21, 1), (90, 70), (560, 16)]),  # a chunk's keys in parts
    ],
    ids=["parts", "drafts", "short", "mixed", "prompt", "tail of a prompt"],
)
def test_gpu_plan_with_room_gives_the_bits_of_the_batch_s_own(
    run: Run, before: list[tuple[int, int]], after: list[tuple[int, int]], window: int | None
) -> None:
    batch = Batch(after, 4, 2, 16, torch.float32)
    rows, size = sum(queries for _, queries in after), 8 if all(queries <= 3 for _, queries in after) else 96
    q = torch.cat([*batch.q, torch.full((size - rows, 4, 16), torch.nan)])
    first, second = (_arrangement(work, batch.tables) for work in (before, after))
    args = (q, batch.k_cache, batch.v_cache, first, second, size)
    found, own = run("tests.fixtures.gpu_plans:attend_both", *args, scale=0.25, sliding_window=window)
    assert torch.equal(found, own)
    for index, part in enumerate(found.split([queries for _, queries in after])):
        assert_near(part, batch.expected(index, window))


def _arrangement(work: list[tuple[int, int]], tables: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tables of the right size, by block 0 where a sequence is not in `tables`."""
    need = max(-(-length // BLOCK_SIZE) for length, _ in work)
    own = torch.zeros((len(work), need), dtype=torch.int32)
    rows, columns = (min(a, b) for a, b in zip(own.shape, tables.shape, strict=True))
    own[:rows, :columns] = tables[:rows, :columns]
    starts = torch.tensor([0, *(queries for _, queries in work)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return own, torch.tensor([length for length, _ in work], dtype=torch.int32), starts


def test_gpu_plan_of_decoding_has_no_room_for_chunks_of_prompts_or_two_sizes_of_tiles() -> None:
    tables = torch.zeros((2, 80), dtype=torch.int32)
    heads = {"num_heads": 4, "num_kv_heads": 2}
    for work, wanted in (([(9, 1), (600, 1)], True), ([(9, 1), (90, 20)], False), ([(200, 100)], False)):
        _, lens, starts = _arrangement(work, tables)
        plan = plan_on_host(tables[: len(work)], lens, starts, **heads)
        assert (decoding_room(plan, 4) is not None) == wanted, work


def test_gpu_plans_of_batches_with_as_many_tokens_share_one_room() -> None:
    draw, rooms = random.Random(2), set()
    tables = torch.zeros((32, 128), dtype=torch.int32)
    for _ in range(200):
        rows = draw.randrange(1, 31)
        chunks = [draw.randrange(20, 200) for _ in range(draw.randrange(1, 3))]
        work = [(draw.randrange(2, 1000), 1) for _ in range(rows)] + [(n + draw.randrange(1500), n) for n in chunks]
        _, lens, starts = _arrangement(work, tables)
        plan = plan_on_host(tables[: len(work)], lens, starts, num_heads=32, num_kv_heads=8)
        room = mixed_room(plan, 448)
        for group, own in zip(plan.groups, room.groups, strict=True):
            assert own is not None
            assert (len(group.items), len(group.merges), group.max_queries) <= (own.items, own.merges, own.queries)
        rooms.add(room)
    assert len(rooms) == 1
