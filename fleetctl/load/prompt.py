"""Text of about so many tokens for a shape: equal ids give equal text, and everything else differs."""

from __future__ import annotations

import random
from functools import lru_cache

from fleetctl.load.shape import RequestShape

CHARS_PER_TOKEN = 4.0  # of English in the common vocabularies; measure it for small ones
_TEXT = """
about after again air all along also always and another any around ask away back because been before being
below between both boy came can come could day did different does done down each earth end enough even every
far few find first follow food for form found from gave get give good great group grow had hand hard has have
head hear help here high him his home house how idea important into its just keep kind know land large last
late learn leave left letter life light like line list little live long look made make many may mean might
mile more most mother move much must name near need never new next night not now number off often old once one
only open other our out over own page part people picture place plant play point put quick quite read real
right river run said same saw say school sea second see seem sentence set she should show side small some
something song soon sound spell start state still stop story study such take talk tell than that the their
them then there these they thing think this those thought three through time together too took tree try turn
two under until use very walk want was watch water way well went were what when where which while white who
why will with without word work world would write year you young your
"""
_WORDS = _TEXT.split()


def prompt_text(shape: RequestShape, *, salt: int, chars_per_token: float = CHARS_PER_TOKEN) -> str:
    """The prompt: one stretch of text for each prefix id, then text of its own, made from `salt`."""
    parts = []
    left = shape.prompt_tokens
    for prefix_id in shape.prefix_ids:
        if left <= 0:
            break
        tokens = min(left, shape.block_tokens)
        block = _stretch(f"block {prefix_id}", max(1, round(shape.block_tokens * chars_per_token)))
        parts.append(block[: max(1, round(tokens * chars_per_token))])
        left -= tokens
    if left > 0:
        parts.append(_make(f"own {salt}", max(1, round(left * chars_per_token))))
    return "".join(parts)


@lru_cache(maxsize=512)
def _stretch(name: str, num_chars: int) -> str:
    return _make(name, num_chars)


def _make(name: str, num_chars: int) -> str:
    """Words that the name alone determines, exactly `num_chars` long."""
    rng = random.Random(name)
    words: list[str] = []
    length = 0
    while length < num_chars:
        word = rng.choice(_WORDS)
        words.append(word)
        length += len(word) + 1
    return (" ".join(words) + " ")[:num_chars]
