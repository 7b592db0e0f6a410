"""Requests in the order in which they are served."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from engine.core.request import Request


def serving_order(priority: int, arrived_at: float, ageing_s: float, seq_id: int) -> tuple[float, int]:
    """The place of a request among all others; smaller is served first.

    A request gains one priority level for every `ageing_s` seconds since it arrived. As all gain at the same rate,
    the order of two requests never changes, so it is one number: a request of priority 1 stands where one of
    priority 0 that arrives `ageing_s` later would. Only finitely many can ever stand before it, so none starves.
    """
    return (priority * ageing_s + arrived_at, seq_id)


class RequestQueue:
    """Requests sorted by their `order`. First and last in O(1), others found by bisection."""

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[float, int], Request]] = []  # orders are unique: requests never compare

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._entries)

    def __reversed__(self) -> Iterator[Request]:
        return (request for _, request in reversed(self._entries))

    @property
    def first(self) -> Request:
        return self._entries[0][1]

    def add(self, request: Request) -> None:
        insort(self._entries, (request.order, request))

    def remove(self, request: Request) -> None:
        """Take a request out.

        Raises:
            KeyError: it is not here.
        """
        index = bisect_left(self._entries, request.order, key=lambda entry: entry[0])
        if index == len(self._entries) or self._entries[index][1] is not request:
            raise KeyError(request.request_id)
        del self._entries[index]
