"""The simulator as a child process: the control plane imports no engine. Where there is none, nothing is predicted."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import structlog

from fleetctl import bundled
from fleetctl.controller.autoscaler.unknown import Unknown
from fleetctl.kit.errors import FleetctlError

log = structlog.get_logger()

DEADLINE_S = 10.0  # below the patience of clients, who wait for a dry run
MAX_ANSWER_BYTES = 1 << 20
MODULE = "engine.simulation"
NO_SIMULATOR = "no simulator here: the engine package is not installed"
MAX_AT_ONCE = 2


class Simulation:
    """A simulation that goes on from line to line, for a caller that decides between them."""

    def __init__(self, process: asyncio.subprocess.Process, deadline_s: float) -> None:
        self._process = process
        self._deadline_s = deadline_s

    async def tell(self, line: Mapping[str, Any]) -> None:
        """Send a line that has no answer: the scenario."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        await self._process.stdin.drain()

    async def ask(self, line: Mapping[str, Any]) -> dict[str, Any] | Unknown:
        """Send an advance; its outcome, or why there is none."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(self._deadline_s):
                await self.tell(line)
                answer = await self._process.stdout.readline()
        except (TimeoutError, ConnectionError):
            answer = b""
        return _last_answer(answer, b"the simulator ended, or took too long", 0 if answer else 1)


class Simulator:
    """Starts `python -m engine.simulation` for each question and ends it at its deadline."""

    def __init__(self, *, deadline_s: float = DEADLINE_S, command: Sequence[str] | None = None) -> None:
        """`command` replaces the engine's module."""
        self._deadline_s = deadline_s
        self._command = command
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)

    async def simulate(self, scenario: Mapping[str, Any], *lines: Mapping[str, Any]) -> dict[str, Any] | Unknown:
        """The last answer of a simulation: `engine.simulation.scenario` has its fields. Without lines: to its end.

        With several lines, the last answer that came before the deadline: a busy machine gets fewer requests simulated.
        """
        if not self._is_here:
            return Unknown(NO_SIMULATOR)
        text = "".join(json.dumps(line) + "\n" for line in (scenario, *(lines or ({},))))
        answer, errors, is_late = b"", b"", False
        async with self._at_once, self._process(stderr=asyncio.subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                async with asyncio.timeout(self._deadline_s):
                    process.stdin.write(text.encode())
                    process.stdin.write_eof()
                    while line := await process.stdout.readline():
                        answer = line
                    errors = await process.stderr.read()
                    await process.wait()
            except TimeoutError:
                is_late = True
            except ConnectionError:
                errors = await process.stderr.read()
        if is_late and not answer:
            return Unknown(f"the simulation took longer than {self._deadline_s:g} s")
        return _last_answer(answer, errors, 0 if is_late else process.returncode)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Simulation]:
        """A simulation that stays open. Raises FleetctlError where there is no simulator."""
        if not self._is_here:
            raise FleetctlError(NO_SIMULATOR, remedy="install the engine package, or run it in a clone")
        async with self._process() as process:
            yield Simulation(process, self._deadline_s)

    @property
    def _is_here(self) -> bool:
        return self._command is not None or find_spec("engine") is not None

    @asynccontextmanager
    async def _process(self, *, stderr: int | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
        """A simulator that ends with the block."""
        process = await asyncio.create_subprocess_exec(
            *(self._command or (sys.executable, "-m", MODULE)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            limit=MAX_ANSWER_BYTES,
            env=bundled.environment(),
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _last_answer(answers: bytes, errors: bytes, status: int | None) -> dict[str, Any] | Unknown:
    lines = answers.splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        answer = None
    if status == 0 and isinstance(answer, dict):
        return answer
    words = answer["error"] if isinstance(answer, dict) and "error" in answer else errors.decode(errors="replace")
    last = words.strip().splitlines()[-1][:200] if words.strip() else f"exit status {status}"
    log.warning("simulator.failed", status=status, error=last)
    return Unknown(f"the simulator failed: {last}")
