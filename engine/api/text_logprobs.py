"""Log probabilities in the form of /v1/completions: parallel lists over the tokens of a text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from engine.node.generation_request import GenerationRequest
from engine.protocol.step import TokenLogprobs
from engine.text.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0  # JSON has no minus infinity

Scored = tuple[int, TokenLogprobs | None]  # a token; None: nothing comes before it, so it has no probability


class TokenTexts(NamedTuple):
    """How log probabilities name tokens."""

    tokenizer: Tokenizer
    by_id: bool = False  # vLLM's return_tokens_as_token_ids: two tokens may read the same
    shows_specials: bool = False

    @classmethod
    def of(cls, request: GenerationRequest, tokenizer: Tokenizer) -> TokenTexts:
        """As this request asks."""
        return cls(tokenizer, request.shows_token_ids, request.shows_special_tokens)

    def name(self, token_id: int) -> str:
        """Its text, or its id."""
        return f"token_id:{token_id}" if self.by_id else shown(self.tokenizer.piece(token_id))

    def bytes_of(self, token_id: int) -> bytes:
        """What it adds to the answer's text."""
        return self.tokenizer.piece(token_id) if self.shows_specials else self.tokenizer.bytes_of(token_id)


def text_logprobs(
    scored: Sequence[Scored], num_top: int | None, char_offset: int, texts: TokenTexts
) -> dict[str, Any] | None:
    """The object of some tokens whose text begins at `char_offset`; None when none are asked for (`num_top` None).

    A token without a probability is null in both lists, as OpenAI and vLLM have it for the first of a prompt. The token
    itself is among the top ones, also where it is one more than asked for: theirs have it so.
    """
    if num_top is None:
        return None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be made of several tokens
    offsets = []
    for token_id, _ in scored:
        offsets.append(char_offset)
        char_offset += len(decoder.decode(texts.bytes_of(token_id)))
    return {
        "tokens": [texts.name(token_id) for token_id, _ in scored],
        "token_logprobs": [None if entry is None else finite(entry.chosen) for _, entry in scored],
        "top_logprobs": [
            None if entry is None else _by_text([*entry.top[:num_top], (token_id, entry.chosen)], texts)
            for token_id, entry in scored
        ]
        if num_top
        else None,
        "text_offset": offsets,
    }


def joined(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """Two such objects, one after the other."""
    if first is None or second is None:
        return first or second
    return {name: None if values is None else values + second[name] for name, values in first.items()}


def _by_text(top: Iterable[tuple[int, float]], texts: TokenTexts) -> dict[str, float]:
    best: dict[str, float] = {}
    for token, logprob in top:  # most likely first; two tokens may read the same
        best.setdefault(texts.name(token), finite(logprob))
    return best


def shown(piece: bytes) -> str:
    """The text of a token; what is no whole character becomes U+FFFD."""
    return piece.decode("utf-8", "replace")


def finite(logprob: float) -> float:
    """A log probability that JSON can say."""
    return max(logprob, LOWEST_LOGPROB)
