"""Our scraper and rules, and a real Prometheus, over the same nodes: one after the other, each measured alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from alerts.content import builtin_rule_files, builtin_signal_files
from fleetctl.bench.fleet import INTERVAL_S, labels_of
from fleetctl.providers.local import free_port

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_START_S = 60.0
_STOP_S = 20.0


class BenchError(Exception):
    """A process of the bench did not do its part."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`warm_s` passes before measuring: windows fill, connections stand, caches are warm."""

    nodes: tuple[int, ...]
    warm_s: float
    measure_s: float
    is_full: bool
    prometheus: str


@dataclass(frozen=True, slots=True)
class Row:
    """`cpu_s_per_min` and `memory_mb` (resident) of the one process. `evaluation_ms`: all rules due in one interval."""

    who: str
    nodes: int
    series: int
    cpu_s_per_min: float
    memory_mb: float
    peak_mb: float
    evaluation_ms: float
    load_before: float
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(plan: Plan, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows as they are measured: for each size ours, then Prometheus. Raises BenchError."""
    for num_nodes in plan.nodes:
        for who, measure in (("fleetctl", _ours), ("prometheus", _prometheus)):
            say(f"{who}: {num_nodes} nodes, {plan.warm_s:g} s to warm up and {plan.measure_s:g} s measured")
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-signals-")))
                port = stack.enter_context(_served(plan, folder))
                yield measure(plan, num_nodes, port, folder, stack)


@contextmanager
def _served(plan: Plan, folder: Path) -> Iterator[int]:
    seconds = plan.warm_s + plan.measure_s + 60
    command = [sys.executable, "-m", "fleetctl.bench.serve", "--seconds", str(seconds)]
    with _process([*command, "--full"] if plan.is_full else command, folder / "serve") as process:
        out = _wait_for(lambda: (folder / "serve.out").read_text().strip(), process, folder / "serve")
        yield int(out)


def _ours(plan: Plan, num_nodes: int, port: int, folder: Path, stack: ExitStack) -> Row:
    load = os.getloadavg()[0]
    command = [sys.executable, "-m", "fleetctl.bench.ours", "--port", str(port), "--nodes", str(num_nodes)]
    process = stack.enter_context(_process(command, folder / "ours"))
    time.sleep(plan.warm_s)
    cpu, before = _cpu_s(process), len(_lines(folder / "ours.out"))
    began = time.monotonic()
    time.sleep(plan.measure_s)
    took_s, cpu = time.monotonic() - began, _cpu_s(process) - cpu
    ticks = [json.loads(line) for line in _lines(folder / "ours.out")[before:]]
    if process.poll() is not None or not ticks:
        raise BenchError(f"ours ended: {_tail(folder / 'ours.err')}")
    last = ticks[-1]
    wall_ms = sum(tick["wall_ms"] for tick in ticks) / len(ticks)
    cpu_ms = sum(tick["cpu_ms"] for tick in ticks) / len(ticks)
    problems = {key: last[key] for key in ("failed_scrapes", "dropped", "rule_errors") if last[key]}
    note = f"{cpu_ms:.0f} ms of CPU; {last['firing']} alerts fire" + (f"; {problems}" if problems else "")
    return Row(
        "fleetctl", num_nodes, last["series"], cpu * 60 / took_s, _memory_mb(process, "VmRSS"),
        _memory_mb(process, "VmHWM"), wall_ms, load, note,
    )  # fmt: skip


def _prometheus(plan: Plan, num_nodes: int, port: int, folder: Path, stack: ExitStack) -> Row:
    load = os.getloadavg()[0]
    own = free_port()
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(_config(num_nodes, port)))  # JSON is YAML
    process = stack.enter_context(
        _process(
            [
                plan.prometheus, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{own}", "--storage.tsdb.retention.time=6h",
            ],
            folder / "prometheus",
        )
    )  # fmt: skip
    with httpx.Client(base_url=f"http://127.0.0.1:{own}", trust_env=False, timeout=20.0) as client:
        _wait_for(lambda: _is_ready(client), process, folder / "prometheus")
        time.sleep(plan.warm_s)
        cpu, evaluated_s = _cpu_s(process), _evaluated_s(client)
        began = time.monotonic()
        time.sleep(plan.measure_s)
        took_s, cpu = time.monotonic() - began, _cpu_s(process) - cpu
        evaluated_s = _evaluated_s(client) - evaluated_s
        memory = _memory_mb(process, "VmRSS"), _memory_mb(process, "VmHWM")
        series = round(_asked(client, "prometheus_tsdb_head_series"))
        missed = round(_asked(client, "sum(prometheus_rule_group_iterations_missed_total)"))
        firing = round(_asked(client, 'count(ALERTS{alertstate="firing"}) or vector(0)'))
        down = num_nodes - round(_asked(client, 'sum(up{job="llm-node"}) or vector(0)'))
    note = f"{firing} alerts fire" + (f"; {missed} evaluations missed" if missed else "")
    note += f"; {down} nodes down" if down else ""
    each_ms = evaluated_s / took_s * INTERVAL_S * 1e3
    return Row("prometheus", num_nodes, series, cpu * 60 / took_s, *memory, each_ms, load, note)


def _config(num_nodes: int, port: int) -> dict[str, Any]:
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"__metrics_path__": f"/{number}/metrics", **labels_of(number)}}
        for number in range(num_nodes)
    ]
    return {
        "global": {"scrape_interval": f"{INTERVAL_S:g}s", "evaluation_interval": f"{INTERVAL_S:g}s"},
        "rule_files": [str(path) for path in (*builtin_signal_files(), *builtin_rule_files())],
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


@contextmanager
def _process(command: list[str], out: Path) -> Iterator[subprocess.Popen[bytes]]:
    with Path(f"{out}.out").open("wb") as stdout, Path(f"{out}.err").open("wb") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(look: Callable[[], str], process: subprocess.Popen[bytes], out: Path) -> str:
    deadline = time.monotonic() + _START_S
    while not (found := look()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"{out.name} did not start: {_tail(Path(f'{out}.err'))}")
        time.sleep(0.1)
    return found


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def _memory_mb(process: subprocess.Popen[bytes], field: str) -> float:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise BenchError(f"/proc/{process.pid}/status has no {field}")


def _lines(path: Path) -> list[str]:
    """Whole lines."""
    return path.read_text().split("\n")[:-1]


def _tail(path: Path) -> str:
    return " ".join(path.read_text(errors="replace").split())[-500:]
