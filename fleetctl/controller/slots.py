"""Asking many peers side by side, each at its own place in the interval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fleetctl.kit.clock import Clock

AT_ONCE = 50  # begun together; more are spread over the interval, so that neither side works in bursts
SPREAD_RATIO = 0.8  # of the interval: the last ones are begun well before the next round
ROUND_RATIO = 0.9  # of the interval: a round that waits for a peer that hangs ends before the next one's slot


class Slots:
    """One task a peer and no more. One that hangs delays nobody else's next, and no peer waits for a connection."""

    def __init__(self, clock: Clock, *, interval_s: float, name: str, min_round_s: float = 0.0) -> None:
        """`name`: of the tasks, for whoever debugs; `min_round_s`: a round waits at least so long for answers."""
        self._clock = clock
        self._interval_s = interval_s
        self.round_s = max(ROUND_RATIO * interval_s, min_round_s)
        self._name = name
        self._in_flight: dict[str, asyncio.Task[None]] = {}

    async def run_round(self, peers: Sequence[str], ask: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Ask every peer that has no task in flight; ends with the last, or after `round_s`.

        Raises what an `ask` raises: that is a bug of ours, no answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.round_s
        batches = [peers[at : at + AT_ONCE] for at in range(0, len(peers), AT_ONCE)]
        pause_s = self._interval_s * SPREAD_RATIO / len(batches) if batches else 0.0
        due = self._clock.now()
        for number, batch in enumerate(batches):
            for peer in batch:
                if peer not in self._in_flight:
                    self._begin(peer, ask(peer))
            if number + 1 < len(batches):
                # On a grid: what one batch is late, the next ones are not. Of a busy loop each sleep ends late, and
                # twenty of them would make a round of many intervals, in which no peer is asked twice.
                due += pause_s
                await self._clock.sleep(max(0.0, due - self._clock.now()))
        if self._in_flight:
            left_s = max(0.0, deadline - loop.time())
            done, _ = await asyncio.wait(list(self._in_flight.values()), timeout=left_s)
            for task in done:
                task.result()

    @property
    def in_flight(self) -> int:
        """Peers that were asked and have no answer yet."""
        return len(self._in_flight)

    async def stop(self) -> None:
        """End what is in flight."""
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, peer: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"{self._name}-{peer}")
        self._in_flight[peer] = task
        task.add_done_callback(lambda _: self._in_flight.pop(peer, None))
