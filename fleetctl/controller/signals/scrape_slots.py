"""Scraping many targets side by side, each at its own place in the interval."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import structlog

from alerts.series.store import SeriesStore
from fleetctl.controller.slots import Slots
from fleetctl.kit.clock import Clock
from fleetctl.kit.fetch import Fetched, Fetcher
from fleetctl.kit.key_ring import NO_KEYS, KeyRing

log = structlog.get_logger()

READ_SHARE = 0.1  # of the loop's time, for one target: 25,000 lines with new labels each time took 0.6 s of each second


class ScrapeTarget(NamedTuple):
    """Where a target's metrics are, and the labels that its series get."""

    url: str | None  # of its metrics; None: not known, which is a failed scrape
    labels: dict[str, str]
    api_key: str = ""  # name of the key that it wants


class SlotScraper:
    """Puts each target's answer, or its silence, into the store. One that hangs delays nobody else's next scrape."""

    def __init__(
        self,
        store: SeriesStore,
        fetcher: Fetcher,
        clock: Clock,
        *,
        interval_s: float,
        stale_after_s: float,
        told: Callable[[bool], None],
        keys: KeyRing = NO_KEYS,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`stale_after_s`: what a target says must not be as old as that before it is asked again, however costly.
        `told` is called after each scrape with whether it went well. `cpu_s`: what this thread has computed for."""
        self._store = store
        self._fetcher = fetcher
        self._clock = clock
        self._interval_s = interval_s
        self._max_rest_s = stale_after_s - 2 * interval_s  # an interval until its slot, and one until it has answered
        self._slots = Slots(clock, interval_s=interval_s, name="scrape")
        self._told = told
        self._keys = keys
        self._cpu_s = cpu_s
        self._rests_until: dict[str, float] = {}  # of targets that cost more than their share
        self._targets: dict[str, ScrapeTarget] = {}
        self.problems: dict[str, str] = {}  # of those whose last scrape failed
        self.last_success_at: dict[str, float] = {}

    async def scrape_round(self, wanted: Mapping[str, ScrapeTarget]) -> None:
        """Begins a scrape of every target that is not being scraped still; ends with the last, or the interval.

        Targets that are no longer wanted are forgotten. One whose text takes long to read comes less often: else it
        would take the time of all others.
        """
        for name in self._targets.keys() - wanted.keys():
            self.forget(name)
        now = self._clock.now()
        due = [name for name in wanted if self._rests_until.get(name, now) <= now]
        await self._slots.run_round(due, lambda name: self._scrape(name, self._begin(name, wanted[name])))

    @property
    def in_flight(self) -> int:
        """Scrapes that were begun and have no answer yet."""
        return self._slots.in_flight

    def forget(self, name: str) -> None:
        """The target is gone by our will: its series end now, and its alerts with them."""
        target = self._targets.pop(name, None)
        self.last_success_at.pop(name, None)
        self.problems.pop(name, None)
        self._rests_until.pop(name, None)
        if target is not None:
            self._store.forget_target(target.labels)

    async def stop(self) -> None:
        """End what is in flight and close the connections."""
        await self._slots.stop()
        await self._fetcher.close()

    def _begin(self, name: str, target: ScrapeTarget) -> ScrapeTarget:
        standing = self._targets.get(name)
        if standing is not None and standing.labels != target.labels:
            self.forget(name)
        self._targets[name] = target
        return target

    async def _scrape(self, name: str, target: ScrapeTarget) -> None:
        fetched = Fetched(None, "its address is not known")
        if target.url is not None:
            fetched = await self._fetcher.fetch(target.url, self._keys.header(target.api_key))
        if self._targets.get(name) is not target:
            return  # forgotten meanwhile: what it said must not bring its series back
        at, begun_s = self._clock.now(), self._cpu_s()
        self._store.ingest(target.labels, fetched.text, at)
        self._rest(name, at, self._cpu_s() - begun_s)
        problem = fetched.problem if fetched.text is None else self._store.last_error(target.labels) or ""
        self._told(not problem)
        if not problem:
            self.problems.pop(name, None)
            self.last_success_at[name] = at
        elif self.problems.get(name) != problem:
            log.warning("scrape.failed", node=name, error=problem)
            self.problems[name] = problem

    def _rest(self, name: str, at: float, took_s: float) -> None:
        """How long it rests after a scrape that took so much. When that begins is logged."""
        rest_s = min(took_s / READ_SHARE, self._max_rest_s)
        if rest_s <= self._interval_s:
            self._rests_until.pop(name, None)
            return
        if name not in self._rests_until:
            log.warning("scrape.costly", node=name, took_s=round(took_s, 3), next_after_s=round(rest_s, 1))
        self._rests_until[name] = at + rest_s
