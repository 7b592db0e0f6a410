"""`python -m fleetctl.bench.targets_bench`: a whole controller over targets that come and go, seen from outside.

A file of targets is written anew again and again: some are gone, as many have come, under new names at addresses
that others had, as pods do. What is measured minute by minute: CPU and memory of the controller's process, how long a
new target takes until it is ready. The series of who is gone are kept for an hour as evidence, some 200 KB each.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from fleetctl.bench.measured import (
    READY_WITHIN_S,
    BenchError,
    cpu_s_of,
    lines_of,
    memory_mb_of,
    print_measured,
    process_of,
    seconds_until_ready,
    wait_for,
)
from fleetctl.bench.report import describe_machine
from fleetctl.bench.serve import address_of

SPARE = 1.5  # addresses for each target: one that is free is taken again only after a while
PROBE_INTERVAL_S = 5.0


class Listing:
    """The file of targets, and who is in it."""

    def __init__(self, path: Path, num_targets: int, port: int) -> None:
        self._path, self._port = path, port
        self._free = deque(range(num_targets, int(num_targets * SPARE)))
        self._targets = {f"pod-{number}": number for number in range(num_targets)}
        self._num_named = num_targets
        self.newest = ""
        self.write()

    @property
    def names(self) -> Sequence[str]:
        """Of those that are listed."""
        return tuple(self._targets)

    def replace(self, count: int) -> None:
        """The `count` oldest are gone; as many have come."""
        if not count:
            return
        for name in list(self._targets)[:count]:
            self._free.append(self._targets.pop(name))
            self.newest = f"pod-{self._num_named}"
            self._targets[self.newest] = self._free.popleft()
            self._num_named += 1
        self.write()

    def write(self) -> None:
        """As its readers expect it: never half."""
        groups = [
            {
                "targets": [f"{address_of(number)}:{self._port}"],
                "labels": {
                    "node": name,
                    "engine": "vllm",
                    "model": "demo",
                    "pool": f"pool-{number % 8}",
                    "zone": f"zone-{number % 3}",
                },
            }
            for name, number in self._targets.items()
        ]
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(groups))
        new.replace(self._path)


def measure(num_targets: int, per_minute: int, minutes: int, folder: Path) -> dict[str, Any]:
    """Raises BenchError when a process ends, or the nodes are not ready in time."""
    python = [sys.executable, "-m"]
    serve = [*python, "fleetctl.bench.serve", "--seconds", str(60 * minutes + READY_WITHIN_S)]
    serve += ["--addresses", str(int(num_targets * SPARE))]
    with process_of(serve, folder / "serve") as nodes:
        port = wait_for(lambda: (folder / "serve.out").read_text().strip(), nodes, folder / "serve")
        listing = Listing(folder / "targets.json", num_targets, int(port))
        command = [*python, "fleetctl.bench.controller_side", "--targets", str(folder / "targets.json")]
        command += ["--state-dir", str(folder / "state")]
        command += ["--probe-interval", str(PROBE_INTERVAL_S), "--scrape-interval", str(PROBE_INTERVAL_S)]
        with process_of(command, folder / "controller") as process:
            url = wait_for(lambda: (folder / "controller.out").read_text().strip(), process, folder / "controller")
            with httpx.Client(base_url=url, trust_env=False, timeout=60.0) as http:
                ready_s = seconds_until_ready(http, num_targets, process, folder / "controller")
                quiet_mb = memory_mb_of(process, "VmRSS")
                courses = [_minute(listing, per_minute, process, http) for _ in range(minutes)]
            log = [line for line in lines_of(folder / "controller.err") if line.startswith("{")]
    return {
        "targets": num_targets,
        "replaced_per_minute": per_minute,
        "ready_after_s": round(ready_s, 1),
        "memory_mb_quiet": round(quiet_mb),
        "memory_mb": [round(one["memory_mb"]) for one in courses],
        "cpu_s": [round(one["cpu_s"], 1) for one in courses],
        "new_ready_after_s": [one["new_ready_after_s"] for one in courses],
        "fewest_ready": [one["fewest_ready"] for one in courses],
        "listed": [one["listed"] for one in courses],
        "errors": sorted({one["event"] for line in log if (one := json.loads(line))["level"] == "error"}),
    }


def _minute(listing: Listing, per_minute: int, process: Any, http: httpx.Client) -> dict[str, Any]:
    cpu_s, from_s, before = cpu_s_of(process), time.monotonic(), listing.newest
    watched, came_s, took_s, ready = "", 0.0, None, []
    for second in range(60):
        listing.replace(per_minute * (second + 1) // 60 - per_minute * second // 60)
        if not watched and second >= 5 and listing.newest != before:
            watched, came_s = listing.newest, time.monotonic()
        if watched and took_s is None:
            answer = http.get(f"/v1/nodes/{watched}")
            if answer.status_code == 200 and answer.json()["phase"] == "ready":
                took_s = round(time.monotonic() - came_s, 1)
        ready.append(http.get("/v1/status").json()["nodes_ready"])
        if process.poll() is not None:
            raise BenchError("the controller ended")
        time.sleep(max(0.0, from_s + second + 1 - time.monotonic()))
    return {
        "cpu_s": (cpu_s_of(process) - cpu_s) * 60 / (time.monotonic() - from_s),
        "memory_mb": memory_mb_of(process, "VmRSS"),
        "new_ready_after_s": took_s,
        "fewest_ready": min(ready),
        "listed": len(http.get("/v1/nodes").json()),
    }


def main(argv: Sequence[str]) -> int:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m fleetctl.bench.targets_bench")
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--per-minute", type=int, default=17, help="replaced: each of 1,000 once in an hour")
    parser.add_argument("--minutes", type=int, default=5)
    args = parser.parse_args(argv)
    sys.stderr.write(describe_machine() + "\n")
    return 0 if print_measured("targets", partial(measure, args.targets, args.per_minute, args.minutes)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
