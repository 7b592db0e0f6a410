"""Draws one token per row of logits: penalties, bias, temperature, min-p, top-k, top-p, then a counter-based draw.

Each row's result is a function of that row's logits and parameters alone. Filters only hide tokens and neutral values
change no bit, so a row without top-p draws the same token beside a row with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kernels.cpu import sampling as on_cpu
from kernels.token_mask import TokenMask, hide_others
from kernels.uniform import uniform

NEG_INF = -math.inf


@dataclass(slots=True)
class SampleRow:
    """How one row is drawn. `position` counts the tokens that were drawn before for this request."""

    temperature: float = 1.0  # 0: the most likely token, the lowest id among equals
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    position: int = 0
    output_counts: Mapping[int, int] = field(default_factory=dict)  # read by the presence and frequency penalties
    seen: Iterable[int] = ()  # prompt and output, distinct; read by the repetition penalty
    logit_bias: Sequence[tuple[int, float]] = ()
    banned: Sequence[int] = ()  # ids that must not be drawn now: end of text before `min_tokens`
    allowed: TokenMask | None = None  # what a grammar lets be drawn; None: every token
    num_logprobs: int | None = None  # None: none; 0: the drawn token's only


@dataclass(frozen=True, slots=True)
class Drawn:
    """A row's token, or None when its logits are not finite. `top` is (id, log probability), most likely first."""

    token_id: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@torch.inference_mode()
def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[Drawn]:
    """One `Drawn` per row. Log probabilities are the model's own: before penalties, bias, temperature and filters.

    Shapes: logits: [num_rows, vocab], any float type; not changed.
    """
    if logits.is_cuda:
        from kernels.gpu import sampling as on_gpu

        return on_gpu.sample(logits, rows)
    raw = logits.float()
    shaped = hide_others(_shape(raw, rows), [row.allowed for row in rows], keeps=raw)
    numbers = uniform([row.seed for row in rows], [row.position for row in rows])
    tokens = on_cpu.draw(raw, shaped, rows, numbers)
    drawn = [Drawn(None if token == on_cpu.NO_TOKEN else token) for token in tokens]
    asked = [i for i, row in enumerate(rows) if row.num_logprobs is not None and drawn[i].token_id is not None]
    for i in asked:
        drawn[i] = _with_logprobs(raw[i], tokens[i], rows[i].num_logprobs or 0)
    return drawn


def _shape(raw: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Logits after penalties, bias and bans; the tensor itself when no row has any."""
    changed = [i for i, row in enumerate(rows) if _changes_logits(row)]
    if not changed:
        return raw
    shaped = raw.clone()
    for i in changed:
        _shape_row(shaped[i].numpy(), rows[i])
    return shaped


def _changes_logits(row: SampleRow) -> bool:
    has_penalty = row.repetition_penalty != 1 or bool(row.frequency_penalty or row.presence_penalty)
    return has_penalty or bool(row.logit_bias or row.banned)


def _shape_row(logits: np.ndarray, row: SampleRow) -> None:
    """Changes one row's logits, [vocab], in place. Ids past the vocabulary are left out."""
    vocab = len(logits)
    if row.repetition_penalty != 1:
        seen = np.fromiter(row.seen, np.int64)
        seen, penalty = seen[seen < vocab], np.float32(row.repetition_penalty)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    if row.frequency_penalty or row.presence_penalty:
        counts = row.output_counts
        ids, times = np.fromiter(counts, np.int64), np.fromiter(counts.values(), np.float64)
        kept = ids < vocab
        logits[ids[kept]] -= (row.frequency_penalty * times[kept] + row.presence_penalty).astype(np.float32)
    for token, bias in dict(row.logit_bias).items():  # a token named twice counts once, the last time
        if 0 <= token < vocab:
            logits[token] += np.float32(bias)
    logits[[token for token in row.banned if 0 <= token < vocab]] = NEG_INF


def _with_logprobs(raw: Tensor, token: int, count: int) -> Drawn:
    logprobs = torch.log_softmax(raw, -1)
    top: tuple[tuple[int, float], ...] = ()
    if count:
        values, ids = logprobs.topk(min(count, raw.shape[0]))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return Drawn(token, float(logprobs[token]), top)
