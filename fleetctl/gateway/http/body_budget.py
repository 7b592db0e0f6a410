"""How much of request bodies may have come and not be taken up yet, over all connections of a process.

Each connection has its own limits on size and time; a thousand of them within these would fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

SLOW_AFTER_S = 5.0  # a body that has been coming for longer makes room for others


class ReceivedBody(Protocol):
    """A body on its way in."""

    def push_out(self) -> None:
        """Forget what came: there is no room for it."""


class BodyBudget:
    """Bytes held by body, the one that began first at the front. Threading: event loop only."""

    def __init__(self, max_bytes: int, *, clock: Callable[[], float], on_full: Callable[[], None]) -> None:
        """`on_full` is called for each body that is pushed out."""
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._clock = clock
        self._on_full = on_full
        self._held: dict[ReceivedBody, list[float]] = {}  # bytes, and when the first of them came

    def hold(self, body: ReceivedBody, size: int) -> None:
        """So many bytes of it came. Beyond the limit the slowest is pushed out, or this one where none is slow."""
        held = self._held.get(body)
        if held is None:
            self._held[body] = [size, self._clock()]
        else:
            held[0] += size
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            first = next(iter(self._held))
            is_slow = self._clock() - self._held[first][1] > SLOW_AFTER_S
            victim = first if is_slow else body
            self.release(victim)
            victim.push_out()
            self._on_full()

    def release(self, body: ReceivedBody) -> None:
        """It was taken up, or nobody wants it any more."""
        held = self._held.pop(body, None)
        if held is not None:
            self.num_bytes -= int(held[0])
