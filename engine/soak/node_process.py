"""The node under test: a process of ours, its log, and what it and its core hold of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

START_S = 170.0  # a first start on a busy machine compiles for two minutes
STOP_S = 20.0
# Small enough that traffic preempts, queues and is refused.
LIMITS = (
    *("--max-model-len", "1024", "--num-kv-blocks", "160", "--max-num-seqs", "12", "--max-num-batched-tokens", "512"),
    *("--max-num-queued-reqs", "24", "--max-body-bytes", "65536", "--golden-interval", "0.5", "--drain-timeout", "5"),
)

# All that changes how a step is computed, at once; whatever a proposal costs, as it is to be tried and not to pay.
ALL_ON = (
    *("--speculation", "ngram", "--no-adaptive-speculation", "--num-speculative-tokens", "4"),
    *("--quantization", "int8", "--kv-cache-dtype", "int8"),
    *("--swap-space", "0.01", "--num-kv-blocks", "72"),  # so few that requests are preempted
)


class NodeError(RuntimeError):
    """The node did not start, ended, or does not answer."""


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What one process holds."""

    pid: int
    rss_bytes: int
    files: int
    threads: int


def read_usage(pid: int) -> ProcessUsage:
    """Raises NodeError when there is no such process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError as error:
        raise NodeError(f"process {pid} is gone") from error
    facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return ProcessUsage(pid, int(facts["VmRSS"].split()[0]) * 1024, files, int(facts["Threads"]))


class NodeProcess:
    """`python -m engine serve` with faults enabled; use as a context."""

    def __init__(self, model: Path, directory: Path, runner: str, options: tuple[str, ...] = ()) -> None:
        self.token = secrets.token_hex(16)
        self.log_path = directory / "node.log"
        self.url = ""
        self._read_to = 0
        token_path = directory / "token"
        token_path.write_text(self.token)
        self._command = [
            *(sys.executable, "-m", "engine", "serve", "--model", str(model), "--served-model-name", "soak"),
            *("--runner", runner, "--port", "0", "--num-threads", "1", "--enable-faults"),
            *("--admin-token-file", str(token_path), "--node-name", "soak", *LIMITS, *options),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._started: list[dict[str, Any]] = []  # core.started events

    def __enter__(self) -> NodeProcess:
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def pid(self) -> int:
        """Of the API process."""
        assert self._process is not None
        return self._process.pid

    def wait_ready(self) -> None:
        """Raises NodeError."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            self.check_alive()
            if not self.url:
                self.url = next((str(e["url"]) for e in self._events() if e.get("event") == "node.listening"), "")
            elif self.is_ready():
                return
            time.sleep(0.05)
        raise NodeError(f"the node was not ready within {START_S:g} s:\n{self.log_end()}")

    def is_ready(self) -> bool:
        """Whether `/health/ready` answers 200."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health/ready", timeout=5.0).status_code == 200
        return False

    def check_alive(self) -> None:
        """Raises NodeError when the process has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise NodeError(f"the node ended with {self._process.returncode}:\n{self.log_end()}")

    def core_pid(self) -> int:
        """Of the engine core; it changes with every restart of the core."""
        return int([e for e in self._events() if e.get("event") == "core.started"][-1]["core_pid"])

    def usage(self) -> ProcessUsage:
        """What the API process holds now."""
        self.check_alive()
        return read_usage(self.pid)

    def log_end(self) -> str:
        """The last 2,000 characters of the node's log, for an error message."""
        return self.log_path.read_text(errors="replace")[-2000:]

    def new_events(self) -> list[dict[str, Any]]:
        """Log events since the last call; a line that is not complete waits for the next."""
        with self.log_path.open("rb") as log:
            log.seek(self._read_to)
            whole = log.read().rpartition(b"\n")[0]
        self._read_to += len(whole) + 1 if whole else 0
        return [_decode(line) for line in whole.splitlines() if line]

    def _events(self) -> list[dict[str, Any]]:
        return [_decode(line) for line in self.log_path.read_bytes().splitlines() if line]


def _decode(line: bytes) -> dict[str, Any]:
    """What is no event (a traceback, a library's print) is one of level error: a node should not write it."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"event": line.decode(errors="replace"), "level": "error"}
