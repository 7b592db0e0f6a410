"""Real serving nodes for tests: `python -m engine serve` on loopback, port 0, ended when the block ends."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from engine.make_model import make_model

TOKEN = "test-admin-token"
START_S = 60.0
_numbers = itertools.count()


@functools.cache
def tiny_model_dir() -> Path:
    """A small real model, made once for all test processes (making is atomic and idempotent)."""
    return make_model(Path(tempfile.gettempdir()) / f"engine-tests-{os.getuid()}" / "tiny")


def wait_for(condition: Callable[[], Any], what: str, within_s: float = 20.0) -> Any:
    """The first true value of `condition`; fails naming `what`."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {within_s} s for: {what}"
        time.sleep(0.01)
    return value


@dataclass
class EngineNode:
    """One running node."""

    proc: subprocess.Popen[bytes]
    log_path: Path
    url: str = ""
    token: str = TOKEN
    _client: httpx.Client | None = None

    @property
    def http(self) -> httpx.Client:
        """A client with the admin token; may be used by several threads."""
        assert self._client is not None, "the node does not listen yet"
        return self._client

    def connect(self, url: str) -> None:
        self.url = url
        headers = {"Authorization": f"Bearer {self.token}"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=60.0)

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log events of this name so far."""
        lines = [
            json.loads(line) for line in self.log_text().splitlines() if line.startswith("{") and line.endswith("}")
        ]
        return [line for line in lines if line.get("event") == name]

    def core_pid(self) -> int:
        return int(self.events("core.started")[-1]["core_pid"])

    def metric(self, name: str, **labels: str) -> float | None:
        """One sample of /metrics; None when it is not there."""
        return sample(self.http.get("/metrics").text, name, labels)

    def drain(self, deadline_s: float) -> dict[str, Any]:
        answer = self.http.post("/admin/drain", json={"deadline_s": deadline_s})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def wait_drained(self, within_s: float = 20.0) -> dict[str, Any]:
        def is_drained() -> dict[str, Any] | None:
            status = self.http.get("/admin/drain").json()
            return status if status["state"] == "drained" else None

        return dict(wait_for(is_drained, "the node to be drained", within_s))

    def wait_ready(self, within_s: float = START_S) -> None:
        wait_for(self._is_ready, f"{self.url} to be ready", within_s)

    def _is_ready(self) -> bool:
        assert self.proc.poll() is None, f"the node ended with {self.proc.returncode}:\n{self.log_text()[-3000:]}"
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health/ready", timeout=5.0).status_code == 200
        return False


def sample(text: str, name: str, labels: Mapping[str, str]) -> float | None:
    """The value of the first sample that carries all of `labels`."""
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        is_named = head == name or head.startswith(name + "{")
        if is_named and all(f'{key}="{wanted}"' in head for key, wanted in labels.items()):
            return float(value)
    return None


def spawn_node(
    tmp_path: Path,
    *,
    runner: str = "fake",
    extra_args: Sequence[str] = (),
    model_dir: Path | None = None,
    has_token: bool = True,
    has_faults: bool = True,
) -> EngineNode:
    """Starts the process and returns at once; see `start_node`."""
    number = next(_numbers)
    token_path = tmp_path / "token"
    token_path.write_text(TOKEN + "\n")
    log_path = tmp_path / f"node-{number}.log"
    command = [
        *(sys.executable, "-m", "engine", "serve"),
        *("--model", str(model_dir or tiny_model_dir())),
        *("--served-model-name", "tiny"),
        *("--runner", runner, "--port", "0", "--num-threads", "1", "--drain-timeout", "5"),
        *(("--admin-token-file", str(token_path)) if has_token else ()),
        *(("--enable-faults",) if has_faults else ()),
        *("--node-name", f"test-{number}"),
        *extra_args,
    ]
    with log_path.open("wb") as log:
        # A group of its own: a signal to the tests is not one to the node, and what is left over can be ended.
        proc = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    return EngineNode(proc, log_path)


@contextlib.contextmanager
def start_node(
    tmp_path: Path,
    *,
    runner: str = "fake",
    extra_args: Sequence[str] = (),
    model_dir: Path | None = None,
    is_ready: bool = True,
    has_token: bool = True,
    has_faults: bool = True,
) -> Iterator[EngineNode]:
    """A node that answers, and is ready unless told otherwise; `.url`, `.token`, `.proc`. `runner`: fake or torch."""
    node = spawn_node(
        tmp_path,
        runner=runner,
        extra_args=extra_args,
        model_dir=model_dir,
        has_token=has_token,
        has_faults=has_faults,
    )
    try:

        def listening() -> str | None:
            assert node.proc.poll() is None, f"the node ended with {node.proc.returncode}:\n{node.log_text()[-3000:]}"
            found = node.events("node.listening")
            return found[0]["url"] if found else None

        node.connect(wait_for(listening, "the node to listen", START_S))
        if is_ready:
            node.wait_ready()
        yield node
    finally:
        end(node)


def end(node: EngineNode) -> None:
    """Ends the node and whatever is left of its group."""
    if node._client is not None:
        node._client.close()
    if node.proc.poll() is None:
        node.proc.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.proc.wait(timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(node.proc.pid, signal.SIGKILL)
    node.proc.wait()


@dataclass
class Streamed:
    """One SSE answer, read to its end."""

    status: int
    headers: httpx.Headers
    events: list[tuple[str, Any]]  # (event name, decoded data); "[DONE]" stays text
    body: str = ""

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [
            data for name, data in self.events if name == "message" and isinstance(data, dict) and "choices" in data
        ]

    @property
    def is_done(self) -> bool:
        return ("message", "[DONE]") in self.events

    @property
    def handoff(self) -> dict[str, Any] | None:
        return next((data for name, data in self.events if name == "fleet.handoff"), None)

    @property
    def error(self) -> dict[str, Any] | None:
        return next((d["error"] for _, d in self.events if isinstance(d, dict) and "error" in d), None)

    def text(self, index: int = 0) -> str:
        return "".join(_text_of(c) for chunk in self.chunks for c in chunk["choices"] if c["index"] == index)

    def token_ids(self, index: int = 0) -> list[int]:
        mine = [c for chunk in self.chunks for c in chunk["choices"] if c["index"] == index]
        return [token for c in mine for token in c.get("token_ids", ())]

    def finish_reason(self, index: int = 0) -> str | None:
        mine = [c for chunk in self.chunks for c in chunk["choices"] if c["index"] == index]
        return next((c["finish_reason"] for c in mine if c["finish_reason"] is not None), None)


def _text_of(choice: Mapping[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")


def read_stream(
    node: EngineNode,
    path: str,
    body: Any,
    *,
    headers: Mapping[str, str] | None = None,
    on_chunk: Callable[[int], None] | None = None,
) -> Streamed:
    """Posts and reads the whole stream; `on_chunk` hears the number of data events so far."""
    with node.http.stream("POST", path, json=body, headers=dict(headers or {})) as answer:
        if answer.status_code != 200:
            return Streamed(answer.status_code, answer.headers, [], answer.read().decode())
        events: list[tuple[str, Any]] = []
        name = "message"
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = line.removeprefix("data: ")
                events.append((name, data if data == "[DONE]" else json.loads(data)))
                name = "message"
                if on_chunk is not None:
                    on_chunk(len(events))
        return Streamed(200, answer.headers, events)
