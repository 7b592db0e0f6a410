from __future__ import annotations

import pytest
import torch

from kernels.cpu.paged_attention import GROUP_ROWS, KEY_BLOCK
from kernels.paged_attention import paged_attention, plan_attention

HEAD_DIM, BLOCK_SIZE = 16, 8


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Sequences:
    """Random keys, values and queries of sequences, and a cache that holds them in scattered blocks among NaN."""

    def __init__(self, lengths: list[int], heads: int, kv_heads: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.heads, self.kv_heads = heads, kv_heads
        self.q = [torch.randn((n, heads, HEAD_DIM), generator=generator) for n in lengths]
        self.k = [torch.randn((n, kv_heads, HEAD_DIM), generator=generator) for n in lengths]
        self.v = [torch.randn((n, kv_heads, HEAD_DIM), generator=generator) for n in lengths]
        need = [-(-n // BLOCK_SIZE) for n in lengths]
        order = torch.randperm(sum(need) + 7, generator=generator).tolist()
        shape = (len(order), BLOCK_SIZE, kv_heads, HEAD_DIM)
        self.k_cache, self.v_cache = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
        self.blocks = [[order.pop() for _ in range(n)] for n in need]
        for keys, values, blocks in zip(self.k, self.v, self.blocks, strict=True):
            for at in range(len(keys)):
                self.k_cache[blocks[at // BLOCK_SIZE], at % BLOCK_SIZE] = keys[at]
                self.v_cache[blocks[at // BLOCK_SIZE], at % BLOCK_SIZE] = values[at]

    def attend(
        self, work: list[tuple[int, int, int]], window: int | None = None, *, planned: bool = True
    ) -> list[torch.Tensor]:
        """Results of each (sequence, first query, end), all in one call."""
        tables = torch.zeros((len(work), max(len(self.blocks[i]) for i, _, _ in work)), dtype=torch.int32)
        for row, (i, _, end) in enumerate(work):
            used = self.blocks[i][: -(-end // BLOCK_SIZE)]
            tables[row, : len(used)] = torch.tensor(used)
        counts = [end - first for _, first, end in work]
        lens = torch.tensor([end for _, _, end in work], dtype=torch.int32)
        starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        sizes = {"num_heads": self.heads, "num_kv_heads": self.kv_heads}
        plan = plan_attention(tables, lens, starts, **sizes, sliding_window=window) if planned else None
        out = paged_attention(
            torch.cat([self.q[i][first:end] for i, first, end in work]),
            self.k_cache,
            self.v_cache,
            tables,
            lens,
            starts,
            scale=HEAD_DIM**-0.5,
            sliding_window=window,
            plan=plan,
        )
        return list(out.split(counts))

    def reference(self, i: int, first: int, end: int, window: int | None = None) -> torch.Tensor:
        share = self.heads // self.kv_heads
        q = self.q[i][first:end].double().transpose(0, 1)
        k = self.k[i][:end].double().repeat_interleave(share, 1).transpose(0, 1)
        v = self.v[i][:end].double().repeat_interleave(share, 1).transpose(0, 1)
        at, keys = torch.arange(first, end)[:, None], torch.arange(end)
        hidden = (keys > at) if window is None else (keys > at) | (keys <= at - window)
        scores = (q @ k.transpose(1, 2) * HEAD_DIM**-0.5).masked_fill(hidden, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(0, 1).float()


SHAPES = [(4, 2), (4, 4), (8, 1), (7, 1), (6, 2), (40, 1)]
LENGTHS = [1, 5, 128, 129, 300, 77]
MIXED = [(0, 0, 1), (1, 4, 5), (2, 0, 128), (3, 128, 129), (4, 100, 290), (5, 70, 77), (4, 299, 300)]


@pytest.mark.parametrize(("heads", "kv_heads"), SHAPES)
@pytest.mark.parametrize("window", [None, 1, 20, 150])
def test_ragged_batch_equals_dense_attention(heads: int, kv_heads: int, window: int | None) -> None:
    sequences = Sequences(LENGTHS, heads, kv_heads)
    for work, got in zip(MIXED, sequences.attend(MIXED, window), strict=True):
        torch.testing.assert_close(got, sequences.reference(*work, window), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 200, 2 * KEY_BLOCK + 100])
def test_sequences_of_many_key_blocks_equal_dense_attention(window: int | None) -> None:
    length = 5 * KEY_BLOCK + 40
    sequences = Sequences([length], 2, 1)
    work = [(0, KEY_BLOCK - 30, KEY_BLOCK + 50), (0, length - 1, length), (0, length - GROUP_ROWS, length)]
    for one in work:
        [got] = sequences.attend([one], window)
        torch.testing.assert_close(got, sequences.reference(*one, window), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 100])
def test_bits_do_not_depend_on_chunks_or_neighbours(window: int | None) -> None:
    sequences = Sequences([600, 333, 40], 4, 2)
    [whole] = sequences.attend([(0, 0, 600)], window)
    for size in (1, 5, 16, 37, 64, 130, 599):
        for first in range(0, 600, size):
            end = min(first + size, 600)
            if first % 3 and size == 1:
                continue
            work = [(1, 332, 333), (0, first, end), (2, 3, 40)]
            assert torch.equal(sequences.attend(work, window)[1], whole[first:end]), (size, first)


@pytest.mark.parametrize("window", [None, 300])
def test_bits_do_not_depend_on_the_cut_of_a_long_prompt(window: int | None) -> None:
    length = GROUP_ROWS + 2 * KEY_BLOCK
    sequences = Sequences([length], 4, 2)
    [whole] = sequences.attend([(0, 0, length)], window)
    cuts = [(0, GROUP_ROWS // 2 + 1), (KEY_BLOCK - 1, KEY_BLOCK + 1), (length - 70, length), (length - 1, length)]
    for first, end in cuts:
        [got] = sequences.attend([(0, first, end)], window)
        assert torch.equal(got, whole[first:end])


def test_a_plan_made_ahead_gives_the_same_as_none() -> None:
    sequences = Sequences(LENGTHS, 4, 2)
    for own, ahead in zip(sequences.attend(MIXED, planned=False), sequences.attend(MIXED), strict=True):
        torch.testing.assert_close(own, ahead, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 70])
def test_a_step_of_many_sequences_gives_each_the_bits_that_it_has_alone(dtype: torch.dtype, window: int | None) -> None:
    lengths, kv_heads, head_dim, block_size = [1, 15, 16, 17, 255, 256, 257, 600], 2, 64, 16
    generator = torch.Generator().manual_seed(1)
    blocks = [-(-n // block_size) for n in lengths]
    caches = torch.randn((2, sum(blocks), block_size, kv_heads, head_dim), generator=generator).to(dtype)
    order = torch.randperm(sum(blocks), generator=generator).to(torch.int32).split(blocks)
    q = torch.randn((len(lengths), 2 * kv_heads, head_dim), generator=generator).to(dtype)

    def attended(chosen: list[int]) -> torch.Tensor:
        tables = torch.nn.utils.rnn.pad_sequence([order[i] for i in chosen], batch_first=True)
        lens = torch.tensor([lengths[i] for i in chosen], dtype=torch.int32)
        starts = torch.arange(len(chosen) + 1, dtype=torch.int32)
        return paged_attention(q[chosen], *caches, tables, lens, starts, scale=0.125, sliding_window=window)

    together = attended(list(range(len(lengths))))
    assert together.isfinite().all()
    for i in range(len(lengths)):
        assert torch.equal(together[i], attended([i])[0]), lengths[i]
