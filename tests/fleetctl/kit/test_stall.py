"""Time in which the process stood still, and that it is counted as nobody's silence."""

from __future__ import annotations

import asyncio

import pytest

from fleetctl.kit.fetch import Fetcher
from fleetctl.kit.stall import LONG_S, StallMonitor

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Passing:
    """Seconds of a monotonic clock that a test lets pass."""

    def __init__(self) -> None:
        self.stopped_s = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.stopped_s


async def test_time_that_passes_between_two_ticks_is_a_stall() -> None:
    passing = Passing()
    stalls = StallMonitor(passing.now)
    stalls.start()
    passing.stopped_s += 60
    assert stalls.stalled_s == pytest.approx(60, abs=5)
    assert stalls.long_s == pytest.approx(60, abs=5)
    once = stalls.stalled_s
    assert stalls.stalled_s - once < LONG_S  # counted once
    stalls.stop()


async def test_answer_that_came_while_we_stood_still_is_read_though_its_time_is_over() -> None:
    passing, answers = Passing(), asyncio.Event()
    stalls = StallMonitor(passing.now)
    stalls.start()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        passing.stopped_s += 60  # the asker is stopped for a minute just now, and its time runs out
        await answers.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nx 1\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    fetcher = Fetcher(timeout_s=2.0, max_bytes=100, stalls=stalls)
    asyncio.get_running_loop().call_later(2.5, answers.set)
    fetched = await fetcher.fetch(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics")
    assert fetched.text == "x 1\n"
    await fetcher.close()
    stalls.stop()
    server.close()
