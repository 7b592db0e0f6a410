"""Requests that wait at the gateway while the nodes of their model have no free seat: bounded, fair, cancelled at once.

One lane for each model that is routed, because a model's nodes being full says nothing of another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from fleetctl.gateway.admission.fair_queue import FairQueue, Waiter
from fleetctl.gateway.admission.seat_limit import SeatLimit
from fleetctl.gateway.admission.tenant_account import Refusal
from fleetctl.priority_class import PriorityClass
from fleetctl.settings.admission import AdmissionSettings


class Lane:
    """The seats of one model's nodes, and who waits for them."""

    __slots__ = ("name", "queue", "seats")

    def __init__(self, name: str, *, aging_s: float) -> None:
        self.name = name
        self.seats = SeatLimit()
        self.queue = FairQueue(aging_s=aging_s)


class SeatQueue:
    """All lanes. `most_outstanding` gives a lane's limit from outside, None where there is none."""

    def __init__(
        self,
        settings: AdmissionSettings,
        *,
        clock: Callable[[], float],
        most_outstanding: Callable[[str], int | None] = lambda lane: None,
    ) -> None:
        self._limits = settings
        self.is_on = settings.queue_limit_s > 0  # else nobody waits: nodes' refusals go to the clients at once
        self._clock = clock
        self._most = most_outstanding
        self._lanes: dict[str, Lane] = {}
        self._num_bytes = 0
        self._num = 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait now, in all lanes."""
        return self._num

    def lane(self, name: str) -> Lane:
        """The lane of a routed model. Lanes come from the routing table, so there are few of them."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name, aging_s=self._limits.queue_aging_s)
        return lane

    def take_free_seat(self, lane: Lane) -> bool:
        """A seat, when one is free and nobody waits for it."""
        if len(lane.queue) or not lane.seats.has_seat(self._clock(), self._most(lane.name)):
            return False
        lane.seats.take()
        return True

    async def wait_for_seat(
        self, lane: Lane, waiter: Waiter, deadline_at: float | None, *, had_turn: bool = False
    ) -> Refusal | None:
        """Wait for a seat, which is taken when this returns None; else why there is none. Cancelling gives it up.

        `had_turn`: every node refused it just now; it keeps its place and its time.
        """
        if not self._make_room(waiter):
            return Refusal.QUEUE_FULL
        granted: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        waiter.claim = granted
        lane.queue.push(waiter, is_first=had_turn)
        self._num += 1
        self._num_bytes += waiter.size_bytes
        until = waiter.since + self._limits.queue_limit_s
        why = Refusal.QUEUE_LIMIT
        if deadline_at is not None and deadline_at < until:
            until, why = deadline_at, Refusal.DEADLINE
        self._grant_free_seats(lane)
        try:
            async with asyncio.timeout(max(0.0, until - self._clock())):
                return await granted
        except TimeoutError:
            if granted.done() and not granted.cancelled():
                return granted.result()  # both at the same moment: the seat is ours
            return why
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.result() is None:
                self.give_back(lane)
            raise
        finally:
            self._leave(lane, waiter)

    def give_back(self, lane: Lane) -> None:
        """A seat is free again: the next one has it."""
        lane.seats.give_back()
        if len(lane.queue):
            self._grant_free_seats(lane)

    def sweep(self) -> None:
        """What only time brings: probes of nodes that were full, and knowledge that is too old."""
        now = self._clock()
        for lane in self._lanes.values():
            if len(lane.queue):
                self._grant_free_seats(lane)
            else:
                lane.seats.forget_if_old(now)

    def keep_lanes(self, names: set[str]) -> None:
        """Forget lanes of models that are routed no more, once they are empty."""
        for name in [n for n, lane in self._lanes.items() if n not in names]:
            if not len(self._lanes[name].queue) and not self._lanes[name].seats.outstanding:
                del self._lanes[name]

    def counts(self) -> dict[PriorityClass, int]:
        """How many wait, by class."""
        total = dict.fromkeys(PriorityClass, 0)
        for lane in self._lanes.values():
            for priority, count in lane.queue.counts().items():
                total[priority] += count
        return total

    def lanes(self) -> Iterator[tuple[str, int, int, int | None, float]]:
        """Of each lane its model, those waiting, those at nodes, the limit that was learnt, and the oldest's wait."""
        now = self._clock()
        for name, lane in self._lanes.items():
            yield name, len(lane.queue), lane.seats.outstanding, lane.seats.limit, lane.queue.oldest_wait_s(now)

    def check_integrity(self) -> None:
        """Raises AssertionError when a waiter was lost or a bound was passed."""
        assert self._num == sum(len(lane.queue) for lane in self._lanes.values())
        assert 0 <= self._num <= self._limits.max_waiting
        assert 0 <= self._num_bytes <= self._limits.max_waiting_bytes
        for lane in self._lanes.values():
            lane.queue.check_integrity()

    def _grant_free_seats(self, lane: Lane) -> None:
        now, most = self._clock(), self._most(lane.name)
        while len(lane.queue) and lane.seats.has_seat(now, most):
            waiter = lane.queue.pop(now)
            assert waiter is not None
            self._count_out(waiter)
            if not waiter.claim.done():  # else its time is up, or its client went, in this very turn of the loop
                lane.seats.take()
                waiter.claim.set_result(None)

    def _make_room(self, waiter: Waiter) -> bool:
        """Whether the newcomer fits, after those left that have less right to a place."""
        if waiter.size_bytes > self._limits.max_waiting_bytes:
            return False
        while (
            self._num >= self._limits.max_waiting
            or self._num_bytes + waiter.size_bytes > self._limits.max_waiting_bytes
        ):
            dropped = next(
                (one for lane in self._lanes.values() if (one := lane.queue.drop_for(waiter)) is not None), None
            )
            if dropped is None:
                return False
            self._count_out(dropped)
            if not dropped.claim.done():
                dropped.claim.set_result(Refusal.QUEUE_FULL)
        return True

    def _leave(self, lane: Lane, waiter: Waiter) -> None:
        if lane.queue.remove(waiter):
            self._count_out(waiter)

    def _count_out(self, waiter: Waiter) -> None:
        self._num -= 1
        self._num_bytes -= waiter.size_bytes
