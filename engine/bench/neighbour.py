"""A busy neighbour: our node alone and beside a loop that never rests, in turns, so that both suffer alike from others.

What can be asked for is the share of the CPUs that the loop left free, so the CPU time that it got is measured too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from engine.bench.figures import Figures
from engine.bench.http_load import run_http_load
from engine.bench.report import describe_machine
from engine.bench.roofline import measure_machine
from engine.bench.servers import MODEL_NAME, ours_and_peers, running
from engine.bench.workload import make_workload

NICE = 10
ROUNDS = 3
REQUESTS_PER_CLIENT = 2
HEADER = (
    "| engine | dtype | at once | alone, output tokens/s | beside the loop | of alone | CPUs left free "
    "| ITL p95 ms, alone / beside |\n|---|---|---|---|---|---|---|---|"
)
_LOOP = """
import os, sys
from engine.parent_death import die_with_parent
die_with_parent()
os.nice(int(sys.argv[1]))
print(flush=True)
while True:
    pass
"""


@dataclass(frozen=True, slots=True)
class NeighbourComparison:
    """What is measured."""

    model: Path
    concurrencies: Sequence[int]
    dtypes: Sequence[str]
    num_threads: int
    num_rounds: int
    output_tokens: int
    nice: int
    peers: Sequence[str]
    report_progress: Callable[[str], None]

    def measure(self) -> str:
        """The table, as Markdown. Raises ServerError, IncompleteAnswerError."""
        lines = [line for dtype in self.dtypes for line in self._measure_dtype(dtype)]
        machine = describe_machine({self.dtypes[0]: measure_machine(self.dtypes[0], self.num_threads)})
        how = f"One busy loop at nice {self.nice}; {self.num_threads} threads, median of {self.num_rounds} rounds."
        return "\n".join([machine, "", how, "", HEADER, *lines]) + "\n"

    def _measure_dtype(self, dtype: str) -> Iterator[str]:
        # The same requests are sent again and again: no engine may remember them.
        options = ("--no-enable-prefix-caching",)
        servers = ours_and_peers(
            self.model, dtype, self.num_threads, self.report_progress, peers=self.peers, options=options
        )
        for server in servers:
            with running(server) as url:
                for concurrency in self.concurrencies:
                    yield self._measure(server.name, url, dtype, concurrency)

    def _measure(self, engine: str, url: str, dtype: str, concurrency: int) -> str:
        count = concurrency * REQUESTS_PER_CLIENT
        requests = make_workload(count, max_output_tokens=self.output_tokens)
        found: dict[str, list[Figures]] = {"alone": [], "beside": []}
        free: list[float] = []
        for number in range(self.num_rounds + 1):
            for mode in sorted(found, reverse=number % 2 == 1):
                with busy_loop(self.nice) if mode == "beside" else contextlib.nullcontext() as cpu_seconds:
                    started = time.perf_counter()
                    figures = asyncio.run(run_http_load(url, MODEL_NAME, requests, concurrency))
                    if number == 0:  # for what first requests cost
                        continue
                    found[mode].append(figures)
                    if cpu_seconds is not None:
                        free.append(_cpus() - cpu_seconds() / (time.perf_counter() - started))
                self.report_progress(
                    f"{engine} {dtype} x{concurrency} {mode}: {figures.output_tokens_per_s:.1f} tokens/s"
                )
        alone, beside = (median(f.output_tokens_per_s for f in found[mode]) for mode in found)
        gaps = " / ".join(f"{median(f.itl_p95_s or 0.0 for f in figures) * 1e3:.1f}" for figures in found.values())
        left = f"{median(free):.2f} of {_cpus()} ({median(free) / _cpus():.0%})"
        rates = f"{alone:.1f} | {beside:.1f} | {beside / alone:.0%}"
        return f"| {engine} | {dtype} | {concurrency} | {rates} | {left} | {gaps} |"


@contextlib.contextmanager
def busy_loop(nice: int) -> Iterator[Callable[[], float]]:
    """A process that computes without end, so much nicer than this one; gives what says its CPU seconds from now on."""
    process = subprocess.Popen((sys.executable, "-c", _LOOP, str(nice)), stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it is at work
        before = _cpu_seconds(process.pid)
        yield lambda: _cpu_seconds(process.pid) - before
    finally:
        process.kill()
        process.communicate()


def _cpu_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
