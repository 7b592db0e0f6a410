"""`python -m fleetctl.bench.cockpit_bench`: the cockpit on a terminal over many nodes, seen from outside.

`fleetctl top` runs on a terminal of its own (a pty). What is measured: how long after a key the terminal gets its first
bytes, the CPU and memory of the process while nobody presses one, and how much it is sent of nodes; with `--hours 8`,
its memory over a shift. With `--lists` the controller has no stream of nodes: they are read as lists.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from fleetctl.bench.cockpit_side import BYTES, POLLS, SCRAPED_EVERY_S
from fleetctl.bench.measured import BenchError, cpu_s_of, memory_mb_of, print_measured, process_of, wait_for
from fleetctl.bench.report import describe_machine
from fleetctl.tui.app import POLL_EVERY_S

COLUMNS, LINES = 200, 60
STARTS_WITHIN_S = 60.0
ANSWERED_WITHIN_S = 10.0
SPEED = 60
QUIET_S = 0.05  # the terminal has got nothing for as long: what was drawn before the key is out
KEYS = ("\x1b[B", "\x1b[B", "\x1b[6~", "\x1b[A", "o", "b", "\x1b[F", "\x1b[H", "b", "b", "b", "o")
"""Down, down, a page down, up, another order, another group, the end, the beginning, and the groups again."""


@contextmanager
def on_a_terminal(command: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process, and our end of its terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.terminate()
        process.wait(20)
        os.close(ours)


def read_until_quiet(terminal: int, within_s: float) -> bytes:
    """What comes until nothing came for a moment."""
    found, deadline = b"", time.monotonic() + within_s
    while time.monotonic() < deadline and select.select([terminal], [], [], QUIET_S)[0]:
        found += os.read(terminal, 1 << 16)
    return found


def wait_for_screen(terminal: int, text: bytes) -> None:
    """Raises BenchError when the text is not drawn in time."""
    seen, deadline = b"", time.monotonic() + STARTS_WITHIN_S
    while text not in seen:
        if time.monotonic() > deadline:
            raise BenchError(f"{text!r} was not drawn within {STARTS_WITHIN_S:.0f} s: {seen[-500:]!r}")
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 1 << 16)


def answer_s(terminal: int, key: str) -> float:
    """Seconds from a key to the first bytes that the terminal gets."""
    read_until_quiet(terminal, ANSWERED_WITHIN_S)
    pressed = time.monotonic()
    os.write(terminal, key.encode())
    if not select.select([terminal], [], [], ANSWERED_WITHIN_S)[0]:
        raise BenchError(f"no answer to {key!r} within {ANSWERED_WITHIN_S:.0f} s")
    return time.monotonic() - pressed


def idle(process: subprocess.Popen[bytes], terminal: int, seconds: float) -> float:
    """The share of a core that it takes while nobody presses a key."""
    cpu_s, from_s = cpu_s_of(process), time.monotonic()
    while time.monotonic() - from_s < seconds:
        if select.select([terminal], [], [], 0.5)[0]:
            os.read(terminal, 1 << 16)
    return (cpu_s_of(process) - cpu_s) / (time.monotonic() - from_s)


def measure(num_nodes: int, presses: int, seconds: float, lists: bool, folder: Path) -> dict[str, Any]:
    """One size. `lists`: without the stream of nodes. Raises BenchError."""
    side = [sys.executable, "-m", "fleetctl.bench.cockpit_side", "--nodes", str(num_nodes)]
    side += ["--lists"] if lists else []
    with process_of(side, folder / "side") as controller:
        url = wait_for(lambda: (folder / "side.out").read_text().strip(), controller, folder / "side")
        command = ["-m", "fleetctl.cli", "--controller", url, "--state-dir", str(folder / "state"), "top"]
        with on_a_terminal([sys.executable, *command]) as (process, terminal):
            wait_for_screen(terminal, b"Nothing hurts")
            idle(process, terminal, 8.0)  # all events come
            on_now = idle(process, terminal, seconds)
            os.write(terminal, b"gf")
            wait_for_screen(terminal, b"pool pool-0")
            idle(process, terminal, 5.0)
            sent, from_s = int(httpx.get(f"{url}{BYTES}").text), time.monotonic()
            on_fleet = idle(process, terminal, seconds)
            sent, turns = int(httpx.get(f"{url}{BYTES}").text) - sent, (time.monotonic() - from_s) / POLL_EVERY_S
            took = sorted(answer_s(terminal, KEYS[number % len(KEYS)]) for number in range(presses))
            return {
                "nodes": num_nodes,
                "nodes_by": "lists" if lists else "stream",
                "keys": presses,
                "key_p50_ms": round(took[len(took) // 2] * 1000, 1),
                "key_p99_ms": round(took[min(len(took) - 1, int(len(took) * 0.99))] * 1000, 1),
                "key_max_ms": round(took[-1] * 1000, 1),
                "idle_now_core": round(on_now, 4),
                "idle_fleet_core": round(on_fleet, 4),
                "kb_per_refresh": round(sent / turns / 1000, 1),
                "memory_mb": round(memory_mb_of(process, "VmRSS")),
            }


def measure_memory(num_nodes: int, hours: float, folder: Path) -> dict[str, Any]:
    """Memory of the cockpit over so many hours, `SPEED` times as fast, at each eighth of them. Raises BenchError.

    An hour is as many changes of the nodes as it has: a machine that can't keep up takes longer and hears no fewer.
    """
    side = [sys.executable, "-m", "fleetctl.bench.cockpit_side", "--nodes", str(num_nodes), "--speed", str(SPEED)]
    polls = int(hours * 3600 / SCRAPED_EVERY_S)
    with process_of(side, folder / "side") as controller:
        url = wait_for(lambda: (folder / "side.out").read_text().strip(), controller, folder / "side")
        command = [sys.executable, "-m", "fleetctl.bench.cockpit_hurried", url, str(SPEED)]
        with on_a_terminal(command) as (process, terminal), httpx.Client(base_url=url) as http:
            wait_for_screen(terminal, b"Nothing hurts")
            os.write(terminal, b"gf")
            found = []
            for eighth in range(1, 9):
                while int(http.get(POLLS).text) < polls * eighth / 8:
                    idle(process, terminal, 0.5)
                found.append(round(memory_mb_of(process, "VmRSS"), 1))
                sys.stderr.write(f"{hours * eighth / 8:.1f} h: {found[-1]} MB\n")
            return {"nodes": num_nodes, "hours": hours, "polls": polls, "memory_mb": found}


def main() -> int:
    """Print one JSON line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, action="append", help="a size; default: 100 and 1,000")
    parser.add_argument("--presses", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long it is watched while idle, on each screen")
    parser.add_argument("--lists", action="store_true", help="nodes are told in lists alone, not by a stream")
    parser.add_argument("--hours", type=float, help=f"instead: memory over so many hours, {SPEED} times as fast")
    given = parser.parse_args()
    sys.stderr.write(f"{describe_machine()}\n")
    if given.hours:
        work = [partial(measure_memory, num_nodes, given.hours) for num_nodes in given.nodes or (100,)]
    else:
        sizes = given.nodes or (100, 1000)
        work = [partial(measure, num_nodes, given.presses, given.seconds, given.lists) for num_nodes in sizes]
    done = [print_measured("cockpit", one) for one in work]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
