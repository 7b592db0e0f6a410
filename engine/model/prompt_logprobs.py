"""Log probabilities of prompt tokens, from the hidden states that computing their KV leaves behind.

Logits of a whole prompt chunk would be the largest tensor of all, so they are made and read a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.sequence import Sequence as SequenceState
from engine.protocol.step import Scheduled, TokenLogprobs, scored_positions

ROWS = 64  # with a vocabulary of 150,000: 40 MB of logits


def score_prompts(
    scheduled: Sequence[Scheduled],
    states: Mapping[int, SequenceState],
    batch: Batch,
    logits_of: Callable[[Tensor], Tensor],
) -> tuple[dict[str, tuple[TokenLogprobs, ...]], list[str]]:
    """By sequence id what was asked of its prompt in this step, and the ids whose logits are NaN.

    `logits_of` gives [rows, vocab] for rows of the batch; they are the model's own, as those of drawn tokens are.
    """
    found: dict[str, tuple[TokenLogprobs, ...]] = {}
    non_finite: list[str] = []
    for s, first_row in zip(scheduled, batch.query_starts.tolist(), strict=False):
        state = states[s.seq_id]
        wanted = state.sampling.num_prompt_logprobs
        if wanted is None:
            continue
        positions = scored_positions(s, state.num_prompt_tokens)
        entries: list[TokenLogprobs] = []
        for at in range(0, len(positions), ROWS):
            block = positions[at : at + ROWS]
            rows = torch.arange(len(block), device=batch.sample_rows.device) + first_row + block.start - s.start
            entries += _score(logits_of(rows), state.token_ids[block.start + 1 : block.stop + 1], wanted)
        found[s.seq_id] = tuple(entries)
        if any(entry.chosen != entry.chosen for entry in entries):
            non_finite.append(s.seq_id)
    return found, non_finite


def _score(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    logprobs = torch.log_softmax(logits.float(), -1)
    index = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    own = logprobs.gather(1, index[:, None])
    chosen, ranks = own[:, 0].tolist(), ((logprobs > own).sum(1) + 1).tolist()
    if not num_top:
        return [TokenLogprobs(logprob, rank=rank) for logprob, rank in zip(chosen, ranks, strict=True)]
    values, ids = logprobs.topk(min(num_top, logprobs.shape[1]))
    tops = zip(ids.tolist(), values.tolist(), strict=True)
    found = zip(chosen, tops, ranks, strict=True)
    return [TokenLogprobs(logprob, tuple(zip(*top, strict=True)), rank) for logprob, top, rank in found]
