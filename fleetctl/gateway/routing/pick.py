"""Which node gets a request: filter, score, pick. Pure: what is known of nodes comes in as values, reasons come out.

A score is a cost in prompt tokens: what the node must prefill before and for this request, and what else slows it down.
Of the nodes that cost about the same, a hash of the prompt chooses one, so that prefixes that nobody has seen find the
same node from every gateway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

SEAT_TOKENS = 64  # what one more running request costs, in tokens of prefill
KV_SHORT_FACTOR = 4  # of a token for which there is no room: somebody is preempted, and prefilled again
MISSING_ADAPTER_TOKENS = 2048  # a node that must load the adapter first
UNCACHED_FACTOR = 4.0  # a prefill that a cache would have spared: its time, and the blocks that it evicts
RECENT_SHARE = 0.05  # of the work that a node was given lately: while all are idle, traffic spreads all the same
TIE_SHARE = 0.35  # of what even the cheapest must prefill: costs that differ by less are the same
_MASK = (1 << 64) - 1


class LeftOut(StrEnum):
    """Why a candidate is not scored. Views of health, and rules, have words of their own."""

    TRIED = "tried"  # this request was there already
    SUSPECT = "suspect"  # failed a moment ago, and others did not
    TOO_SHORT = "context_too_short"  # the prompt is longer than what it takes
    CAP = "cap"  # it has as many long requests as the rule allows


class PickReason(StrEnum):
    """Why the picked node is the one. A closed set: a metric label."""

    ONLY = "only"  # nobody else was left
    PREFIX = "prefix"  # it holds the longest part of the prompt
    LOAD = "load"  # another one holds more of the prompt and has too much to do
    HASH = "hash"  # it costs as little as any, and the prompt's beginning chooses it
    LEAST = "least_cost"  # it costs least
    STICKY = "sticky"  # the session is there
    NONE = "none"  # nobody was left


class RequestSize(NamedTuple):
    """What is asked of a node, estimated. `shared_tokens`: of the prompt, what many others begin with too."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    shared_tokens: int = 0


class Candidate(NamedTuple):
    """A node that could take the request. None: not known, which is neither idle nor full."""

    node: str
    prefill_tokens: int = 0  # of its requests whose first token has not come
    requests: int = 0  # that it holds
    recent_tokens: int = 0  # of work that it was given lately
    cached_tokens: int = 0  # of this prompt
    kv_free_tokens: int | None = None
    max_model_len: int | None = None
    has_adapter: bool | None = None
    affinity: int = 0  # among those that cost the same the highest wins
    is_suspect: bool = False  # failed a moment ago: tried last
    is_sticky: bool = False  # the client's session is there


class Score(NamedTuple):
    """A candidate's cost in tokens of prefill, by its parts."""

    node: str
    cached_tokens: int  # of the prompt; not a part of the cost
    waiting: int  # prefill that is before it
    uncached: int  # of its own prompt
    seats: int  # for the requests that run there
    recent: int  # for what it was given lately
    kv: int  # for KV blocks that are not free
    adapter: int

    @property
    def cost(self) -> int:
        """All parts together."""
        return self.waiting + self.uncached + self.seats + self.recent + self.kv + self.adapter


class Pick(NamedTuple):
    """The node, why, and what was weighed. `node` None: every candidate is left out."""

    node: str | None
    reason: PickReason
    cached_tokens: int = 0
    weighed: Sequence[Candidate] = ()
    size: RequestSize = RequestSize()
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def scores(self) -> tuple[Score, ...]:
        """What each one that was weighed costs, by its parts: for those who explain, not on the way of a request."""
        return score_all(self.weighed, self.size)


def pick_node(
    candidates: Sequence[Candidate],
    size: RequestSize,
    *,
    excluded: Collection[str] = (),
    affinity_of: Callable[[str], int] | None = None,
) -> Pick:
    """Filter, score and pick. `affinity_of`: a node's, asked where costs tie only; None: it is the candidates' own."""
    kept, left_out = keep_fit(candidates, size, excluded)
    if not kept:
        return Pick(None, PickReason.NONE, size=size, left_out=left_out)
    if len(kept) == 1:
        return Pick(kept[0].node, PickReason.ONLY, kept[0].cached_tokens, kept, size, left_out)
    for one in kept:
        if one.is_sticky:
            return Pick(one.node, PickReason.STICKY, one.cached_tokens, kept, size, left_out)
    costs = costs_of(kept, size)
    least = min(costs)
    longest = max([one.cached_tokens for one in kept])
    limit = least + int(TIE_SHARE * _uncached_cost(size, longest))
    held = kept[costs.index(least)].cached_tokens
    is_shared = held <= size.shared_tokens
    ties = [
        one for cost, one in zip(costs, kept, strict=True) if cost <= limit and (is_shared or one.cached_tokens >= held)
    ]
    best = ties[0]
    if len(ties) > 1:
        best = max(ties, key=lambda one: (one.affinity if affinity_of is None else affinity_of(one.node), one.node))
    if best.cached_tokens < longest:
        reason = PickReason.LOAD
    elif longest > size.shared_tokens:
        reason = PickReason.PREFIX
    else:
        reason = PickReason.HASH if len(ties) > 1 else PickReason.LEAST
    return Pick(best.node, reason, best.cached_tokens, kept, size, left_out)


def keep_fit(
    candidates: Sequence[Candidate], size: RequestSize, excluded: Collection[str]
) -> tuple[Sequence[Candidate], tuple[tuple[str, str], ...]]:
    """The candidates that may be picked, and why not the others. What others can't do better keeps nobody out."""
    tokens = size.prompt_tokens
    if not excluded:
        for one in candidates:
            if one.is_suspect or (one.max_model_len is not None and tokens > one.max_model_len):
                break
        else:
            return candidates, ()
    left_out: list[tuple[str, str]] = []
    kept = list(candidates)
    if excluded:
        left_out += [(one.node, LeftOut.TRIED) for one in kept if one.node in excluded]
        kept = [one for one in kept if one.node not in excluded]
    short = {one.node for one in kept if one.max_model_len is not None and tokens > one.max_model_len}
    suspect = {one.node for one in kept if one.is_suspect}
    for why, out in ((LeftOut.TOO_SHORT, short), (LeftOut.SUSPECT, suspect)):
        if out and not out.issuperset(one.node for one in kept):
            left_out += [(one.node, why) for one in kept if one.node in out]
            kept = [one for one in kept if one.node not in out]
    return kept, tuple(left_out)


def costs_of(candidates: Sequence[Candidate], size: RequestSize) -> list[int]:
    """The cost of each candidate: `Score.cost`, in one loop without its parts, because every request waits for it."""
    prompt, output, shared = size
    of_unknown = _kv_of_unknown(candidates, prompt + output)
    costs = []
    for _, waiting, requests, recent, cached, kv_free, _, has_adapter, _, _, _ in candidates:
        cost = waiting + requests * SEAT_TOKENS + int(recent * RECENT_SHARE)
        if cached < shared:
            cost += shared - cached
            if prompt > shared:
                cost += int((prompt - shared) * UNCACHED_FACTOR)
        elif prompt > cached:
            cost += int((prompt - cached) * UNCACHED_FACTOR)
        if kv_free is None:
            cost += of_unknown
        elif (short := prompt + output - cached - kv_free) > 0:
            cost += KV_SHORT_FACTOR * short
        if has_adapter is False:
            cost += MISSING_ADAPTER_TOKENS
        costs.append(cost)
    return costs


def score_all(candidates: Iterable[Candidate], size: RequestSize) -> tuple[Score, ...]:
    """What each candidate costs, by its parts."""
    kept = list(candidates)
    needed = size.prompt_tokens + size.output_tokens
    of_unknown = _kv_of_unknown(kept, needed)
    return tuple(
        [
            Score(
                one.node,
                one.cached_tokens,
                one.prefill_tokens,
                _uncached_cost(size, one.cached_tokens),
                one.requests * SEAT_TOKENS,
                int(one.recent_tokens * RECENT_SHARE),
                of_unknown if one.kv_free_tokens is None else _kv_cost(one.kv_free_tokens, needed - one.cached_tokens),
                MISSING_ADAPTER_TOKENS if one.has_adapter is False else 0,
            )
            for one in kept
        ]
    )


def _uncached_cost(size: RequestSize, cached: int) -> int:
    """A prefill that a cache would have spared. What many prompts share is soon on every node: its time counts only."""
    own = int(max(0, size.prompt_tokens - max(cached, size.shared_tokens)) * UNCACHED_FACTOR)
    return own + max(0, size.shared_tokens - cached)


def _kv_of_unknown(candidates: Sequence[Candidate], needed: int) -> int:
    """What a node costs whose KV is not known: it is neither idle nor full, but as the others are."""
    known = [_kv_cost(one.kv_free_tokens, needed) for one in candidates if one.kv_free_tokens is not None]
    return sum(known) // len(known) if known else 0


def _kv_cost(free_tokens: int, needed: int) -> int:
    return KV_SHORT_FACTOR * max(0, needed - free_tokens)


@lru_cache(maxsize=65_536)
def node_hash(node: str) -> int:
    """64 bits of a node's name, the same in every process and release."""
    return int.from_bytes(hashlib.blake2b(node.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def prefix_hash(prefix: str) -> int:
    """64 bits of a prompt's first characters, the same in every process and release; 0 of none."""
    if not prefix:
        return 0
    return int.from_bytes(hashlib.blake2b(prefix.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def affinity(node: int, prefix: int) -> int:
    """A node's weight for a prefix, of the hashes of both; the highest is the prefix's own (rendezvous)."""
    mixed = node ^ prefix
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
