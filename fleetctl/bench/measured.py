"""Processes that a bench starts and measures from outside, and how it tells what it measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

READY_WITHIN_S = 300.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_START_S = 60.0
_STOP_S = 20.0


class BenchError(Exception):
    """A process of the bench did not do its part."""


@contextmanager
def process_of(command: list[str], out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command with its output in `<out>.out` and `<out>.err`; ended on the way out."""
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


def wait_for(look: Callable[[], str], process: subprocess.Popen[bytes], out: Path) -> str:
    """The first answer of `look` that is not empty. Raises BenchError when the process ends first."""
    deadline = time.monotonic() + _START_S
    while not (found := look()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"{out.name} did not start: {tail_of(Path(f'{out}.err'))}")
        time.sleep(0.1)
    return found


def seconds_until_ready(http: httpx.Client, num_nodes: int, process: subprocess.Popen[bytes], out: Path) -> float:
    """How long it took until the controller at `http` has so many ready nodes. Raises BenchError when it ends first, or
    they are not ready in time."""
    began = time.monotonic()
    while (ready := _num_ready(http)) < num_nodes:
        if process.poll() is not None or time.monotonic() - began > READY_WITHIN_S:
            raise BenchError(f"{ready} of {num_nodes} nodes are ready: {tail_of(Path(f'{out}.err'))}")
        time.sleep(0.5)
    return time.monotonic() - began


def _num_ready(http: httpx.Client) -> int:
    try:
        return int(http.get("/v1/status").json()["nodes_ready"])
    except httpx.HTTPError:  # it starts
        return 0


def print_measured(what: str, measure: Callable[[Path], Mapping[str, Any]]) -> bool:
    """Print what `measure` finds, in a folder that is thrown away, as one JSON line; False when a process failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes are stopped on the way out
    with tempfile.TemporaryDirectory(prefix=f"bench-{what}-") as folder:
        try:
            row = measure(Path(folder))
        except BenchError as error:
            sys.stderr.write(f"error: {error}\n")
            return False
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()
    return True


def cpu_s_of(process: subprocess.Popen[bytes]) -> float:
    """CPU seconds that the process has used, user and system."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def memory_mb_of(process: subprocess.Popen[bytes], field: str) -> float:
    """A memory field of /proc/PID/status (VmRSS, VmHWM) in MB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise BenchError(f"/proc/{process.pid}/status has no {field}")


def lines_of(path: Path) -> list[str]:
    """Whole lines."""
    return path.read_text().split("\n")[:-1]


def tail_of(path: Path) -> str:
    """The last 500 characters of the file, on one line."""
    return " ".join(path.read_text(errors="replace").split())[-500:]
