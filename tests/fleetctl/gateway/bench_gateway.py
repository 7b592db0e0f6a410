"""What the gateway costs beside its peers, over the same mock back ends in one run. Not a test: `make bench-gateway`.

    python tests/fleetctl/gateway/bench_gateway.py [--requests 20000] [--streams 1500] [--clients 64] [--peers FOLDER]

Four mock back ends and the clients share one process; a proxy's CPU time, children included, is read
from /proc. `--peers` is a virtual environment with vllm-router, sglang-router and litellm; others are not measured.
CPU time stands busy neighbours, waiting times do not: "direct", the back ends without a proxy, is the ground of both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httptools
import uvloop

from fleetctl.gateway.compiled import CHOICE, is_current
from fleetctl.gateway.life import run_gateway
from fleetctl.gateway.nodes.table import FILE_NAME, Table, store_table
from fleetctl.kit.log import configure_logging
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.wire.routing import Route, RouteState, RoutingTable

TOKENS = 64
PAYLOAD = json.dumps(
    {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}]}
).encode()
CHUNK = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":" word"},"token_ids":[17]}]}\n\n'


class MockNode(asyncio.Protocol):
    """Answers every request: whole, or as a stream of TOKENS frames, each in its own write."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()  # some peers ask for HTTP/2 first

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        # A router that reads bodies may write them anew.
        is_stream, self.body = b'"stream":true' in self.body.replace(b" ", b""), b""
        if is_stream:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            self.left = TOKENS
            asyncio.get_running_loop().call_later(0.01, self.next)
        else:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(PAYLOAD)
            self.transport.write(head + PAYLOAD)

    def next(self) -> None:
        if self.transport.is_closing():
            return
        data = CHUNK if self.left else b"data: [DONE]\n\n"
        tail = b"" if self.left else b"0\r\n\r\n"
        self.transport.write(b"%x\r\n%s\r\n%s" % (len(data), data, tail))
        if self.left:
            self.left -= 1
            asyncio.get_running_loop().call_later(0.01, self.next)


class Client(asyncio.Protocol):
    def __init__(self, raw: bytes, count: int, done: asyncio.Future[None], firsts: list[float]) -> None:
        self.raw, self.count, self.done, self.firsts = raw, count, done, firsts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)
        self.send()

    def send(self) -> None:
        self.sent_at: float | None = time.perf_counter()
        self.transport.write(self.raw)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        if self.sent_at is not None:
            self.firsts.append(time.perf_counter() - self.sent_at)
            self.sent_at = None

    def on_message_complete(self) -> None:
        if (status := self.parser.get_status_code()) != 200:
            self.done.set_exception(RuntimeError(f"answered {status}"))
            self.transport.close()
            return
        self.count -= 1
        if self.count > 0:
            asyncio.get_running_loop().call_soon(self.again)
        else:
            self.transport.close()
            self.done.set_result(None)

    def again(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.send()


def cpu_s(pid: int) -> float:
    """Of a process and its children, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_s(int(child)) for child in children)


@dataclass
class Result:
    """One load on one proxy."""

    cpu_us: float
    per_s: float
    p50_ms: float
    p99_ms: float


async def measure(port: int, pid: int, stream: bool, total: int, clients: int, prompt_bytes: int = 340) -> Result:
    messages = [
        {"role": "system", "content": "You are helpful. " * (prompt_bytes // 17)},
        {"role": "user", "content": "hi"},
    ]
    body = json.dumps({"model": "demo", "messages": messages, "max_tokens": 64, "stream": stream}).encode()
    raw = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
    raw += b"Authorization: Bearer key\r\nUser-Agent: bench\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    loop = asyncio.get_running_loop()
    before, start = cpu_s(pid), time.perf_counter()
    dones: list[asyncio.Future[None]] = []
    firsts: list[float] = []
    for _ in range(clients):
        done = loop.create_future()
        dones.append(done)
        await loop.create_connection(lambda done=done: Client(raw, total // clients, done, firsts), "127.0.0.1", port)
    await asyncio.wait_for(asyncio.gather(*dones), 100)
    wall, cpu = time.perf_counter() - start, cpu_s(pid) - before
    firsts.sort()
    p50, p99 = (firsts[int(len(firsts) * share)] * 1e3 for share in (0.5, 0.99))
    done_count = total // clients * clients
    return Result(cpu / done_count * 1e6, done_count / wall, p50, p99)


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def call_ns() -> float:
    """What a call of a Python function takes here: builds of one version of Python differ by 1.7 times."""

    def nothing(value: int) -> int:
        return value

    rounds = []
    for _ in range(5):
        start = time.process_time()
        for value in range(200_000):
            nothing(value)
        rounds.append((time.process_time() - start) / 200_000 * 1e9)
    return min(rounds)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def gateway_main(port: int, run_dir: Path, log_level: str) -> None:
    os.dup2(os.open(run_dir / "log", os.O_WRONLY | os.O_CREAT), 2)
    configure_logging(log_level, "json")
    run_gateway(
        GatewaySettings(port=port),
        controller_url="http://127.0.0.1:1",
        controller_token=None,
        node_token="t",
        run_dir=run_dir,
    )


@contextmanager
def our_gateway(node_ports: list[int], log_level: str, *, compiled: bool = False) -> Iterator[tuple[int, int]]:
    """Port and process id of the gateway of this repository."""
    os.environ[CHOICE] = "1" if compiled else "0"
    port = free_port()
    routes = [
        Route(node=f"n{number}", url=f"http://127.0.0.1:{each}", state=RouteState.ACTIVE, model="demo")
        for number, each in enumerate(node_ports)
    ]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        store_table(run_dir / FILE_NAME, Table.from_wire(RoutingTable(version=1, routes=routes)), time.time())
        process = multiprocessing.get_context("spawn").Process(target=gateway_main, args=(port, run_dir, log_level))
        process.start()
        assert process.pid is not None
        try:
            yield port, process.pid
        finally:
            process.terminate()
            process.join(10)


@contextmanager
def program(words: list[str], port: int) -> Iterator[tuple[int, int]]:
    """A peer's port and process id."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(20)


def haproxy_words(folder: Path, port: int, node_ports: list[int]) -> list[str]:
    servers = "\n".join(f"  server n{each} 127.0.0.1:{each}" for each in node_ports)
    config = folder / "haproxy.cfg"
    config.write_text(
        "global\n  nbthread 1\ndefaults\n  mode http\n"
        "  timeout connect 2s\n  timeout client 75s\n  timeout server 600s\n"
        f"  http-reuse always\nfrontend f\n  bind 127.0.0.1:{port}\n  default_backend b\n"
        f"backend b\n  balance leastconn\n{servers}\n"
    )
    return ["haproxy", "-f", str(config), "-db"]


def litellm_words(folder: Path, port: int, node_ports: list[int], peers: Path) -> list[str]:
    config = folder / "litellm.yaml"
    models = [
        {
            "model_name": "demo",
            "litellm_params": {"model": "openai/demo", "api_base": f"http://127.0.0.1:{each}/v1", "api_key": "k"},
        }
        for each in node_ports
    ]
    config.write_text(json.dumps({"model_list": models}))
    return [str(peers / "bin/litellm"), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]


async def is_answering(port: int, limit_s: float = 60.0) -> bool:
    """Whether a request through it is answered with 200, within the limit."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            body = b'{"model": "demo", "messages": [{"role": "user", "content": "hi"}]}'
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nAuthorization: Bearer key\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            async with asyncio.timeout(10):
                first = await reader.readline()
            writer.close()
            if b" 200 " in first:
                return True
        except (OSError, TimeoutError):
            pass
        await asyncio.sleep(0.2)
    return False


def contenders(folder: Path, node_ports: list[int], peers: Path, log_level: str) -> Iterator[tuple[str, object]]:
    """Name, and a context with port and process id, or why it is not measured."""
    yield "fleetctl gateway", our_gateway(node_ports, log_level)
    compiled = our_gateway(node_ports, log_level, compiled=True)
    yield "fleetctl gateway, compiled", compiled if is_current() else "no build of this source (make compile-gateway)"
    port = free_port()
    if shutil.which("haproxy"):
        yield "HAProxy", program(haproxy_words(folder, port, node_ports), port)
    else:
        yield "HAProxy", "not installed (make debs)"
    urls = [f"http://127.0.0.1:{each}" for each in node_ports]
    for name in ("vllm-router", "sglang-router"):
        found, port = peers / "bin" / name, free_port()
        if not found.exists():
            yield name, f"not in {peers} (make bench-gateway installs it)"
            continue
        words = [
            str(found),
            *(["launch"] if name == "sglang-router" else []),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        words += ["--policy", "cache_aware", "--worker-urls", *urls]
        yield name, program(words, port)
    port = free_port()
    if (peers / "bin/litellm").exists():
        yield "LiteLLM", program(litellm_words(folder, port, node_ports, peers), port)
    else:
        yield "LiteLLM", f"not in {peers}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--streams", type=int, default=1_500)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--peers", type=Path, default=Path("/nonexistent"))
    parser.add_argument("--only", default="", help="measure only what has this in its name")
    options = parser.parse_args()
    loop = asyncio.get_running_loop()
    node_ports = []
    for _ in range(4):
        server = await loop.create_server(MockNode, "127.0.0.1", 0, backlog=1024)
        node_ports.append(server.sockets[0].getsockname()[1])
    clients, ours = options.clients, os.getpid()
    plain = await measure(node_ports[0], ours, False, options.requests // 4, clients)
    stream = await measure(node_ports[0], ours, True, max(clients, options.streams // 4), clients)
    load = f"{clients} clients, {TOKENS} tokens a stream"
    python = f"Python {platform.python_version()} ({call_ns():.0f} ns a call)"
    print(f"{cpu_name()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {python}, {load}")
    print("| proxy | plain: us CPU | a core and s | stream: us CPU | added TTFT p50 | p99 | 400 kB prompt: us CPU |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, context in contenders(Path(folder), node_ports, options.peers, options.log_level):
            if options.only not in name:
                continue
            if isinstance(context, str):
                print(f"| {name} | not measured: {context} | | | | | |")
                continue
            with context as (port, pid):  # type: ignore[attr-defined]
                if not await is_answering(port):
                    print(f"| {name} | not measured: no answer within a minute | | | | | |")
                    continue
                try:
                    await measure(port, pid, False, min(2_000, options.requests), clients)
                    one = await measure(port, pid, False, options.requests, clients)
                    many = await measure(port, pid, True, options.streams, clients)
                    large = await measure(port, pid, False, max(64, options.requests // 50), 8, 400_000)
                except (RuntimeError, TimeoutError) as error:
                    print(f"| {name} | not measured: {error} | | | | | |")
                    continue
                added = [f"{many.p50_ms - stream.p50_ms:.1f} ms", f"{many.p99_ms - stream.p99_ms:.1f} ms"]
                cells = [name, f"{one.cpu_us:.0f}", f"{1e6 / one.cpu_us:.0f}", f"{many.cpu_us:.0f}", *added]
                print(f"| {' | '.join(cells)} | {large.cpu_us:.0f} |", flush=True)
    print(f"| direct | | {plain.per_s:.0f}/s | | {stream.p50_ms:.1f} ms | {stream.p99_ms:.1f} ms | |")


if __name__ == "__main__":
    uvloop.run(main())
