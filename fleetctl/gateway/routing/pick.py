"""Which node gets a request: filter, score, pick. Pure: loads and suspicions come in as values.

Locality without state: each node has a weight for the prompt's prefix (rendezvous hashing), and the heaviest node that
is not loaded well beyond the least loaded one wins. A node that joins or leaves moves only its own share of prefixes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

LOAD_RATIO = 1.25  # a favourite may hold this many times the least loaded node's tokens ...
LOAD_SLACK_REQUESTS = 4  # ... plus this many requests of the size at hand, so that small loads do not scatter prefixes


class Candidate(NamedTuple):
    """A node that could take the request. `outstanding_tokens`: estimated tokens of its unfinished requests."""

    node: str
    outstanding_tokens: int
    is_suspect: bool = False  # failed a moment ago: tried last


def pick_node(
    candidates: Sequence[Candidate], *, prefix: str, tokens: int, excluded: Collection[str] = ()
) -> str | None:
    """The node to try next, or None when every candidate is excluded."""
    pool = [c for c in candidates if c.node not in excluded]
    if not pool:
        return None
    if len(pool) == 1:
        return pool[0].node
    trusted = [c for c in pool if not c.is_suspect]
    pool = trusted or pool
    least = min(c.outstanding_tokens for c in pool)
    if prefix:
        limit = least * LOAD_RATIO + LOAD_SLACK_REQUESTS * tokens
        within = [c for c in pool if c.outstanding_tokens <= limit]
    else:
        within = [c for c in pool if c.outstanding_tokens == least]
    if len(within) == 1:
        return within[0].node
    return max(within, key=lambda c: (rendezvous_weight(prefix, c.node), c.node)).node


@lru_cache(maxsize=65_536)
def rendezvous_weight(prefix: str, node: str) -> int:
    """The node's rendezvous weight for a prefix: stable over processes and restarts."""
    digest = hashlib.blake2b(f"{node}\n{prefix}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest())
