"""`python -m fleetctl.bench.serve`: many nodes' metrics and health in one small HTTP server process.

Node n answers at /<n>/metrics and /<n>/health/*; with `--addresses N` also at the root of N addresses of loopback
(`address_of`), as nodes do that somebody else started.

Texts are made before the first request, so that what it costs to make them is nobody's measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import cast

import uvloop

from fleetctl.bench.expositions import NodeExposition
from fleetctl.bench.workload import ENGINE_OF, INTERVAL_S, NUM_KINDS

_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\r\n"
_READY_BODY = b'{"ready": true, "reason": "ready", "since": 1700000000.0, "age_s": 1.0}'
_READY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_READY_BODY)
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
_MAX_REQUEST_BYTES = 16 * 1024


def address_of(number: int) -> str:
    """Of node `number` when each has an address of its own: all of 127.0.0.0/8 is this machine."""
    return f"127.{1 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"


class _Connection(asyncio.Protocol):
    def __init__(self, texts: list[list[bytes]], started_at: float) -> None:
        self._texts, self._started_at = texts, started_at
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        _, first, second, third = (int(part) for part in transport.get_extra_info("sockname")[0].split("."))
        self._own_number = 62_500 * (first - 1) + 250 * second + third - 1  # the inverse of `address_of`

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while b"\r\n\r\n" in self._rest:
            request, _, self._rest = self._rest.partition(b"\r\n\r\n")
            self._transport.write(self._answer(request))
        if len(self._rest) > _MAX_REQUEST_BYTES:
            self._transport.close()

    def _answer(self, request: bytes) -> bytes:
        path = request.split(b" ", 2)[1]
        number, _, rest = path.strip(b"/").partition(b"/")
        if not number.isdigit():
            if self._own_number < 0:
                return _NOT_FOUND
            number, rest = b"%d" % self._own_number, path.strip(b"/")
        if rest.startswith((b"health", b"ready", b"v1/", b"v2/")):
            return _READY + _READY_BODY
        texts = self._texts[int(number) % NUM_KINDS]
        slot = int((time.monotonic() - self._started_at) / INTERVAL_S)
        return texts[min(slot, len(texts) - 1)]


async def _serve(seconds: float, *, is_full: bool, addresses: int) -> None:
    count = int(seconds / INTERVAL_S) + 2
    texts = []
    for kind in range(NUM_KINDS):
        node = NodeExposition(ENGINE_OF[kind % len(ENGINE_OF)], kind, is_full=is_full)
        bodies = [node.next_text().encode() for _ in range(count)]
        texts.append([_HEAD.format(len(body)).encode() + body for body in bodies])
    started_at = time.monotonic()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(texts, started_at), "127.0.0.1", 0, backlog=8192
    )
    port = server.sockets[0].getsockname()[1]
    if addresses:
        hosts = [address_of(number) for number in range(addresses)]
        await asyncio.get_running_loop().create_server(lambda: _Connection(texts, started_at), hosts, port)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.sleep(seconds + 60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m fleetctl.bench.serve")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--addresses", type=int, default=0)
    args = parser.parse_args()
    uvloop.run(_serve(args.seconds, is_full=args.full, addresses=args.addresses))
