"""Many targets, some of which hang: each of the others is scraped in every slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from alerts.labels import METRIC_NAME
from alerts.matcher import Matcher
from alerts.series.store import SeriesStore
from fleetctl.controller.signals.scrape_slots import ScrapeTarget, SlotScraper
from fleetctl.controller.slots import AT_ONCE
from fleetctl.kit.clock import SystemClock
from fleetctl.kit.fetch import Fetcher
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio
NUM_NODES = 2 * AT_ONCE + 20
TURNS = 3
MOST_ROUNDS = 10


class Spent:
    """What the thread has computed for; the next reading costs what the test says."""

    def __init__(self) -> None:
        self._cost = self._spent = 0.0

    def next_costs(self, seconds: float) -> None:
        self._cost = seconds

    def now(self) -> float:
        self._spent += self._cost
        return self._spent


class Peers:
    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.asked: dict[int, int] = {}

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        number = int(request.match_info["number"])
        self.asked[number] = self.asked.get(number, 0) + 1
        if number % 2:
            await self.go_on.wait()
        return web.Response(text=f"x {number}\n")


@asynccontextmanager
async def serving(peers: Peers) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{number}/metrics", peers.metrics)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=512)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        peers.go_on.set()
        await runner.cleanup()


def targets_of(url: str) -> dict[str, ScrapeTarget]:
    return {str(number): ScrapeTarget(f"{url}/{number}/metrics", {"node": str(number)}) for number in range(NUM_NODES)}


def num_points(store: SeriesStore, node: str, name: str) -> int:
    selection = store.select((Matcher(METRIC_NAME, "=", name), Matcher("node", "=", node)))
    return sum(len(series.points()[0]) for series in selection.series)


async def test_half_of_the_targets_hanging_delays_none_of_the_others() -> None:
    peers, store = Peers(), SeriesStore()
    async with serving(peers) as url:
        scraper = SlotScraper(
            store,
            Fetcher(timeout_s=60, max_bytes=1000),
            SystemClock(),
            interval_s=1.0,
            stale_after_s=10.0,
            told=lambda well: None,
        )
        healthy = [number for number in range(NUM_NODES) if number % 2 == 0]
        for _ in range(MOST_ROUNDS):  # a machine that stands still for a second costs whoever is asked then a turn
            await scraper.scrape_round(targets_of(url))
            if all(num_points(store, str(number), "x") >= TURNS for number in healthy):
                break
        assert min(num_points(store, str(number), "x") for number in healthy) >= TURNS
        assert scraper.in_flight == NUM_NODES - len(healthy)
        assert {peers.asked[number] for number in range(NUM_NODES) if number % 2} == {1}  # none is asked twice at once
        await scraper.stop()


async def test_a_target_that_is_costly_to_read_comes_less_often_and_before_its_numbers_are_old() -> None:
    """Labels that are others at each scrape: one such target took 0.6 s of each second from all that the rest needs."""
    peers, store, clock, spent = Peers(), SeriesStore(), DrivenClock(), Spent()
    async with serving(peers) as url:
        targets = {name: target for name, target in targets_of(url).items() if name in ("2", "4")}
        scraper = SlotScraper(
            store,
            Fetcher(timeout_s=60, max_bytes=1000),
            clock,
            interval_s=1.0,
            stale_after_s=10.0,
            told=lambda well: spent.next_costs(0.0),
            cpu_s=spent.now,
        )
        spent.next_costs(0.5)  # of whichever is read first
        asked: list[list[int]] = []
        for _ in range(12):
            await scraper.scrape_round(targets)
            asked.append(sorted(peers.asked.values()))
            clock.move(1.0)
        assert asked[:7] == [[1, 1], [1, 2], [1, 3], [1, 4], [1, 5], [2, 6], [3, 7]], "0.5 s of every 5, and no more"
        assert asked[-1] == [8, 12], "once it costs little again it comes each time"
        await scraper.stop()


@pytest.mark.parametrize(("stale_after_s", "asked"), [(10.0, 3), (4.0, 9), (2.0, 17)])
async def test_however_costly_a_target_is_asked_before_what_it_said_is_old(stale_after_s: float, asked: int) -> None:
    """With `controller.stale_after_s` at 5 s, and 8 s of rest, it was of unknown load for three seconds of eight."""
    peers, store, clock, spent = Peers(), SeriesStore(), DrivenClock(), Spent()
    async with serving(peers) as url:
        scraper = SlotScraper(
            store,
            Fetcher(timeout_s=60, max_bytes=1000),
            clock,
            interval_s=1.0,
            stale_after_s=stale_after_s,
            told=lambda well: None,
            cpu_s=spent.now,
        )
        spent.next_costs(60.0)
        for _ in range(17):
            await scraper.scrape_round({"2": targets_of(url)["2"]})
            clock.move(1.0)
        assert peers.asked[2] == asked
        await scraper.stop()


async def test_target_that_hangs_longer_than_its_time_is_down() -> None:
    peers, store = Peers(), SeriesStore()
    told: list[bool] = []
    async with serving(peers) as url:
        scraper = SlotScraper(
            store,
            Fetcher(timeout_s=0.2, max_bytes=1000),
            SystemClock(),
            interval_s=30.0,
            stale_after_s=10.0,
            told=told.append,
        )
        await scraper.scrape_round({"1": ScrapeTarget(f"{url}/1/metrics", {"node": "1"})})
        assert told == [False]
        assert store.last_error({"node": "1"}) == "scrape failed"
        assert num_points(store, "1", "up") == 1
        await scraper.stop()


async def test_answers_beyond_the_limit_are_not_read() -> None:
    peers = Peers()
    async with serving(peers) as url:
        fetcher = Fetcher(timeout_s=30, max_bytes=2)
        fetched = await fetcher.fetch(f"{url}/2/metrics")
        assert fetched.text is None
        assert fetched.problem == "the answer is longer than 2 bytes"
        await fetcher.close()
