"""Requests that ended two nodes, remembered by a hash of their body: one that comes again ends no further node."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from fleetctl.gateway.requests.fates import Death

MAX_REMEMBERED = 1024
SAME_PLACE_EVENTS = 8  # two deaths so near to each other in a stream are the request's doing
SAME_TIME_S = 2.0  # before the first event a place is a time: what ends nodes does so after the same work,
SAME_TIME_SHARE = 0.5  # or after up to twice as long where the node had more to do
HUNG = frozenset({"node_silent", "core_stuck"})  # the others ended
UNHEARD_S = 1.0  # a node of which nothing was heard for longer may have been silent when it got the request
MAX_DEATHS = 4  # however far apart: more than chance explains
SETTLES_S = 1.0  # before and after: other nodes that end within this time, without the request, end for another reason


class Poisoned(NamedTuple):
    """A request that ended nodes. `at`: monotonic seconds."""

    request_id: str
    nodes: tuple[str, ...]
    at: float


class PoisonMemory:
    """The most recent of them. No prompt is kept, only its hash."""

    def __init__(self, memory_s: float, *, max_remembered: int = MAX_REMEMBERED) -> None:
        """`memory_s`: how long a body is refused; 0: never."""
        self._memory_s = memory_s
        self._max_remembered = max_remembered
        self._known: OrderedDict[bytes, Poisoned] = OrderedDict()

    def note(self, key: bytes, poisoned: Poisoned) -> None:
        """The body of this key has ended nodes."""
        if not self._memory_s:
            return
        self._known.pop(key, None)
        self._known[key] = poisoned
        if len(self._known) > self._max_remembered:
            self._known.popitem(last=False)

    def forget(self, key: bytes) -> None:
        """It was not this body that ended them."""
        self._known.pop(key, None)

    def find(self, path: str, body: bytes | None, now: float) -> Poisoned | None:
        """What this body did a short while ago; None: nothing is known of it."""
        if not self._known or body is None:
            return None
        key = body_key(path, body)
        found = self._known.get(key)
        if found is not None and now - found.at > self._memory_s:
            del self._known[key]
            return None
        return found


def is_poison(deaths: Sequence[Death], max_resends: int) -> bool:
    """Whether the request is what ends its nodes: more of them than may be tried, at one place of its answer.

    A long stream may lose two nodes by chance, but not after the same few events. A request without any, as each that
    is not streamed, may do so too: there the nodes must have failed alike, and have had it for about as long. One that
    was silent already when it got it, as where the network to all of them is gone, is none of its doing.
    """
    if len(deaths) <= max_resends:
        return False
    if len(deaths) >= max(MAX_DEATHS, max_resends + 2):
        return True
    suspicious = [one for one in deaths if one.reason not in HUNG or one.unheard_s <= UNHEARD_S]
    together = combinations(suspicious, max_resends + 1)
    return any(all(_are_alike(*pair) for pair in combinations(some, 2)) for some in together)


def _are_alike(one: Death, other: Death) -> bool:
    if one.at_event or other.at_event:
        return abs(one.at_event - other.at_event) <= SAME_PLACE_EVENTS
    longest_s = max(one.held_s, other.held_s)
    is_same_time = abs(one.held_s - other.held_s) <= max(SAME_TIME_S, SAME_TIME_SHARE * longest_s)
    return is_same_time and (one.reason in HUNG) == (other.reason in HUNG)


def body_key(path: str, body: bytes) -> bytes:
    """What a request's body is known by: 16 bytes, from which it can't be read."""
    return hashlib.blake2b(body, digest_size=16, person=path.encode()[:16]).digest()
