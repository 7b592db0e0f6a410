"""`python -m fleetctl.bench.signal_side`: the controller's scraper, store and rules over a fleet, nothing else.

Prints one JSON line after each evaluation: how long it took, in milliseconds of wall and of CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fleetctl.kit.hidden_imports import hidden_imports

with hidden_imports("rich"):  # as the controller starts
    import uvloop

    from alerts.evaluation.engine import RuleEngine
    from alerts.evaluation.rules import load_rule_files
    from alerts.series.store import SeriesStore
    from fleetctl.bench.workload import INTERVAL_S, labels_of
    from fleetctl.controller.signals.scrape_slots import ScrapeTarget, SlotScraper
    from fleetctl.kit.clock import SystemClock
    from fleetctl.kit.fetch import Fetcher
    from fleetctl.kit.log import configure_logging


async def _run(port: int, num_nodes: int, rules: Sequence[Path]) -> None:
    store = SeriesStore()
    groups = load_rule_files(rules)
    engine = RuleEngine(groups, store, default_interval_s=INTERVAL_S)
    failed = 0

    def told(went_well: bool) -> None:
        nonlocal failed
        failed += not went_well

    fetcher = Fetcher(timeout_s=INTERVAL_S, max_bytes=8 << 20)
    scraper = SlotScraper(store, fetcher, SystemClock(), interval_s=INTERVAL_S, stale_after_s=2 * INTERVAL_S, told=told)
    targets = {
        f"node-{number}": ScrapeTarget(f"http://127.0.0.1:{port}/{number}/metrics", labels_of(number))
        for number in range(num_nodes)
    }
    scraping = asyncio.create_task(_scrape(scraper, targets))
    slot = time.monotonic()
    while not scraping.done():
        slot += INTERVAL_S
        await asyncio.sleep(max(0.0, slot - time.monotonic()))
        wall, cpu = time.perf_counter(), time.process_time()
        engine.tick(time.time())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        firing = sum(alert.state == "firing" for alert in engine.alerts())
        said = {
            "wall_ms": wall * 1e3,
            "cpu_ms": cpu * 1e3,
            "series": store.num_series,
            "failed_scrapes": failed,
            "dropped": store.dropped_samples,
            "rule_errors": len(engine.failures()),
            "firing": firing,
            "points_mb": store.num_bytes / 1e6,
        }
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    scraping.result()


async def _scrape(scraper: SlotScraper, targets: dict[str, ScrapeTarget]) -> None:
    slot = time.monotonic()
    while True:
        await scraper.scrape_round(targets)
        slot += INTERVAL_S
        await asyncio.sleep(max(0.0, slot - time.monotonic()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m fleetctl.bench.signal_side")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("rules", type=Path, nargs="+")
    args = parser.parse_args()
    configure_logging()
    uvloop.run(_run(args.port, args.nodes, args.rules))
