"""What a sampler is told of a row of logits, and what it says: shared by the samplers of CPU and GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.token_mask import TokenMask


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
    logprob_ids: Sequence[int] = ()  # told of in place of the `num_logprobs` most likely ones


LIKELIEST = SampleRow(temperature=0.0)  # of all that ask for nothing more; not to be changed


@dataclass(frozen=True, slots=True)
class Drawn:
    """A row's token, or None when its logits are not finite. `top` is (id, log probability), most likely first."""

    token_id: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def all_drawn(tokens: Sequence[int | None], raw: Tensor, rows: Sequence[SampleRow]) -> list[Drawn]:
    """Each row's token, with log probabilities of the model's own logits where the row asks for any.

    Shapes: raw: [num_rows, vocab], float32. Bytes moved: 12 x vocab for each row that asks.
    """
    drawn = [Drawn(token) for token in tokens]
    for i, row in enumerate(rows):
        if row.num_logprobs is not None and (token := tokens[i]) is not None:
            drawn[i] = _with_logprobs(token, raw[i], row.num_logprobs, row.logprob_ids)
    return drawn


def _with_logprobs(token: int, raw: Tensor, num_top: int, wanted_ids: Sequence[int]) -> Drawn:
    logprobs = torch.log_softmax(raw, -1)
    top: tuple[tuple[int, float], ...] = ()
    if wanted_ids:
        ids_here = [token_id for token_id in wanted_ids if 0 <= token_id < raw.shape[0]]
        top = tuple(zip(ids_here, logprobs[ids_here].tolist(), strict=True))
    elif num_top:
        values, ids = logprobs.topk(min(num_top, raw.shape[0]))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return Drawn(token, float(logprobs[token]), top)
