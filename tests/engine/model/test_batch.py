"""A plan as tensors: a step of single tokens, which is made in a shorter way, is what it is in any step."""

from __future__ import annotations

import numpy as np
import torch

from engine.model.batch import make_batch
from engine.model.sequence import Sequence
from engine.protocol.step import NewSequence, SamplingParams, Scheduled
from kernels.cpu.paged_attention import plan_attention

BLOCK_SIZE = 16
LENGTHS = {"a/0": 40, "b/0": 1, "c/0": 700, "d/0": 17}


def _states() -> dict[str, Sequence]:
    tokens = {seq_id: tuple(range(length)) for seq_id, length in LENGTHS.items()}
    return {i: Sequence(NewSequence(i, own, len(own), SamplingParams(max_tokens=5))) for i, own in tokens.items()}


def _last(seq_id: str, first_block: int, *, samples: bool = True) -> Scheduled:
    """The last token of a sequence."""
    start = LENGTHS[seq_id] - 1
    blocks = tuple(range(first_block, first_block + start // BLOCK_SIZE + 1))
    return Scheduled(seq_id, start, 1, blocks, samples)


def test_single_tokens_are_the_same_in_a_step_of_their_own_and_beside_a_chunk() -> None:
    rows = [_last("a/0", 3), _last("b/0", 90), _last("c/0", 10, samples=False)]
    alone = make_batch(rows, _states(), block_size=BLOCK_SIZE)  # type: ignore[arg-type]
    chunk = Scheduled("d/0", 0, 17, (70, 71), samples=True)
    beside = make_batch([*rows, chunk], _states(), block_size=BLOCK_SIZE)  # type: ignore[arg-type]
    for name in ("token_ids", "positions", "slots", "seq_lens"):
        own, other = getattr(alone, name), getattr(beside, name)
        assert own.dtype == other.dtype, name
        assert torch.equal(own, other[:3]), name
    assert alone.block_tables.dtype == beside.block_tables.dtype
    assert torch.equal(alone.block_tables, beside.block_tables[:3])
    assert alone.query_starts.tolist() == [0, 1, 2, 3] == beside.query_starts[:4].tolist()
    assert alone.sample_rows.tolist() == [0, 1]
    assert alone.sample_rows.dtype == torch.int64


def test_attention_takes_the_longest_of_single_queries_first() -> None:
    rows = [_last(seq_id, 0) for seq_id in LENGTHS]
    batch = make_batch(rows, _states(), block_size=BLOCK_SIZE)  # type: ignore[arg-type]
    tensors = (batch.block_tables, batch.seq_lens, batch.query_starts)
    plan = plan_attention(*tensors, num_heads=6, num_kv_heads=2, sliding_window=None)
    wanted = [[seq, head, 0, 3] for seq in (2, 0, 3, 1) for head in (0, 1)]
    assert np.array_equal(plan.arrays.items, wanted)
    assert plan.num_items == 8
    assert plan.arrays.max_rows == 3
