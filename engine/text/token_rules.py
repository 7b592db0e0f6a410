"""Which tokens a request itself forbids at each place of its output: allowed ids, bad words, a budget for thinking.

Like a grammar's state, all of it is a function of the parameters and of the tokens before, so it is the same in any
batch, after preemption and on another node. Free of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from engine.protocol.step import SamplingParams, ThinkingBudget
from engine.text.grammar_compiler import TokenMask


class _Thought(NamedTuple):
    """How much was thought, and whether that goes on."""

    is_open: bool
    num_tokens: int

    def after(self, token_ids: Iterable[int], budget: ThinkingBudget) -> _Thought:
        """Once these were said."""
        is_open, count = self
        for token_id in token_ids:
            if is_open:
                is_open, count = token_id != budget.end_id, count + (token_id != budget.end_id)
            else:
                is_open = token_id == budget.start_id
        return _Thought(is_open, count)


class TokenRules:
    """Of one sequence. `after` what was drawn, `mask` and `banned` say what may be drawn next."""

    __slots__ = ("_allowed", "_bad_words", "_longest", "_tail", "_thinking", "_thought", "_thought_end")

    def __init__(self, sampling: SamplingParams, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        self._allowed = mask_of(sampling.allowed_token_ids) if sampling.allowed_token_ids else None
        self._bad_words = [word for word in sampling.bad_words if word]
        self._longest = max(map(len, self._bad_words), default=1) - 1  # tokens before the last one
        self._tail = tuple(token_ids[num_prompt_tokens:][-self._longest :]) if self._longest else ()
        self._thinking = sampling.thinking
        if self._thinking is not None:
            self._thought_end = mask_of((self._thinking.end_id,))
            opened = _Thought(False, 0).after(token_ids[:num_prompt_tokens], self._thinking)
            # What the prompt holds of it was not thought here.
            self._thought = _Thought(opened.is_open, 0).after(token_ids[num_prompt_tokens:], self._thinking)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Takes drawn tokens in."""
        if self._longest:
            self._tail = (*self._tail, *token_ids)[-self._longest :]
        if self._thinking is not None:
            self._thought = self._thought.after(token_ids, self._thinking)

    def banned(self, ahead: Sequence[int] = ()) -> tuple[int, ...]:
        """Tokens that would end a bad word behind what was drawn and `ahead`."""
        tail = (*self._tail, *ahead)
        return tuple(word[-1] for word in self._bad_words if len(word) == 1 or tail[1 - len(word) :] == word[:-1])

    def mask(self, grammar: TokenMask | None, ahead: Sequence[int] = ()) -> TokenMask | None:
        """What may be drawn behind `ahead` of what the grammar allows, which wins; None: every token."""
        mask = grammar
        if self._allowed is not None:
            mask = _both(mask, self._allowed)
        if self._thinking is not None:
            is_open, num_tokens = self._thought.after(ahead, self._thinking)
            if is_open and num_tokens >= self._thinking.num_tokens:
                mask = _both(grammar, self._thought_end)
        return mask


def rules_of(sampling: SamplingParams, token_ids: Sequence[int], num_prompt_tokens: int) -> TokenRules | None:
    """None for a request that has none."""
    has_rules = sampling.allowed_token_ids or sampling.bad_words or sampling.thinking is not None
    return TokenRules(sampling, token_ids, num_prompt_tokens) if has_rules else None


def mask_of(token_ids: Sequence[int]) -> TokenMask:
    """A mask that ends with the largest of these."""
    bits = np.zeros((max(token_ids) // 32 + 1) * 32, dtype=np.uint8)
    bits[[token_id for token_id in token_ids if token_id >= 0]] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _both(mask: TokenMask | None, other: TokenMask) -> TokenMask:
    """What both allow; `mask` where that is nothing."""
    if mask is None:
        return other
    size = min(len(mask), len(other))
    joined: TokenMask = mask[:size] & other[:size]
    return joined if joined.any() else mask
