"""`python -m fleetctl.bench.cockpit_bench`: the cockpit on a terminal over many nodes, seen from outside.

`fleetctl top` runs on a terminal of its own (a pty). What is measured: how long after a key the terminal gets its first
bytes, and the CPU and memory of the process while nobody presses one.
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

from fleetctl.bench.measured import BenchError, cpu_s_of, memory_mb_of, print_measured, process_of, wait_for
from fleetctl.bench.report import describe_machine

COLUMNS, LINES = 200, 60
STARTS_WITHIN_S = 60.0
ANSWERED_WITHIN_S = 10.0
QUIET_S = 0.05  # the terminal has got nothing for as long: what was drawn before the key is out
KEYS = ("\x1b[B", "\x1b[B", "\x1b[6~", "\x1b[A", "o", "b", "\x1b[F", "\x1b[H", "b", "b", "b", "o")
"""Down, down, a page down, up, another order, another group, the end, the beginning, and the groups again."""


@contextmanager
def cockpit_on_a_terminal(url: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process, and our end of its terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "fleetctl.cli", "--controller", url, "--state-dir", str(folder / "state"), "top"]
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


def measure(num_nodes: int, presses: int, seconds: float, folder: Path) -> dict[str, Any]:
    """One size. Raises BenchError."""
    side = [sys.executable, "-m", "fleetctl.bench.cockpit_side", "--nodes", str(num_nodes)]
    with process_of(side, folder / "side") as controller:
        url = wait_for(lambda: (folder / "side.out").read_text().strip(), controller, folder / "side")
        with cockpit_on_a_terminal(url, folder) as (process, terminal):
            wait_for_screen(terminal, b"Nothing hurts")
            idle(process, terminal, 8.0)  # all events come
            on_now = idle(process, terminal, seconds)
            os.write(terminal, b"gf")
            wait_for_screen(terminal, b"pool pool-0")
            idle(process, terminal, 5.0)
            on_fleet = idle(process, terminal, seconds)
            took = sorted(answer_s(terminal, KEYS[number % len(KEYS)]) for number in range(presses))
            return {
                "nodes": num_nodes,
                "keys": presses,
                "key_p50_ms": round(took[len(took) // 2] * 1000, 1),
                "key_p99_ms": round(took[min(len(took) - 1, int(len(took) * 0.99))] * 1000, 1),
                "key_max_ms": round(took[-1] * 1000, 1),
                "idle_now_core": round(on_now, 4),
                "idle_fleet_core": round(on_fleet, 4),
                "memory_mb": round(memory_mb_of(process, "VmRSS")),
            }


def main() -> int:
    """Print one JSON line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, action="append", help="a size; default: 100 and 1,000")
    parser.add_argument("--presses", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long it is watched while idle, on each screen")
    given = parser.parse_args()
    sys.stderr.write(f"{describe_machine()}\n")
    done = [
        print_measured("cockpit", partial(measure, num_nodes, given.presses, given.seconds))
        for num_nodes in given.nodes or (100, 1000)
    ]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
