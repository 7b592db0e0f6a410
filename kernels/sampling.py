"""Draws one token per row of logits: penalties, bias, temperature, min-p, top-k, top-p, then a counter-based draw.

Each row's result is a function of that row's logits and parameters alone. Filters only hide tokens and neutral values
change no bit, so a row without top-p draws the same token beside a row with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    shaped = raw
    for at, value, kind in _changes(rows, raw):
        if shaped is raw:
            shaped = raw.clone()
        old = shaped[at]
        if kind == "repetition":
            shaped[at] = torch.where(old > 0, old / value, old * value)
        else:
            shaped[at] = old - value if kind == "presence" else old + value
    return shaped


def _changes(rows: Sequence[SampleRow], raw: Tensor) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor, str]]:
    """What is done to which logits, in this order; each logit at most once in each."""
    seen = [(i, _ids(row.seen), row.repetition_penalty) for i, row in enumerate(rows) if row.repetition_penalty != 1]
    present = [
        (i, _ids(row.output_counts), row.frequency_penalty * _values(row.output_counts) + row.presence_penalty)
        for i, row in enumerate(rows)
        if row.frequency_penalty or row.presence_penalty
    ]
    # A token named twice counts once, the last time.
    biased = [(i, dict(row.logit_bias)) for i, row in enumerate(rows) if row.logit_bias]
    banned = [(i, _ids(set(row.banned)), NEG_INF) for i, row in enumerate(rows) if row.banned]
    kinds = {
        "repetition": seen,
        "presence": present,
        "bias": [(i, _ids(bias), _values(bias)) for i, bias in biased],
        "ban": banned,
    }
    for kind, entries in kinds.items():
        row_ids = [np.full(len(ids), i) for i, ids, _ in entries]
        values = [np.broadcast_to(value, ids.shape) for _, ids, value in entries]
        if not row_ids:
            continue
        row, token, value = (np.concatenate(parts) for parts in (row_ids, [ids for _, ids, _ in entries], values))
        # Ids past the vocabulary are left out: clients may name any number in logit_bias.
        kept = (token >= 0) & (token < raw.shape[1])
        if kept.any():
            at, to = (row[kept], token[kept]), torch.from_numpy(value[kept]).to(raw.device, raw.dtype)
            yield (torch.from_numpy(at[0]).to(raw.device), torch.from_numpy(at[1]).to(raw.device)), to, kind


def _ids(tokens: Iterable[int]) -> np.ndarray:
    return np.fromiter(tokens, dtype=np.int64)


def _values(entries: Mapping[int, float]) -> np.ndarray:
    return np.fromiter(entries.values(), dtype=np.float64)


def _with_logprobs(raw: Tensor, token: int, count: int) -> Drawn:
    logprobs = torch.log_softmax(raw, -1)
    top: tuple[tuple[int, float], ...] = ()
    if count:
        values, ids = logprobs.topk(min(count, raw.shape[0]))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return Drawn(token, float(logprobs[token]), top)
