"""The tensors of one step: what the decoder reads besides its weights and the cache, and how a plan becomes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.model.sequence import Sequence as SequenceState
from engine.protocol.step import Scheduled
from kernels.one_copy import in_one_copy


@dataclass(frozen=True, slots=True)
class Batch:
    """A ragged batch of sequences' next tokens, in the order of the plan."""

    token_ids: Tensor  # [num_tokens], int64
    positions: Tensor  # [num_tokens], int64
    slots: Tensor  # [num_tokens], int64: block x block_size + offset, where each token's KV goes
    block_tables: Tensor  # [num_seqs, max_blocks], int32, on the CPU
    seq_lens: Tensor  # [num_seqs], int32, on the CPU: tokens with KV after this step
    query_starts: Tensor  # [num_seqs + 1], int32, on the CPU
    # [num_samples], int64: rows whose logits are asked for, each sequence's last ones (more than one with a draft)
    sample_rows: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same with the first three and the last on the device: in one copy, which is not waited for."""
        parts = (self.token_ids, self.positions, self.slots, self.sample_rows)
        if device.type != "cuda" or self.token_ids.device.type == "cuda":
            return self
        token_ids, positions, slots, sample_rows = in_one_copy(parts, device)
        return replace(self, token_ids=token_ids, positions=positions, slots=slots, sample_rows=sample_rows)


def make_batch(
    scheduled: Sequence[Scheduled],
    states: Mapping[int, SequenceState],
    *,
    block_size: int,
) -> Batch:
    """The batch of a plan's sequences, which must have been checked (`why_not`), on the CPU."""
    if all(s.num_tokens == 1 for s in scheduled):
        return _decoding_batch(scheduled, states, block_size)
    counts = np.array([s.num_tokens for s in scheduled], dtype=np.int32)
    firsts = np.array([s.start for s in scheduled], dtype=np.int64)
    starts = np.zeros(len(scheduled) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    num_tokens = int(starts[-1])
    token_ids = np.empty(num_tokens, dtype=np.int64)
    tables = _block_tables(scheduled)
    for i, s in enumerate(scheduled):
        known = states[s.seq_id].token_ids[s.start : s.start + s.num_known_tokens]
        token_ids[starts[i] : starts[i + 1]] = [*known, *s.draft] if s.draft else known
    positions = np.arange(num_tokens) + np.repeat(firsts - starts[:-1], counts)
    # Not `tables[owner, ...]`: where memory is lacking numpy may raise a SystemError there, which says nothing.
    rows = np.repeat(np.arange(len(scheduled)) * tables.shape[1], counts)
    blocks = tables.ravel().take(rows + positions // block_size)
    slots = blocks.astype(np.int64) * block_size + positions % block_size
    sampled = [range(starts[i + 1] - 1 - len(s.draft), starts[i + 1]) for i, s in enumerate(scheduled) if s.samples]
    samples = np.array([row for rows in sampled for row in rows], dtype=np.int64)
    return Batch(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        block_tables=torch.from_numpy(tables),
        seq_lens=torch.from_numpy((firsts + counts).astype(np.int32)),
        query_starts=torch.from_numpy(starts),
        sample_rows=torch.from_numpy(samples),
    )


def _decoding_batch(scheduled: Sequence[Scheduled], states: Mapping[int, SequenceState], block_size: int) -> Batch:
    """Of one token each: what `make_batch` makes, in a third of the calls: a step waits for them."""
    at = [s.start for s in scheduled]
    token_ids = [states[s.seq_id].token_ids[s.start] for s in scheduled]
    slots = [s.block_ids[s.start // block_size] * block_size + s.start % block_size for s in scheduled]
    samples = [i for i, s in enumerate(scheduled) if s.samples]
    return Batch(
        token_ids=torch.from_numpy(np.array(token_ids, dtype=np.int64)),
        positions=torch.from_numpy(np.array(at, dtype=np.int64)),
        slots=torch.from_numpy(np.array(slots, dtype=np.int64)),
        block_tables=torch.from_numpy(_block_tables(scheduled)),
        seq_lens=torch.from_numpy(np.array([start + 1 for start in at], dtype=np.int32)),
        query_starts=torch.from_numpy(np.arange(len(at) + 1, dtype=np.int32)),
        sample_rows=torch.from_numpy(np.array(samples, dtype=np.int64)),
    )


def _block_tables(scheduled: Sequence[Scheduled]) -> np.ndarray:
    tables = np.zeros((len(scheduled), max(len(s.block_ids) for s in scheduled)), dtype=np.int32)
    for own, s in zip(tables, scheduled, strict=True):
        own[: len(s.block_ids)] = s.block_ids
    return tables


def why_not(
    s: Scheduled, state: SequenceState | None, *, num_blocks: int, block_size: int, vocab_size: int, max_len: int
) -> str | None:
    """Why this sequence can't be computed as scheduled, or None when it can."""
    end, known_end = s.start + s.num_tokens, s.start + s.num_known_tokens
    if state is None:
        return "the runner does not know this sequence"
    if s.num_known_tokens < 1 or s.start < 0 or known_end > len(state.token_ids):
        return f"positions {s.start} to {known_end} were scheduled of {len(state.token_ids)} tokens"
    if s.samples and known_end != len(state.token_ids):
        return f"a token was asked for at position {known_end}, before the last of {len(state.token_ids)} tokens"
    if s.draft and not s.samples:
        return "tokens were proposed, but none is asked for"
    if end > max_len:
        return f"{end} tokens are more than the model's {max_len} positions"
    if len(s.block_ids) * block_size < end:
        return f"{len(s.block_ids)} blocks of {block_size} are too few for {end} tokens"
    if not 0 <= min(s.block_ids) <= max(s.block_ids) < num_blocks:
        return f"a block id is not below {num_blocks}"
    tokens = [*state.token_ids[s.start : known_end], *s.draft]
    if not 0 <= min(tokens) <= max(tokens) < vocab_size:
        return f"a token id is not below {vocab_size}"
    return None
