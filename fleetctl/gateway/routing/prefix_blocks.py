"""A prompt as a chain of block hashes: two prompts share KV as far as their chains are equal.

A block's hash covers everything before it, so that equal hashes mean equal prefixes. Blocks are cut at fixed places:
small ones at the beginning, where chats differ, larger ones behind, so that a prompt of 100k tokens has a few hundred.
"""

from __future__ import annotations

from collections.abc import Sequence

CHARS_PER_TOKEN = 4  # a guess: what is counted is load, and how much of a cache is held
SMALL_TOKENS = 32
LARGE_TOKENS = 256
NUM_SMALL = 64
SMALL_PART_TOKENS = SMALL_TOKENS * NUM_SMALL
MAX_BLOCKS = 1024  # of one prompt: what lies behind 247,808 tokens is not told apart

Blocks = tuple[int, ...]
"""Chain hashes of a prompt's whole blocks. They are of this process only: `hash` is seeded anew in each."""


def tokens_before(count: int) -> int:
    """Tokens that the first `count` blocks of any prompt hold."""
    if count <= NUM_SMALL:
        return count * SMALL_TOKENS
    return SMALL_PART_TOKENS + (count - NUM_SMALL) * LARGE_TOKENS


def text_blocks(text: str, seed: object) -> Blocks:
    """The chain of a text; `seed` is what else its KV depends on: model, tools."""
    return _chain(text, CHARS_PER_TOKEN, seed)


def token_blocks(token_ids: Sequence[int], seed: object) -> Blocks:
    """The chain of a prompt that comes as token ids."""
    return _chain(tuple(token_ids), 1, (seed, "ids"))


def _chain(prompt: Sequence[object], per_token: int, seed: object) -> Blocks:
    size, small, large = len(prompt), SMALL_TOKENS * per_token, LARGE_TOKENS * per_token
    blocks: list[int] = []
    add = blocks.append
    chained = hash(seed)
    end_small = min(size - size % small, small * NUM_SMALL)
    for at in range(0, end_small, small):
        chained = hash((chained, prompt[at : at + small]))
        add(chained)
    last = min(size, end_small + (MAX_BLOCKS - NUM_SMALL) * large)
    if end_small == small * NUM_SMALL:
        for at in range(end_small, last - large + 1, large):
            chained = hash((chained, prompt[at : at + large]))
            add(chained)
    return tuple(blocks)
