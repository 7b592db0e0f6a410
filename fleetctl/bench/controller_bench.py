"""`python -m fleetctl.bench.controller_bench`: a whole controller over many nodes, seen from outside.

The nodes are served by one other process. What is measured: CPU and memory of the controller's process, how long it
takes until every node is ready, how old its loops get, how long its API takes, and whether a healthy node was ever
called silent.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from alerts.promql.histogram import bucket_quantile
from fleetctl.bench.measured import (
    READY_WITHIN_S,
    BenchError,
    cpu_s_of,
    memory_mb_of,
    print_measured,
    process_of,
    seconds_until_ready,
    wait_for,
)
from fleetctl.bench.report import describe_machine

_TURN_BUCKET = re.compile(r'^controller_loop_turn_seconds_bucket\{le="([^"]+)",loop="alerts"\} (\S+)$', re.MULTILINE)


def measure(num_nodes: int, interval_s: float, seconds: float, folder: Path) -> dict[str, Any]:
    """One size. Raises BenchError when a process ends, or the nodes are not ready in time."""
    python = [sys.executable, "-m"]
    lasts_s = seconds + READY_WITHIN_S
    with process_of([*python, "fleetctl.bench.serve", "--seconds", str(lasts_s)], folder / "serve") as nodes:
        port = wait_for(lambda: (folder / "serve.out").read_text().strip(), nodes, folder / "serve")
        command = [*python, "fleetctl.bench.controller_side", "--port", port, "--nodes", str(num_nodes)]
        command += ["--state-dir", str(folder / "state")]
        command += ["--probe-interval", str(interval_s), "--scrape-interval", str(interval_s)]
        with process_of(command, folder / "controller") as process:
            url = wait_for(lambda: (folder / "controller.out").read_text().strip(), process, folder / "controller")
            with httpx.Client(base_url=url, trust_env=False, timeout=60.0) as http:
                ready_s = seconds_until_ready(http, num_nodes, process, folder / "controller")
                before = http.get("/metrics").text
                cpu_s, from_s = cpu_s_of(process), time.monotonic()
                ages, answers_s, ready = [0.0], [], []
                while time.monotonic() - from_s < seconds:
                    asked_s = time.monotonic()
                    status = http.get("/v1/status").json()
                    answers_s.append(time.monotonic() - asked_s)
                    ages.append(max(status["loops"][name] for name in ("fleet", "scrape", "alerts")))
                    ready.append(status["nodes_ready"])
                    time.sleep(1.0)
                took_s, cpu_s = time.monotonic() - from_s, cpu_s_of(process) - cpu_s
                turns = turns_between(before, http.get("/metrics").text)
            log = (folder / "controller.err").read_text()
            return {
                "nodes": num_nodes,
                "interval_s": interval_s,
                "ready_after_s": round(ready_s, 1),
                "cpu_s_per_min": round(cpu_s * 60 / took_s, 1),
                "memory_mb": round(memory_mb_of(process, "VmRSS")),
                "turns": round(turns[-1][1]),
                "turn_s_p50": round(bucket_quantile(0.5, turns), 2),
                "turn_s_p99": round(bucket_quantile(0.99, turns), 2),
                "oldest_loop_s": round(max(ages), 1),
                "status_ms_worst": round(max(answers_s) * 1e3),
                "fewest_ready": min(ready),
                "called_unreachable": log.count('"event": "node.unreachable"'),
            }


def turns_between(before: str, after: str) -> list[tuple[float, float]]:
    """Turns of the rules' loop between two texts of /metrics, as cumulative buckets: upper bound in seconds, count.

    Raises BenchError when it ended none yet.
    """
    if not (found := _TURN_BUCKET.findall(after)):
        raise BenchError("the rules' loop has ended no turn")
    earlier = dict(_TURN_BUCKET.findall(before))
    return [(float(le), float(count) - float(earlier.get(le, 0))) for le, count in found]


def main(argv: Sequence[str]) -> int:
    """Measure each size and print one JSON line for it."""
    parser = argparse.ArgumentParser(prog="python -m fleetctl.bench.controller_bench")
    parser.add_argument("--nodes", default="1000,5000", help="sizes, e.g. 1000,5000")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two probes, and two scrapes")
    parser.add_argument("--measure", type=float, default=60.0, help="seconds measured once all are ready")
    args = parser.parse_args(argv)
    sys.stderr.write(describe_machine() + "\n")
    measures = [partial(measure, int(size), args.interval, args.measure) for size in args.nodes.split(",")]
    return 0 if all(print_measured("controller", one) for one in measures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
