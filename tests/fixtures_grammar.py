"""Grammars of the tiny model's tokenizer, and texts drawn from them without a model."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from fixtures_engine import tiny_model_dir

from engine.grammar_book import GrammarBook, allowed_ids
from engine.tokenizer import Tokenizer, load_tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    return load_tokenizer(tiny_model_dir())


def make_book(tokenizer: Tokenizer | None = None) -> GrammarBook:
    chosen = tokenizer or tiny_tokenizer()
    return GrammarBook(lambda: chosen, vocab_size=chosen.vocab_size, eos_token_ids=chosen.eos_token_ids)


def draw(book: GrammarBook, grammar: str, seed: int, *, eos: Sequence[int], max_tokens: int = 3000) -> list[int]:
    """Token ids drawn evenly from what the grammar allows, up to its end, which is left out."""
    rng, matcher, output = random.Random(seed), book.matcher(grammar), []
    for _ in range(max_tokens):
        token_id = int(rng.choice(allowed_ids(matcher.mask(), 2**31)))
        if token_id in eos:
            return output
        matcher.take(token_id)
        output.append(token_id)
    raise AssertionError(f"no end after {max_tokens} tokens: {output[-20:]}")


def drawn_text(book: GrammarBook, grammar: str, seed: int, **options: int) -> str:
    tokenizer = tiny_tokenizer()
    output = draw(book, grammar, seed, eos=tokenizer.eos_token_ids, **options)
    return tokenizer.decode(output, skip_special_tokens=True)
