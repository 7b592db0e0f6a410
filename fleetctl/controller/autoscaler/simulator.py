"""The simulator as a child process: the control plane imports no engine. Where there is none, nothing is predicted."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import structlog

from fleetctl.controller.autoscaler.unknown import Unknown

log = structlog.get_logger()

DEADLINE_S = 8.0  # below the patience of clients, who wait for a dry run
MAX_ANSWER_BYTES = 1 << 20
MODULE = "engine.simulation"
MAX_AT_ONCE = 2


class Simulator:
    """Starts `python -m engine.simulation` for each question and ends it at its deadline."""

    def __init__(self, *, deadline_s: float = DEADLINE_S, command: Sequence[str] | None = None) -> None:
        """`command` replaces the engine's module."""
        self._deadline_s = deadline_s
        self._command = command
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)

    async def simulate(self, scenario: Mapping[str, Any], *lines: Mapping[str, Any]) -> dict[str, Any] | Unknown:
        """The last answer of a simulation: `engine.simulation.scenario` has its fields. Without lines: to its end."""
        if self._command is None and find_spec("engine") is None:
            return Unknown("no simulator here: the engine package is not installed")
        command = self._command or (sys.executable, "-m", MODULE)
        text = "".join(json.dumps(line) + "\n" for line in (scenario, *(lines or ({},))))
        async with self._at_once:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=MAX_ANSWER_BYTES,
            )
            try:
                async with asyncio.timeout(self._deadline_s):
                    answers, errors = await process.communicate(text.encode())
            except TimeoutError:
                return Unknown(f"the simulation took longer than {self._deadline_s:g} s")
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        return _last_answer(answers, errors, process.returncode)


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
