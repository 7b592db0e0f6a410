"""Requests that ended without their answer, known by a hash of their body, and which of them come again."""

from __future__ import annotations

from collections import OrderedDict

from fleetctl.gateway.requests.fates import Outcome, ProxiedRequest

WITHIN_S = 60.0  # who asks again later than that is no user who lost patience
MAX_REMEMBERED = 8192
_NO_ROOM = frozenset({429, 503})  # refused for load, and not for what it asks


class UnservedMemory:
    """The most recent of this process. No prompt is kept: Python's own hash of it, which costs less than reading it."""

    def __init__(self, *, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._ended_at: OrderedDict[int, float] = OrderedDict()

    def note_begun(self, proxied: ProxiedRequest, path: str, body: bytes | None, now: float) -> bool:
        """Whether the same ended without its answer a short while ago. `now`: monotonic seconds."""
        if body is None:
            return False
        proxied.body_hash = hash((path, body))
        ended_at = self._ended_at.get(proxied.body_hash)
        return ended_at is not None and now - ended_at <= WITHIN_S

    def note_ended(self, proxied: ProxiedRequest, now: float) -> None:
        """Remember it, if its client got no whole answer and may ask again; forget it with its answer."""
        if proxied.body_hash is None:
            return
        self._ended_at.pop(proxied.body_hash, None)
        if not _is_unserved(proxied):
            return
        self._ended_at[proxied.body_hash] = now
        if len(self._ended_at) > self._max_remembered:
            self._ended_at.popitem(last=False)


def _is_unserved(proxied: ProxiedRequest) -> bool:
    if proxied.outcome is Outcome.REFUSED:
        return proxied.status in _NO_ROOM
    return proxied.outcome is not Outcome.FINISHED
