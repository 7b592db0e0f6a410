"""Where two prompts first differ, in tokens: what they share in a prefix cache. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fleetctl.gateway.prompts.token_ratio import ESTIMATED
from fleetctl.gateway.prompts.volatile_fields import VolatileKind, field_at

CONTEXT_CHARS = 48


class Divergence(NamedTuple):
    """Two prompts, side by side. `tokens`: equal from the start; None of `old_context`: they are equal."""

    tokens: int
    old_tokens: int
    new_tokens: int
    chars: int  # equal from the start, in the text
    kind: VolatileKind | None = None
    before: str = ""
    old_context: str | None = None
    new_context: str | None = None


def shared_chars(old: str, new: str) -> int:
    """How many characters are equal from the start."""
    low, high = 0, min(len(old), len(new))
    while low < high:  # slices are compared faster than characters are walked
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shared_tokens(old: Sequence[int], new: Sequence[int]) -> int:
    """How many token ids are equal from the start."""
    least = min(len(old), len(new))
    return next((i for i in range(least) if old[i] != new[i]), least)


def diverge(old: str, new: str, *, tokens: tuple[Sequence[int], Sequence[int]] | None = None) -> Divergence:
    """Compare two prompts. `tokens`: ids of both by the model's own tokenizer; without them characters are counted."""
    chars = shared_chars(old, new)
    if tokens is None:
        before, after = ESTIMATED.tokens(len(old)), ESTIMATED.tokens(len(new))
        counts = (before if old == new else int(chars / ESTIMATED.chars_per_token), before, after)
    else:
        counts = (shared_tokens(*tokens), len(tokens[0]), len(tokens[1]))
    if old == new:
        return Divergence(*counts, chars)
    kinds = [field_at(text, chars) for text in (new, old) if chars < len(text)]
    return Divergence(
        *counts,
        chars,
        next((kind for kind in kinds if kind is not VolatileKind.TEXT), VolatileKind.TEXT),
        old[max(0, chars - CONTEXT_CHARS) : chars],
        old[chars : chars + CONTEXT_CHARS],
        new[chars : chars + CONTEXT_CHARS],
    )
