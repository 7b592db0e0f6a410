"""`python -m fleetctl.bench.cockpit_side`: answers like a controller over many nodes, for the cockpit's bench.

Values move as often as nodes are scraped; ten thousand events are there, and one more comes every 5 s. Prints its
address. What the nodes tell comes from the controller's own feed; with `--lists` there is none, and they are asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, TypeAdapter

from fleetctl.controller.event_feed import MEDIA_TYPE, event_of
from fleetctl.controller.nodes.node_feed import News, NodeFeed
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.group import GroupLoad, GroupSignal
from fleetctl.wire.identity import CallerInfo, TokenRole
from fleetctl.wire.node import Node, NodePhase, Signal
from fleetctl.wire.pool import Pool
from fleetctl.wire.status import Status
from fleetctl.wire.timeline import TimelineEntry

SCRAPED_EVERY_S = 5.0
NUM_EVENTS = 10_000
EVENTS_AT_ONCE = 1000
ROW_POOLS = 10
POLLS = "/bench/polls"  # how often the nodes were asked for, or told
BYTES = "/bench/bytes"  # how much was told of nodes


class Answers:
    """What is told: each list made once for each scrape."""

    def __init__(self, num_nodes: int, speed: float = 1.0) -> None:
        """`speed`: how many times as fast time passes."""
        self._num_nodes = num_nodes
        self._speed = speed
        self._begun_at = time.time()
        self._num_polls = 0
        self._num_bytes = 0
        self._made: dict[str, tuple[int, bytes]] = {}

    def of(self, path: str) -> bytes | None:
        """The answer as JSON; None where there is none."""
        if path == POLLS:
            return str(self._num_polls).encode()
        if path == BYTES:
            return str(self._num_bytes).encode()
        if path == "/v1/nodes":
            self._num_polls += 1
            self._num_bytes += len(self._kept(path) or b"")
        if path == "/v1/events":
            return _listed([self._event(seq) for seq in range(1, EVENTS_AT_ONCE + 1)])
        return self._kept(path)

    def _kept(self, path: str) -> bytes | None:
        scrape = int(self._now() / SCRAPED_EVERY_S)
        known = self._made.get(path)
        if known is None or known[0] != scrape:
            made = self._make(path, scrape)
            if made is None:
                return None
            known = self._made[path] = (scrape, made)
        return known[1]

    def _make(self, path: str, scrape: int) -> bytes | None:
        match path:
            case "/v1/status":
                return self._status().model_dump_json().encode()
            case "/v1/identity":
                return CallerInfo(name="bench", role=TokenRole.ADMIN, via="bench").model_dump_json().encode()
            case "/v1/nodes":
                return _listed([_node(number, scrape) for number in range(self._num_nodes)])
            case "/v1/pools":
                return _listed([_pool(f"pool-{number}", self._num_nodes // ROW_POOLS) for number in range(ROW_POOLS)])
            case "/v1/query":
                samples = [
                    {"labels": {"node": _name(number), "pool": f"pool-{number % ROW_POOLS}"}, "value": 0.4}
                    for number in range(self._num_nodes)
                ]
                return json.dumps({"at": self._now(), "samples": samples}).encode()
            case (
                "/v1/alerts"
                | "/v1/incidents"
                | "/v1/runs"
                | "/v1/groups"
                | "/v1/rollouts"
                | "/v1/tenants"
                | "/v1/audit"
                | "/v1/autoscaler"
            ):
                return b"[]"
        return None

    def _status(self) -> Status:
        return Status(
            version="bench",
            started_at=self._begun_at,
            epoch=1,
            policy="ask",
            now=self._now(),
            nodes_ready=self._num_nodes,
            nodes_total=self._num_nodes,
            firing=0,
            open_incidents=0,
            loops={},
        )

    def stream(self, after: int) -> Iterator[bytes]:
        """Events after a number, as the controller streams them, without an end."""
        while True:
            last = self._last_seq()
            for seq in range(after + 1, last + 1):
                yield event_of(self._event(seq)).encode()
            after = max(after, last)
            time.sleep(0.2)

    def nodes(self) -> list[Node]:
        """Each as it is now."""
        now = self._now()
        scrape = int(now / SCRAPED_EVERY_S)
        return [_node(number, scrape, now % SCRAPED_EVERY_S) for number in range(self._num_nodes)]

    def node_events(self) -> Iterator[bytes]:
        """What the nodes tell, as the controller streams it, without an end."""
        told = NodeFeed(self.nodes, self).events(None, _not_held)
        with asyncio.Runner() as runner:
            while True:
                event = runner.run(_next(told)).encode()
                self._num_bytes += len(event)
                self._num_polls += event.startswith(b"id: ")
                yield event

    def now(self) -> float:
        """Unix seconds: it is the feed's clock."""
        return self._now()

    async def sleep(self, seconds: float) -> None:
        """As long by this clock."""
        await asyncio.sleep(seconds / self._speed)

    def _now(self) -> float:
        return self._begun_at + (time.time() - self._begun_at) * self._speed

    def _last_seq(self) -> int:
        return NUM_EVENTS + int((self._now() - self._begun_at) / SCRAPED_EVERY_S)

    def _event(self, seq: int) -> TimelineEntry:
        at = self._begun_at + (seq - NUM_EVENTS) * SCRAPED_EVERY_S
        return TimelineEntry(seq=seq, at=at, kind="node.ready", text=f"{_name(seq % self._num_nodes)} is ready")


async def _next(told: AsyncIterator[str]) -> str:
    return await anext(told)


async def _not_held(waiting: Awaitable[News]) -> News:
    return await waiting


def _listed(rows: list[Any]) -> bytes:
    return TypeAdapter(list[BaseModel]).dump_json(rows, serialize_as_any=True)


def _name(number: int) -> str:
    return f"node-{number:04}"


def _node(number: int, scrape: int, age_s: float = 1.0) -> Node:
    def told(value: float) -> Signal:
        return Signal(value=value * (1.0 + (number * 7 + scrape * 3) % 10 / 50), age_s=age_s)

    card = Gpu(node=_name(number), gpu="0", temperature_c=61.0, sm_clock_hz=1.41e9, throttled=[], faults=[])
    return Node(
        name=_name(number),
        url=f"http://10.0.0.1:{number}",
        phase=NodePhase.READY,
        pool=f"pool-{number % ROW_POOLS}",
        model="llama",
        zone="abc"[number % 3],
        revision="r41",
        instance="4f1c9a",
        running=told(20),
        waiting=told(2),
        kv_ratio=told(0.5),
        ttft_s=told(0.2),
        ttft_p99_s=told(0.6),
        itl_s=told(0.02),
        step_s=told(0.018),
        requests_per_s=told(3),
        first_tokens_per_s=told(3),
        tokens_per_s=told(900),
        prompt_tokens_per_s=told(2000),
        prefix_hit_ratio=told(0.4),
        preemptions_per_s=told(0),
        preemption_ratio=told(0),
        gpus=[card],
        signal_age_s=age_s,
        probe_age_s=age_s,
    )


def _pool(name: str, num_nodes: int) -> Pool:
    told = GroupSignal(value=0.5, known=num_nodes, of=num_nodes)
    load = GroupLoad(running=told, waiting=told, kv_ratio=told, tokens_per_s=told, ttft_p95_s=told)
    return Pool(name=name, model="llama", wanted=num_nodes, nodes=num_nodes, ready=num_nodes, load=load)


def handler_of(answers: Answers, *, lists: bool = False) -> type[BaseHTTPRequestHandler]:
    """A handler that tells them over kept connections. `lists`: nodes are told in lists alone."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == "/v1/events/stream":
                self._stream(answers.stream(int(self.headers.get("Last-Event-ID", "0"))))
                return
            if path == "/v1/events/nodes" and not lists:
                self._stream(answers.node_events())
                return
            body = answers.of(path)
            self.send_response(204 if path == "/v1/routing" else 404 if body is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def _stream(self, events: Iterator[bytes]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", MEDIA_TYPE)
            self.send_header("Connection", "close")
            self.end_headers()
            with suppress(OSError):  # the cockpit is gone
                for event in events:
                    self.wfile.write(event)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def main() -> None:
    """Serve until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--speed", type=float, default=1.0, help="how many times as fast time passes")
    parser.add_argument("--lists", action="store_true", help="nodes are told in lists alone")
    given = parser.parse_args()
    handler = handler_of(Answers(given.nodes, given.speed), lists=given.lists)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201
    server.serve_forever()


if __name__ == "__main__":
    main()
