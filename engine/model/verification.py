"""Which draws of a row with proposals count: those whose way there was drawn as it was proposed.

The token for each position is drawn as it is without speculation: by the random number of its seed and position, from
logits that saw the same tokens before it. So the first draw always counts, the second if the first is what was proposed
there, and so on: the output is, token for token, that of drawing one by one.

Rejection sampling (Leviathan et al. 2023, arXiv:2211.17192) keeps the distribution. A proposal that is certain, as
ours are, it accepts with the model's own probability p of that token, and draws from p without the token else. To draw
from p and to look whether the token came has the same outcome, and keeps each seed's tokens besides. Proposals that are
drawn from a distribution of their own would need the general form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.model.sequence import logprobs_of
from engine.protocol.step import TokenLogprobs
from kernels.sample_row import Drawn


class Accepted(NamedTuple):
    """What is said of a row. Without a token its logits were not finite."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]  # one for each token, or none if none was asked for


def accept(draft: Sequence[int], drawn: Sequence[Drawn]) -> Accepted:
    """`drawn`: from the last known position and from each proposal's, so one more than the draft has.

    A draw from logits that are not finite ends what counts: as the row's first one it is met again by the next step.
    """
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    for position, draw in enumerate(drawn):
        if draw.token_id is None:
            break
        token_ids.append(draw.token_id)
        if (found := logprobs_of(draw)) is not None:
            logprobs.append(found)
        if position == len(draft) or draft[position] != draw.token_id:
            break
    return Accepted(tuple(token_ids), tuple(logprobs))
