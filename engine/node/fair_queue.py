"""A queue in which each client has its share of what the work costs, however much of it one client brings.

Start-time fair queueing (Goyal, Vin, Cheng 1996) by measured cost: whose work has cost the least so far is served
next, and who comes anew starts level with whoever is being served, not with a credit for the time before.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MAX_REMEMBERED = 1024  # clients without waiting work whose cost is still known

T = TypeVar("T")


@dataclass(slots=True)
class _Share(Generic[T]):
    """One client's."""

    cost: float  # in the clock of `FairQueue`, never behind it
    waiting: deque[T] = field(default_factory=deque)


class FairQueue(Generic[T]):
    """Owner of the order. Pure: costs come in, no clock is read."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._shares: OrderedDict[str, _Share[T]] = OrderedDict()
        self._clock = 0.0  # the cost at which the last item was served
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, client: str, item: T) -> T | None:
        """Queues an item behind its client's others; returns what has no place: when the queue is full the newest item
        of the client with the most, which may be this one."""
        share = self._shares.get(client)
        if share is None:
            share = self._shares[client] = _Share(self._clock)
        self._shares.move_to_end(client)
        if not share.waiting:
            share.cost = max(share.cost, self._clock)
        share.waiting.append(item)
        if self._num_waiting < self._max_waiting:
            self._num_waiting += 1
            return None
        # Of equals the one that just brought one more: who already waits is not pushed out by his like.
        most = max(self._shares.values(), key=lambda each: (len(each.waiting), each is share))
        return most.waiting.pop()

    def pop(self) -> tuple[str, T]:
        """(client, item) that is served next. Raises IndexError when nothing waits."""
        ready = [(share.cost, client) for client, share in self._shares.items() if share.waiting]
        if not ready:
            raise IndexError("nothing waits")
        cost, client = min(ready, key=lambda each: each[0])  # of equals the one who came first
        self._clock = cost
        self._num_waiting -= 1
        return client, self._shares[client].waiting.popleft()

    def charge(self, client: str, cost: float) -> None:
        """What the client's last item has cost."""
        share = self._shares.get(client)
        if share is not None:
            share.cost += cost
        while len(self._shares) > MAX_REMEMBERED:
            idle = next((name for name, share in self._shares.items() if not share.waiting), None)
            if idle is None:
                return
            del self._shares[idle]
