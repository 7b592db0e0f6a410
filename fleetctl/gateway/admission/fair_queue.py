"""Who is served next of those that wait: classes in order with aging, and inside a class a fair share per tenant.

Inside a class this is start-time fair queueing over tokens (Goyal, Vin and Cheng 1996; for LLM serving the virtual
token counter of Sheng et al. 2024): each tenant has a counter of the tokens it was granted, divided by its weight, and
the smallest goes first. A tenant that comes back starts at the counter of those served now: who was away saves nothing
up.

Pure: times come in as monotonic seconds. Each operation is O(log n) in the number of tenants that wait, amortised.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from fleetctl.priority_class import PriorityClass

AGED_TURNS = 8
"""A class with an aged waiter gets at least each so-manyth turn, whatever waits above it."""


@dataclass(eq=False, slots=True)
class Waiter:
    """One request that waits. `tokens`: its estimated cost. `claim` is the caller's."""

    tenant: str
    priority: PriorityClass
    tokens: float
    since: float
    weight: float = 1.0
    size_bytes: int = 0
    claim: Any = None


@dataclass(slots=True)
class _Flow:
    """One tenant's waiters. `counter`: virtual tokens at which its next one starts."""

    counter: float = 0.0
    stamp: int = 0  # of its entry in the heap: older ones are void
    waiters: OrderedDict[Waiter, None] = field(default_factory=OrderedDict)


class _ClassQueue:
    """The waiters of one class."""

    __slots__ = ("_flows", "_heap", "_stamps", "_virtual", "by_age", "num_passed_over")

    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._stamps = 0
        self._virtual = 0.0
        self.by_age: OrderedDict[Waiter, None] = OrderedDict()
        self.num_passed_over = 0  # turns that others had while a waiter here was aged

    def push(self, waiter: Waiter, *, is_first: bool) -> None:
        flow = self._flows.get(waiter.tenant)
        if flow is None:
            flow = self._flows[waiter.tenant] = _Flow()
        was_idle = not flow.waiters
        flow.waiters[waiter] = None
        self.by_age[waiter] = None
        if is_first:
            flow.waiters.move_to_end(waiter, last=False)
            self.by_age.move_to_end(waiter, last=False)
        if was_idle:
            flow.counter = max(flow.counter, self._virtual)
            self._enter(waiter.tenant, flow)

    def pop(self) -> Waiter:
        while True:
            counter, stamp, tenant = heapq.heappop(self._heap)
            flow = self._flows.get(tenant)
            if flow is not None and flow.stamp == stamp and flow.waiters:
                break
        waiter, _ = flow.waiters.popitem(last=False)
        del self.by_age[waiter]
        self._virtual = max(self._virtual, counter)
        flow.counter = counter + waiter.tokens / waiter.weight
        if flow.waiters:
            self._enter(tenant, flow)
        return waiter

    def remove(self, waiter: Waiter) -> bool:
        if waiter not in self.by_age:
            return False
        del self.by_age[waiter]
        del self._flows[waiter.tenant].waiters[waiter]
        if len(self._heap) > 64 + 2 * len(self._flows):
            self._rebuild()
        return True

    def note_cost(self, tenant: str, tokens: float, weight: float) -> None:
        """A granted request of the tenant cost so many tokens more (or less) than was thought."""
        flow = self._flows.get(tenant)
        if flow is None:
            return
        flow.counter = max(0.0, flow.counter + tokens / weight)
        if flow.waiters:
            self._enter(tenant, flow)
            if len(self._heap) > 64 + 2 * len(self._flows):
                self._rebuild()

    def longest(self) -> tuple[Waiter, int]:
        """The newest waiter of the tenant that has most of them here, and how many those are."""
        flow = max(self._flows.values(), key=lambda one: len(one.waiters))
        return next(reversed(flow.waiters)), len(flow.waiters)

    def num_of(self, tenant: str) -> int:
        flow = self._flows.get(tenant)
        return len(flow.waiters) if flow else 0

    def _enter(self, tenant: str, flow: _Flow) -> None:
        self._stamps += 1
        flow.stamp = self._stamps
        heapq.heappush(self._heap, (flow.counter, flow.stamp, tenant))

    def _rebuild(self) -> None:
        """Drop void entries, and tenants that wait for nothing and are owed nothing."""
        self._flows = {name: flow for name, flow in self._flows.items() if flow.waiters or flow.counter > self._virtual}
        self._heap = [(flow.counter, flow.stamp, name) for name, flow in self._flows.items() if flow.waiters]
        heapq.heapify(self._heap)

    def check_integrity(self) -> None:
        assert set(self.by_age) == {waiter for flow in self._flows.values() for waiter in flow.waiters}
        live = {stamp for _, stamp, name in self._heap if name in self._flows and self._flows[name].stamp == stamp}
        assert all(flow.stamp in live for flow in self._flows.values() if flow.waiters)


class FairQueue:
    """Waiters of all classes. `aging_s`: from then on a waiter is aged, and its class gets turns out of order."""

    def __init__(self, *, aging_s: float) -> None:
        self._aging_s = aging_s
        self._classes = {priority: _ClassQueue() for priority in PriorityClass}
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def push(self, waiter: Waiter, *, is_first: bool = False) -> None:
        """Let it wait; `is_first`: before its tenant's others, because it had its turn and could not use it."""
        self._classes[waiter.priority].push(waiter, is_first=is_first)
        self._num += 1

    def pop(self, now: float) -> Waiter | None:
        """The next to be served; None when nobody waits."""
        waiting = [queue for queue in self._classes.values() if queue.by_age]
        if not waiting:
            return None
        aged = [queue for queue in waiting if self._is_aged(queue, now)]
        due = [queue for queue in aged if queue.num_passed_over >= AGED_TURNS - 1]
        chosen = max(due, key=lambda queue: queue.num_passed_over) if due else waiting[0]
        for queue in aged:
            queue.num_passed_over += 1
        chosen.num_passed_over = 0
        self._num -= 1
        return chosen.pop()

    def remove(self, waiter: Waiter) -> bool:
        """It waits no longer; False when it did not wait."""
        found = self._classes[waiter.priority].remove(waiter)
        self._num -= found
        return found

    def note_cost(self, tenant: str, priority: PriorityClass, tokens: float, weight: float) -> None:
        """A granted request of the tenant cost so many tokens more (or less) than was thought."""
        self._classes[priority].note_cost(tenant, tokens, weight)

    def drop_for(self, waiter: Waiter) -> Waiter | None:
        """Somebody whose place the newcomer may have in a full queue, taken out; None: nobody has less right to it.

        That is the newest of the least important class, or of its own class the newest of a tenant that has more
        waiters: one tenant alone can't fill the queue for the others.
        """
        for priority in reversed(PriorityClass):
            queue = self._classes[priority]
            if priority.rank < waiter.priority.rank:
                return None
            if not queue.by_age:
                continue
            newest, num = queue.longest()
            if priority is waiter.priority and num <= queue.num_of(waiter.tenant) + 1:
                return None
            self.remove(newest)
            return newest
        return None

    def counts(self) -> dict[PriorityClass, int]:
        """How many wait, by class."""
        return {priority: len(queue.by_age) for priority, queue in self._classes.items()}

    def oldest_wait_s(self, now: float) -> float:
        """How long the oldest one waits; 0 when nobody does."""
        ages = [now - next(iter(queue.by_age)).since for queue in self._classes.values() if queue.by_age]
        return max(ages, default=0.0)

    def _is_aged(self, queue: _ClassQueue, now: float) -> bool:
        return now - next(iter(queue.by_age)).since >= self._aging_s

    def check_integrity(self) -> None:
        """Raises AssertionError when a waiter was lost or counted twice."""
        assert self._num == sum(len(queue.by_age) for queue in self._classes.values())
        for queue in self._classes.values():
            queue.check_integrity()
