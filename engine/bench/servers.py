"""Servers that are measured as their users run them: as processes, over HTTP."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 20.0
MODEL_NAME = "bench"


class ServerError(RuntimeError):
    """A server did not start; the message holds the end of what it said."""


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    version: str
    command: tuple[str, ...]  # {port} is filled in
    ready_path: str
    environment: tuple[tuple[str, str], ...] = ()


def our_node(model: Path, dtype: str, num_threads: int | None, version: str) -> Server:
    command = [sys.executable, "-m", "engine", "serve", "--model", str(model), "--served-model-name", MODEL_NAME]
    command += ["--dtype", dtype, "--port", "{port}", "--max-num-seqs", "32", "--log-level", "WARNING"]
    if num_threads is not None:
        command += ["--num-threads", str(num_threads)]
    return Server("fleetctl", version, tuple(command), "/health/ready")


def vllm_server(model: Path, dtype: str) -> Server | str:
    """vLLM's server, or why it is left out."""
    program = os.environ.get("VLLM") or shutil.which("vllm")
    if program is None:
        return "vLLM: no `vllm` on PATH (or in VLLM); install its CPU wheel in an environment of its own"
    command: tuple[str, ...] = (
        program,
        "serve",
        str(model),
        "--served-model-name",
        MODEL_NAME,
        "--dtype",
        dtype,
        "--port",
        "{port}",
    )
    command += ("--max-num-seqs", "32", "--max-model-len", "4096")
    return Server("vLLM", _version_of((program, "--version")), command, "/health", (("VLLM_CPU_KVCACHE_SPACE", "2"),))


def llama_server(gguf: Path, num_threads: int) -> Server | str:
    """llama.cpp's server, or why it is left out."""
    program = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if program is None:
        return "llama.cpp: no `llama-server` on PATH (or in LLAMA_SERVER)"
    command: tuple[str, ...] = (
        program,
        "-m",
        str(gguf),
        "--alias",
        MODEL_NAME,
        "--port",
        "{port}",
        "--host",
        "127.0.0.1",
    )
    # Room for 32 sequences of 1,024 tokens; one cache for all, so that few requests may be long.
    command += ("-np", "32", "-c", str(32 * 1024), "--kv-unified", "-t", str(num_threads), "--no-webui")
    return Server("llama.cpp", _version_of((program, "--version")), command, "/health")


@contextlib.contextmanager
def running(server: Server) -> Iterator[str]:
    """Starts the server, waits until it is ready, gives its address, stops it. Raises ServerError."""
    port = _free_port()
    command = [part.replace("{port}", str(port)) for part in server.command]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **dict(server.environment)},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_ready(process, url + server.ready_path, said.fileno())
            yield url
        finally:
            _stop(process)


def _wait_ready(process: subprocess.Popen[bytes], url: str, said: int) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5.0).status_code == 200:
                return
        time.sleep(0.2)
    size = os.fstat(said).st_size
    tail = os.pread(said, 2000, max(size - 2000, 0)).decode(errors="replace")
    raise ServerError(f"{process.args!r} did not become ready; it said:\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _version_of(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "version" in line or line[:1].isdigit()]
    return lines[-1].removeprefix("version:").strip() if lines else "unknown"
