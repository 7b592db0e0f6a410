"""CPU that the gateway costs per plain request and per 64-token stream. Not a test: run it by hand.

    python tests/fleetctl/gateway/bench_gateway.py [--requests 20000] [--streams 1500] [--clients 64] [--log-level info]

Four mock back ends and the clients share one process, the gateway has its own, whose CPU time is read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import tempfile
import time
from pathlib import Path

import httptools
import uvloop

from fleetctl.gateway.app import run_gateway
from fleetctl.gateway.nodes.table import FILE_NAME, Table, store_table
from fleetctl.kit.log import configure_logging
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.wire import Route, RouteState, RoutingTable

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
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        is_stream, self.body = b'"stream": true' in self.body, b""
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
        assert self.parser.get_status_code() == 200
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
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(name: str, port: int, pid: int, stream: bool, total: int, clients: int) -> None:
    messages = [{"role": "system", "content": "You are helpful. " * 20}, {"role": "user", "content": "hello"}]
    body = json.dumps({"model": "demo", "messages": messages, "max_tokens": 64, "stream": stream}).encode()
    raw = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
    raw += b"Authorization: Bearer key\r\nUser-Agent: bench\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    loop = asyncio.get_running_loop()
    before, start = cpu_s(pid), time.perf_counter()
    dones, firsts = [], []
    for _ in range(clients):
        done = loop.create_future()
        dones.append(done)
        await loop.create_connection(lambda done=done: Client(raw, total // clients, done, firsts), "127.0.0.1", port)
    await asyncio.gather(*dones)
    wall = time.perf_counter() - start
    cpu = cpu_s(pid) - before
    firsts.sort()
    print(
        f"{name}: {cpu / total * 1e6:.0f} us CPU each, {total / wall:.0f}/s, first byte "
        f"p50 {firsts[len(firsts) // 2] * 1e3:.1f} ms, p99 {firsts[int(len(firsts) * 0.99)] * 1e3:.1f} ms"
    )


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


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--streams", type=int, default=1_500)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--log-level", default="info")
    options = parser.parse_args()
    loop = asyncio.get_running_loop()
    routes = []
    for number in range(4):
        server = await loop.create_server(MockNode, "127.0.0.1", 0, backlog=1024)
        node_port = server.sockets[0].getsockname()[1]
        routes.append(Route(node=f"n{number}", url=f"http://127.0.0.1:{node_port}", state=RouteState.ACTIVE))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        store_table(run_dir / FILE_NAME, Table.from_wire(RoutingTable(version=1, routes=routes)), time.time())
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=gateway_main, args=(port, run_dir, options.log_level))
        process.start()
        assert process.pid is not None
        try:
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                    continue
                writer.close()
                break
            await measure("warm-up", port, process.pid, False, 2_000, options.clients)
            await measure("plain", port, process.pid, False, options.requests, options.clients)
            await measure("stream", port, process.pid, True, options.streams, options.clients)
        finally:
            process.terminate()
            process.join(10)


if __name__ == "__main__":
    uvloop.run(main())
