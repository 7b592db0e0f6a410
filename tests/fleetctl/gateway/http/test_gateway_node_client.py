"""The node side over real sockets: answers of every shape, and whether a node had a request that it did not answer."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetctl.gateway.http.node_client import (
    HungUpError,
    NodeAnswer,
    NodeClient,
    NodeConnectError,
    NodeDisconnectedError,
)
from fleetctl.gateway.http.node_connection import MAX_HEAD_BYTES, MAX_HELD_BYTES, NodeConnection
from fleetctl.kit.reserved_port import reserve_port

pytestmark = pytest.mark.anyio

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def serving(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server of raw bytes; its base URL."""

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


async def body_of(answer: NodeAnswer) -> bytes:
    parts = []
    while part := await answer.read_any():
        parts.append(part)
    return b"".join(parts)


ANSWERS = {
    "length": (OK, b"ok"),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\nT: 1\r\n\r\n",
        b"ok",
    ),
    "until the connection ends": (b"HTTP/1.1 200 OK\r\n\r\nok", b"ok"),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "after continue": (b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\n" + OK, b"ok"),
    "after hints": (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\nTransfer-Encoding: chunked\r\n\r\n" + OK, b"ok"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nok", b"ok"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_of_any_framing_is_read_to_its_end(name: str) -> None:
    raw, body = ANSWERS[name]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(raw)

    async with serving(answer) as base, aclosing(NodeClient(connect_limit_s=5)) as client:
        got = await client.request("GET", base, "/x")
        assert await body_of(got) == body
        assert got.status == (204 if name == "no content" else 200)
        got.release()
        assert client.counts().open in (0, 1)


BROKEN = {
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
    "chunk cut": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok",
    "last chunk missing": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    "head cut": b"HTTP/1.1 200 OK\r\nContent-",
    "no HTTP": b"SSH-2.0-x\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "endless head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2 * MAX_HEAD_BYTES,
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_answer_is_a_node_that_had_the_request(name: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(BROKEN[name])
        await writer.drain()

    async with serving(answer) as base, aclosing(NodeClient(connect_limit_s=5)) as client:
        with pytest.raises(NodeDisconnectedError):
            await body_of(await client.request("GET", base, "/x"))


async def test_a_request_is_sent_as_it_is_given() -> None:
    seen = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await read_request(reader))
            writer.write(OK)

    async with serving(answer) as base, aclosing(NodeClient(connect_limit_s=5)) as client:
        for method, body in (("GET", None), ("POST", None), ("POST", b"{}"), ("POST", b"x" * 1_000_000)):
            (
                await client.request(method, base + "/root", "/a%2Fb?c", headers=[(b"X-K", b"k\xe9")], body=body)
            ).release()
        host = base.removeprefix("http://").encode()
        start = b" /root/a%2Fb?c HTTP/1.1\r\nHost: " + host + b"\r\nX-K: k\xe9\r\n"
        assert seen[0] == b"GET" + start + b"\r\n"
        assert seen[1] == b"POST" + start + b"Content-Length: 0\r\n\r\n"
        assert seen[2] == b"POST" + start + b"Content-Length: 2\r\n\r\n{}"
        assert seen[3].endswith(b"Content-Length: 1000000\r\n\r\n" + b"x" * 1_000_000)


@pytest.mark.parametrize(("name", "value"), [(b"X", b"a\r\nY: b"), (b"X", b"a\nb"), (b"X\r", b"a"), (b"X", b"\r")])
async def test_a_header_never_ends_its_own_line(name: bytes, value: bytes) -> None:
    async with aclosing(NodeClient(connect_limit_s=5)) as client:
        with pytest.raises(NodeConnectError):
            await client.request("GET", "http://127.0.0.1:1", "/", headers=[(name, value)])


async def test_a_connection_is_used_again_when_its_answer_was_read_and_only_then() -> None:
    peers = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer)
        while True:
            head = await read_request(reader)
            if b"/close" in head:
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
            elif b"/slow" in head:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok")
            elif b"/two" in head:
                writer.write(OK + OK)
            elif head.startswith(b"HEAD"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
            else:
                writer.write(OK)

    async def connections(method: str, target: str) -> int:
        got = await client.request(method, base, target)
        if target != "/slow":
            await body_of(got)
        got.release()
        (await client.request("GET", base, "/")).release()
        count = len(peers)
        peers.clear()
        await client.aclose()
        return count

    async with serving(answer) as base, aclosing(NodeClient(connect_limit_s=5)) as client:
        assert await connections("GET", "/") == 1
        for method, target in (("GET", "/close"), ("GET", "/slow"), ("GET", "/two"), ("HEAD", "/")):
            assert await connections(method, target) == 2, target


@asynccontextmanager
async def kept_connection() -> AsyncIterator[tuple[NodeClient, str, socket.socket, socket.socket]]:
    """A client that keeps a connection, the node's address, its listener and its end of the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with aclosing(NodeClient(connect_limit_s=5)) as client:
        first = asyncio.create_task(client.request("GET", base, "/1"))
        peer, _ = await loop.sock_accept(listener)
        await loop.sock_recv(peer, 4096)
        await loop.sock_sendall(peer, OK)
        got = await first
        assert await body_of(got) == b"ok"
        got.release()
        yield client, base, listener, peer
    listener.close()


@pytest.mark.parametrize("kind", ["closes as it is written", "closes with it read", "resets with it read"])
async def test_a_request_is_sent_anew_only_when_the_node_never_had_it(kind: str) -> None:
    """A node that read the request and died of it must not get it again by mistake."""
    loop = asyncio.get_running_loop()
    async with kept_connection() as (client, base, listener, peer):
        if kind == "closes as it is written":
            peer.close()  # the client's loop does not turn between this and its next write
            second = asyncio.ensure_future(client.request("POST", base, "/2", body=b"x" * 100))
            fresh, _ = await loop.sock_accept(listener)
            assert b"/2" in await loop.sock_recv(fresh, 4096)
            await loop.sock_sendall(fresh, OK)
            assert (await second).status == 200
            fresh.close()
        else:
            second = asyncio.ensure_future(client.request("POST", base, "/2", body=b"x" * 100))
            assert b"/2" in await loop.sock_recv(peer, 4096)
            if kind == "resets with it read":
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            with pytest.raises(NodeDisconnectedError):
                await second


async def test_a_node_that_takes_no_connection_never_had_the_request() -> None:
    port = reserve_port()  # nobody listens there, and nobody else is given it
    async with aclosing(NodeClient(connect_limit_s=5)) as client:
        for base in (f"http://127.0.0.1:{port}", "ftp://x"):
            with pytest.raises(NodeConnectError):
                await client.request("GET", base, "/")
        assert client.counts().open == 0


async def test_a_body_that_nobody_reads_stops_the_node() -> None:
    sent = 0
    stopped = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x" * 100_000)
            sent += 100_000
            try:
                async with asyncio.timeout(0.2):
                    await writer.drain()
            except TimeoutError:
                stopped.set()
                await writer.drain()

    async with serving(answer) as base, aclosing(NodeClient(connect_limit_s=5)) as client:
        got = await client.request("GET", base, "/")
        await asyncio.wait_for(stopped.wait(), 60)
        assert sent < 50_000_000
        assert len(await got.read_any()) <= MAX_HELD_BYTES + 256 * 1024
        assert len(await body_of(got)) > 90_000_000, "and it goes on when the body is read"
        got.release()
        assert client.counts().idle == 1


async def test_whoever_stops_waiting_closes_the_connection() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.set()
        assert await reader.read() == b""
        ended.set()

    async with serving(answer) as base, aclosing(NodeClient(connect_limit_s=5)) as client:
        task = asyncio.create_task(client.request("GET", base, "/"))
        await asyncio.wait_for(asked.wait(), 60)
        task.cancel()
        await asyncio.wait_for(ended.wait(), 60)
        assert client.counts().idle == 0


class Wire(asyncio.Transport):
    """What a connection writes to."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from([*ANSWERS, *BROKEN]), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_any_split_of_an_answer_gives_the_same_result(name: str, cuts: list[int]) -> None:
    raw = ANSWERS[name][0] if name in ANSWERS else BROKEN[name][:400]

    async def result(edges: list[int]) -> tuple[object, ...]:
        connection = NodeConnection(lambda _: None, lambda _: None)
        connection.connection_made(Wire())
        waiting = asyncio.ensure_future(connection.request(b"GET / HTTP/1.1\r\n\r\n", None))
        await asyncio.sleep(0)
        for start, end in zip([0, *edges], [*edges, len(raw)], strict=True):
            if connection.is_open:
                connection.data_received(raw[start:end])
        connection.connection_lost(None)
        try:
            answer = await waiting
            return answer.status, tuple(answer.raw_headers), await body_of(answer)
        except NodeDisconnectedError:
            return ("broken",)

    async def both() -> None:
        assert await result(sorted(min(cut, len(raw)) for cut in cuts)) == await result([])

    asyncio.run(both())


@pytest.mark.parametrize(("host", "lookups"), [("localhost", 1), ("127.0.0.1", 0)])
async def test_a_name_is_looked_up_once_for_all_who_ask_at_a_time_and_an_address_never(
    monkeypatch: pytest.MonkeyPatch, host: str, lookups: int
) -> None:
    loop, asked = asyncio.get_running_loop(), []
    look_up = loop.getaddrinfo

    async def counted(name: object, port: object, **flags: int) -> object:
        asked.append(name)
        return await look_up(name, port, **flags)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "getaddrinfo", counted)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)

    async with serving(handle) as base:
        client = NodeClient(connect_limit_s=20)
        target = base.replace("127.0.0.1", host)
        answers = await asyncio.gather(*(client.request("GET", target, "/") for _ in range(8)))
        assert [answer.status for answer in answers] == [200] * 8
        assert len(asked) == lookups
        await client.aclose()


async def test_a_part_that_its_taker_refuses_ends_the_handing_over_and_the_rest_is_still_there() -> None:
    go_on = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nab")
        await go_on.wait()
        writer.write(b"cdef")

    async with serving(handle) as base:
        client = NodeClient(connect_limit_s=20)
        answer = await client.request("GET", base, "/")
        got: list[bytes] = []

        def take(data: bytes) -> bool:
            got.append(data)
            go_on.set()
            return len(got) != 2

        assert not await answer.hand_to(take), "it was told to stop"
        assert b"".join(got) == b"abcdef"
        assert await answer.hand_to(take), "its end"
        answer.release()
        await client.aclose()


async def test_what_a_taker_raises_is_raised_where_the_body_is_handed_over() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
        await asyncio.sleep(0)
        writer.write(b"ab")
        await reader.read()

    async with serving(handle) as base:
        client = NodeClient(connect_limit_s=20)
        answer = await client.request("GET", base, "/")

        def take(data: bytes) -> bool:
            raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            await answer.hand_to(take)
        answer.release()
        await client.aclose()


@pytest.mark.parametrize("is_alive", [True, False])
async def test_a_kept_connection_that_ends_as_the_request_comes_tells_a_node_that_is_well_from_one_that_died(
    is_alive: bool,
) -> None:
    """Servers that close a connection after so many requests are well: no death, and no poison, is counted of it."""
    loop = asyncio.get_running_loop()
    async with kept_connection() as (client, base, listener, peer):
        second = asyncio.ensure_future(client.request("POST", base, "/2", body=b"x"))
        assert b"/2" in await loop.sock_recv(peer, 4096)
        if not is_alive:
            listener.close()
        peer.close()
        with pytest.raises(NodeDisconnectedError) as raised:
            await second
        assert isinstance(raised.value, HungUpError) is is_alive
