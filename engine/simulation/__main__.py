"""`python -m engine.simulation`: a scenario as JSON on the first line, an `Advance` on each further one.

Each line is answered by one line: an `Outcome`, or `{"error": ...}` and the end (exit code 2). Nice, and bounded in
CPU time, memory and input, whatever the caller does.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import BinaryIO

import msgspec

from engine.simulation.fleet import SimulatedFleet
from engine.simulation.scenario import Advance, BadScenarioError, Failed, Scenario

MAX_LINE_BYTES = 32 << 20
MAX_MEMORY_BYTES = 2 << 30
MAX_CPU_S = 600
NICENESS = 10
EXIT_BAD_INPUT = 2


def main(lines: BinaryIO, answers: BinaryIO) -> int:
    """Returns the exit code."""
    fleet: SimulatedFleet | None = None
    while line := lines.readline(MAX_LINE_BYTES + 1):
        try:
            if len(line) > MAX_LINE_BYTES:
                raise BadScenarioError(f"a line of more than {MAX_LINE_BYTES} bytes")
            if fleet is None:
                fleet = SimulatedFleet(msgspec.json.decode(line, type=Scenario))
                continue
            outcome = fleet.advance(msgspec.json.decode(line, type=Advance))
        except (BadScenarioError, msgspec.DecodeError) as error:
            answers.write(msgspec.json.encode(Failed(str(error))) + b"\n")
            answers.flush()
            return EXIT_BAD_INPUT
        answers.write(msgspec.json.encode(outcome) + b"\n")
        answers.flush()
    return 0


def limit_process() -> None:
    """Give way to everything else, and end rather than take more than a simulation may."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))


if __name__ == "__main__":
    limit_process()
    sys.exit(main(sys.stdin.buffer, sys.stdout.buffer))
