"""Draws one token per row of logits: penalties, bias, temperature, min-p, top-k, top-p, then a counter-based draw.

Each row's result is a function of that row's logits and parameters alone. Filters only hide tokens and neutral values
change no bit, so a row without top-p draws the same token beside a row with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

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
    finite = torch.isfinite(raw.amax(-1) - raw.amin(-1)).tolist()
    shaped = hide_others(_shape(raw, rows), [row.allowed for row in rows], keeps=raw)
    tokens = shaped.argmax(-1).tolist()
    random = [i for i, row in enumerate(rows) if row.temperature > 0 and finite[i]]
    if random:
        picked = shaped if len(random) == len(rows) else shaped[random]
        for i, token in zip(random, _draw(picked, [rows[i] for i in random]), strict=True):
            tokens[i] = token
    drawn = [Drawn(token if ok else None) for token, ok in zip(tokens, finite, strict=True)]
    asked = [i for i, row in enumerate(rows) if row.num_logprobs is not None and finite[i]]
    for i in asked:
        drawn[i] = _with_logprobs(raw[i], tokens[i], rows[i].num_logprobs or 0)
    return drawn


def _shape(raw: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Logits after penalties, bias and bans; the tensor itself when no row has any."""
    seen = _entries(
        (i, t, row.repetition_penalty) for i, row in enumerate(rows) if row.repetition_penalty != 1 for t in row.seen
    )
    minus = _entries(
        (i, token, row.frequency_penalty * count + row.presence_penalty)
        for i, row in enumerate(rows)
        if row.frequency_penalty or row.presence_penalty
        for token, count in row.output_counts.items()
    )
    plus = _entries((i, token, bias) for i, row in enumerate(rows) for token, bias in row.logit_bias)
    banned = _entries((i, token, NEG_INF) for i, row in enumerate(rows) for token in row.banned)
    if not (seen or minus or plus or banned):
        return raw
    shaped = raw.clone()
    if seen:
        at, penalty = _index(seen, raw)
        values = shaped[at]
        shaped[at] = torch.where(values > 0, values / penalty, values * penalty)
    if minus:
        at, penalty = _index(minus, raw)
        shaped[at] -= penalty
    for entries in (plus, banned):
        if entries:
            at, bias = _index(entries, raw)
            shaped[at] += bias
    return shaped


def _entries(found: Iterable[tuple[int, int, float]]) -> dict[tuple[int, int], float]:
    """By (row, token): a token named twice counts once, the last time."""
    return {(row, token): value for row, token, value in found}


def _index(entries: Mapping[tuple[int, int], float], raw: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    # Ids past the vocabulary are left out: clients may name any number in logit_bias.
    kept = {at: value for at, value in entries.items() if 0 <= at[1] < raw.shape[1]}
    row, token = (torch.tensor([at[i] for at in kept], dtype=torch.int64, device=raw.device) for i in (0, 1))
    return (row, token), torch.tensor(list(kept.values()), dtype=raw.dtype, device=raw.device)


def _draw(shaped: Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """Inverse of the cumulative distribution, in order of token ids, at each row's uniform number."""
    heat = torch.tensor([[max(row.temperature, 1e-5)] for row in rows], dtype=shaped.dtype, device=shaped.device)
    scaled = shaped / heat
    if any(row.min_p > 0 for row in rows):
        # p >= min_p x largest p, said in logits: no softmax needed.
        slack = [[math.log(row.min_p) if row.min_p > 0 else NEG_INF] for row in rows]
        floor = scaled.amax(-1, keepdim=True) + torch.tensor(slack, dtype=scaled.dtype, device=scaled.device)
        scaled.masked_fill_(scaled < floor, NEG_INF)
    cut = [i for i, row in enumerate(rows) if 0 < row.top_k < shaped.shape[1] or row.top_p < 1]
    if cut:
        scaled[cut] = _keep_likeliest(scaled[cut], [rows[i] for i in cut])
    cumulative = torch.softmax(scaled, -1).double().cumsum(-1)
    numbers = uniform([row.seed for row in rows], [row.position for row in rows])
    # The last sum is 1 but for rounding; measured by it, a number below 1 always falls on a token that is not hidden.
    at = torch.from_numpy(numbers).to(shaped.device)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, at, right=True).squeeze(1).tolist()


def _keep_likeliest(scaled: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Hides all but the `top_k` likeliest tokens, then all but the fewest whose probability reaches `top_p`."""
    vocab = scaled.shape[1]
    keep = [row.top_k if 0 < row.top_k < vocab else vocab for row in rows]
    values, order = torch.sort(scaled, dim=-1, descending=True, stable=True)
    ranks = torch.arange(vocab, device=scaled.device)
    values = values.masked_fill(ranks >= torch.tensor(keep, device=scaled.device)[:, None], NEG_INF)
    limit = torch.tensor(
        [[row.top_p if row.top_p < 1 else math.inf] for row in rows], dtype=torch.float64, device=scaled.device
    )
    shares = torch.softmax(values, -1).double()
    before = shares.cumsum(-1) - shares
    # The likeliest token stays whatever top_p is.
    values = values.masked_fill((before >= limit) & (ranks > 0), NEG_INF)
    return torch.full_like(scaled, NEG_INF).scatter_(1, order, values)


def _with_logprobs(raw: Tensor, token: int, count: int) -> Drawn:
    logprobs = torch.log_softmax(raw, -1)
    top: tuple[tuple[int, float], ...] = ()
    if count:
        values, ids = logprobs.topk(min(count, raw.shape[0]))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return Drawn(token, float(logprobs[token]), top)
