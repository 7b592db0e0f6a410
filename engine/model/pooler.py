"""One vector for each text whose hidden states were all computed: the last token's state, the mean, or class scores.

A mean is added up token by token in float64, so it has the same bits however the text was cut into steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from engine.model.batch import Batch
from engine.model.sequence import Sequence as SequenceState
from engine.protocol.step import Scheduled


def pool(
    scheduled: Sequence[Scheduled],
    states: Mapping[str, SequenceState],
    batch: Batch,
    normed: Tensor,
    classes: Tensor | None,
) -> tuple[dict[str, bytes], list[str]]:
    """By sequence id the float32 vector of each text that ends in this step, and the ids whose states are NaN.

    Shapes: normed: [num_tokens, hidden], behind the last normalisation. classes: [num_labels, hidden]; with it the
    vectors are each class's score.
    """
    found: dict[str, bytes] = {}
    non_finite: list[str] = []
    for s, first in zip(scheduled, batch.query_starts.tolist(), strict=False):
        state = states[s.seq_id]
        kind = state.sampling.pooling
        if kind is None:
            continue
        is_last = s.start + s.num_tokens == state.num_prompt_tokens
        if kind == "mean":
            rows = normed[first : first + s.num_tokens].double().cpu().numpy()
            state.add_hidden(rows)
            vector = state.hidden_sum / state.num_prompt_tokens
        elif is_last:
            vector = normed[first + s.num_tokens - 1].double().cpu().numpy()
        if not is_last:
            continue
        if classes is not None:
            vector = classes.double().cpu().numpy() @ vector
        pooled = vector.astype("<f4")
        if np.isfinite(pooled).all():
            found[s.seq_id] = pooled.tobytes()
        else:
            non_finite.append(s.seq_id)
    return found, non_finite
