"""Whether an output has begun to say the same again and again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol.step import RepetitionLimit


def repeats(token_ids: Sequence[int], num_prompt_tokens: int, limit: RepetitionLimit) -> bool:
    """Whether the output's last tokens are one pattern, `min_count` times or more. The prompt does not count."""
    num_output = len(token_ids) - num_prompt_tokens
    last = token_ids[-1] if num_output else None
    for size in range(limit.min_pattern_tokens, limit.max_pattern_tokens + 1):
        span = size * limit.min_count
        if span > num_output:
            return False
        # The first comparison settles nearly all sizes without a copy.
        if token_ids[-1 - size] == last and token_ids[-span:-size] == token_ids[size - span :]:
            return True
    return False
