"""What is left of a node before it is restarted or replaced: one file of log, requests, metrics, stacks and GPUs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.controller.nodes.engine_calls import EngineCalls
from fleetctl.kit.clock import Clock
from fleetctl.providers.provider import HasProcesses, NodeProvider
from runbooks.ports import PermanentError, Receipt

PART_LIMIT_S = 10.0
MAX_PART_CHARS = 512 * 1024
LOG_LINES = 2000
_SAFE_NAME = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Writes below `folder`: of an incident into its folder, else into `evidence`."""

    folder: Path
    provider: NodeProvider
    engine: EngineCalls
    clock: Clock

    async def collect(self, name: str, incident_id: str | None, key: str) -> Receipt:
        """Each part within its time and size; one that could not be got says why. Raises PermanentError when the file
        can't be written."""
        parts: dict[str, Callable[[], Awaitable[object]]] = {
            "log": lambda: self._log(name),
            "requests": lambda: self.engine.held_requests(name),
            "health": lambda: self._get(name, "/health/deep"),
            "metrics": lambda: self._get(name, "/metrics"),
            "processes": lambda: asyncio.to_thread(self._processes, name),
            "stacks": lambda: self._stacks(name),
            "gpus": lambda: _output_of("nvidia-smi", "-q"),
        }
        found = dict(zip(parts, await asyncio.gather(*(_part(get) for get in parts.values())), strict=True))
        missing = {part: one["missing"] for part, one in found.items() if "missing" in one}
        document = {"node": name, "at": self.clock.now(), "incident": incident_id, "parts": found}
        own = self.folder / _SAFE_NAME.sub("_", incident_id) if incident_id else self.folder / "evidence"
        file = own / f"evidence-{_SAFE_NAME.sub('_', name)}-{_SAFE_NAME.sub('_', key)}.json"
        try:
            size = await asyncio.to_thread(_write, file, document)
        except OSError as error:
            raise PermanentError(f"{file}: {error.strerror}") from error
        got = [part for part in found if part not in missing]
        told = f"{file}: {', '.join(got)}" + "".join(f"; no {part}: {why}" for part, why in missing.items())
        return {"file": str(file), "bytes": size, "parts": got, "missing": missing, "told": told}

    async def _log(self, name: str) -> object:
        lines = (await asyncio.to_thread(self.provider.read_logs, name, lines=LOG_LINES)).lines
        return "\n".join(lines)

    async def _get(self, name: str, path: str) -> object:
        return await self.engine.page(name, path)

    def _processes(self, name: str) -> object:
        return [_process_facts(pid) for pid in self._pids(name)]

    async def _stacks(self, name: str) -> object:
        stacks = {}
        for pid in await asyncio.to_thread(self._pids, name):
            stacks[str(pid)] = await _output_of("py-spy", "dump", "--nonblocking", "--pid", str(pid))
        return stacks

    def _pids(self, name: str) -> list[int]:
        pids = self.provider.process_ids(name) if isinstance(self.provider, HasProcesses) else []
        if not pids:
            raise PermanentError("it has no process on this machine")
        return pids[:16]


async def _part(get: Callable[[], Awaitable[object]]) -> dict[str, Any]:
    try:
        async with asyncio.timeout(PART_LIMIT_S):
            content = await get()
    except TimeoutError:
        return {"missing": f"not there after {PART_LIMIT_S:g} s"}
    except Exception as error:  # noqa: BLE001 - whatever keeps one part must not keep the others
        return {"missing": str(error) or type(error).__name__}
    if isinstance(content, str) and len(content) > MAX_PART_CHARS:
        return {"content": content[-MAX_PART_CHARS:], "cut": "only its end is kept"}
    return {"content": content}


async def _output_of(program: str, *arguments: str) -> str:
    """What a program says, of the PATH or of our own environment. Raises PermanentError: not there, or it failed."""
    path = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if path is None:
        raise PermanentError(f"{program} is not installed where the controller runs")
    process = await asyncio.create_subprocess_exec(
        path,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()  # its end, and its pipe's: else both stay open for a while
    said = output.decode(errors="replace")
    if process.returncode:
        raise PermanentError(f"{program}: exit code {process.returncode}: {said[-300:].strip()}")
    return said[:MAX_PART_CHARS]


def _process_facts(pid: int) -> dict[str, object]:
    """What the kernel says without asking the process: also of one that is stopped or hangs in a driver."""
    facts: dict[str, object] = {"pid": pid}
    for fact in ("cmdline", "status", "wchan", "stack"):
        try:
            text = Path(f"/proc/{pid}/{fact}").read_text(errors="replace").replace("\x00", " ")
        except OSError as error:
            text = f"can't be read: {error.strerror}"
        facts[fact] = text[:4000]
    return facts


def _write(file: Path, document: dict[str, Any]) -> int:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, default=str)
    partial = file.with_suffix(".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
    partial.replace(file)
    return len(text)
