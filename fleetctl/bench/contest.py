"""Our scraper and rules, and a real Prometheus, over the same nodes: one after the other, each measured alike."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from fleetctl.bench.measured import BenchError, cpu_s_of, lines_of, memory_mb_of, process_of, tail_of, wait_for
from fleetctl.bench.workload import INTERVAL_S, labels_of, rule_files
from fleetctl.kit.reserved_port import reserve_port

_MANY_NODES = 2000
_MANY_NODES_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """`warm_s` passes before measuring: windows fill, connections stand, caches are warm.

    `rules_every_s`: the shortest interval of rules; None: that of the scrapes, or a longer one for large fleets, at
    which two CPUs can keep up with Prometheus' rules. What cannot keep up has no figures to compare with.
    """

    nodes: tuple[int, ...]
    warm_s: float
    measure_s: float
    is_full: bool
    prometheus: str
    rules_every_s: float | None = None

    def of_size(self, num_nodes: int) -> BenchPlan:
        """This plan for one size: long enough that what is measured is the fourth evaluation of a rule or a later one.

        In the first ones series appear that other rules read.
        """
        every_s = self.rules_every_s or (INTERVAL_S if num_nodes <= _MANY_NODES else _MANY_NODES_EVERY_S)
        return replace(
            self,
            nodes=(num_nodes,),
            warm_s=max(self.warm_s, 2.7 * every_s),
            measure_s=max(self.measure_s, every_s),
            rules_every_s=every_s,
        )


@dataclass(frozen=True, slots=True)
class BenchRow:
    """`cpu_s_per_min` and `memory_mb` (resident) of the one process.

    `evaluation_ms`: what all rules that are due within `rules_every_s` take together.
    """

    who: str
    nodes: int
    rules_every_s: float
    series: int
    cpu_s_per_min: float
    memory_mb: float
    peak_mb: float
    evaluation_ms: float
    load_before: float
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Ready for json.dumps."""
        return asdict(self)


def run(plan: BenchPlan, say: Callable[[str], None]) -> Iterator[BenchRow]:
    """Rows as they are measured: for each size ours, then Prometheus. Raises BenchError."""
    for num_nodes in plan.nodes:
        own = plan.of_size(num_nodes)
        for who, measure in (("fleetctl", _ours), ("prometheus", _prometheus)):
            say(f"{who}: {num_nodes} nodes, {own.warm_s:g} s to warm up and {own.measure_s:g} s measured")
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-signals-")))
                port = stack.enter_context(_served(own, folder))
                yield measure(own, num_nodes, port, folder, stack)


@contextmanager
def _served(plan: BenchPlan, folder: Path) -> Iterator[int]:
    seconds = plan.warm_s + plan.measure_s + 60
    command = [sys.executable, "-m", "fleetctl.bench.serve", "--seconds", str(seconds)]
    with process_of([*command, "--full"] if plan.is_full else command, folder / "serve") as process:
        out = wait_for(lambda: (folder / "serve.out").read_text().strip(), process, folder / "serve")
        yield int(out)


def _ours(plan: BenchPlan, num_nodes: int, port: int, folder: Path, stack: ExitStack) -> BenchRow:
    load, every_s = os.getloadavg()[0], plan.rules_every_s or INTERVAL_S
    command = [sys.executable, "-m", "fleetctl.bench.signal_side", "--port", str(port), "--nodes", str(num_nodes)]
    command += map(str, rule_files(folder, every_s))
    process = stack.enter_context(process_of(command, folder / "ours"))
    time.sleep(plan.warm_s)
    cpu, before = cpu_s_of(process), len(lines_of(folder / "ours.out"))
    began = time.monotonic()
    time.sleep(plan.measure_s)
    took_s, cpu = time.monotonic() - began, cpu_s_of(process) - cpu
    ticks = [json.loads(line) for line in lines_of(folder / "ours.out")[before:]]
    if process.poll() is not None or not ticks:
        raise BenchError(f"ours ended: {tail_of(folder / 'ours.err')}")
    last = ticks[-1]
    num_passes = took_s / every_s
    wall_ms = sum(tick["wall_ms"] for tick in ticks) / num_passes
    cpu_ms = sum(tick["cpu_ms"] for tick in ticks) / num_passes
    problems = {key: last[key] for key in ("failed_scrapes", "dropped", "rule_errors") if last[key]}
    note = f"{cpu_ms:.0f} ms of CPU; {last['firing']} alerts fire" + (f"; {problems}" if problems else "")
    return BenchRow(
        "fleetctl",
        num_nodes,
        every_s,
        last["series"],
        cpu * 60 / took_s,
        memory_mb_of(process, "VmRSS"),
        memory_mb_of(process, "VmHWM"),
        wall_ms,
        load,
        note,
    )


def _prometheus(plan: BenchPlan, num_nodes: int, port: int, folder: Path, stack: ExitStack) -> BenchRow:
    load, every_s = os.getloadavg()[0], plan.rules_every_s or INTERVAL_S
    own = reserve_port()
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(_config(num_nodes, port, rule_files(folder, every_s))))  # JSON is YAML
    process = stack.enter_context(
        process_of(
            [
                plan.prometheus,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{own}",
                "--storage.tsdb.retention.time=6h",
            ],
            folder / "prometheus",
        )
    )
    with httpx.Client(base_url=f"http://127.0.0.1:{own}", trust_env=False, timeout=20.0) as client:
        wait_for(lambda: _is_ready(client), process, folder / "prometheus")
        time.sleep(plan.warm_s)
        cpu, evaluated_s = cpu_s_of(process), _evaluated_s(client)
        began = time.monotonic()
        time.sleep(plan.measure_s)
        took_s, cpu = time.monotonic() - began, cpu_s_of(process) - cpu
        evaluated_s = _evaluated_s(client) - evaluated_s
        memory = memory_mb_of(process, "VmRSS"), memory_mb_of(process, "VmHWM")
        series = round(_asked(client, "prometheus_tsdb_head_series"))
        missed = round(_asked(client, "sum(prometheus_rule_group_iterations_missed_total)"))
        firing = round(_asked(client, 'count(ALERTS{alertstate="firing"}) or vector(0)'))
        down = num_nodes - round(_asked(client, 'sum(up{job="llm-node"}) or vector(0)'))
    note = f"{firing} alerts fire" + (f"; {missed} evaluations missed" if missed else "")
    note += f"; {down} nodes down" if down else ""
    each_ms = evaluated_s / took_s * every_s * 1e3
    return BenchRow("prometheus", num_nodes, every_s, series, cpu * 60 / took_s, *memory, each_ms, load, note)


def _config(num_nodes: int, port: int, rules: list[Path]) -> dict[str, Any]:
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"__metrics_path__": f"/{number}/metrics", **labels_of(number)}}
        for number in range(num_nodes)
    ]
    return {
        "global": {"scrape_interval": f"{INTERVAL_S:g}s", "evaluation_interval": f"{INTERVAL_S:g}s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {"job_name": "llm-node", "scrape_timeout": f"{INTERVAL_S:g}s", "static_configs": targets},
            {"job_name": "self", "static_configs": [{"targets": ["127.0.0.1:9"]}]},
        ],
    }


def _is_ready(client: httpx.Client) -> str:
    try:
        return "yes" if client.get("/-/ready").status_code == 200 else ""
    except httpx.TransportError:
        return ""


def _metrics(client: httpx.Client) -> Iterator[tuple[str, float]]:
    for line in client.get("/metrics").text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            yield name, float(value)


def _evaluated_s(client: httpx.Client) -> float:
    """Seconds that all rule groups have taken since the start."""
    return sum(
        value for name, value in _metrics(client) if name.startswith("prometheus_rule_group_duration_seconds_sum")
    )


def _asked(client: httpx.Client, query: str) -> float:
    """From its own metrics where that is enough, else from its query API."""
    if "(" not in query:
        return next((value for name, value in _metrics(client) if name == query), 0.0)
    if query.startswith("sum(prometheus_"):
        name = query[4:-1]
        return sum(value for each, value in _metrics(client) if each.startswith(name))
    result = client.get("/api/v1/query", params={"query": query}).json()["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0
