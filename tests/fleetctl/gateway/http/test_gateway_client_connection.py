"""The client side over real sockets: bad requests, strangers that hold connections, slow readers, and TLS."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.gateway.http.client_connection import MAX_PIPELINED, ClientConnection
from fleetctl.gateway.http.connection_limits import ConnectionLimits
from fleetctl.gateway.http.exchange import BadFramingError, BodyTooLargeError, ClientGoneError, Exchange
from fleetctl.gateway.http.server import HttpServer
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.gateway_http import GatewayHttpSettings
from tests.fixtures.gateway import until

pytestmark = pytest.mark.anyio

HOST = b"Host: x\r\n"
GET = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"


class Site:
    """A server whose pages say what was asked for."""

    def __init__(self, **limits: object) -> None:
        self.ended: list[str] = []
        self.cancelled: list[Exchange] = []
        self.written = 0
        self.server = HttpServer(self.serve, GatewayHttpSettings(**limits), count=self.ended.append)  # type: ignore[arg-type]
        self.port = 0

    async def serve(self, exchange: Exchange) -> None:
        try:
            body = await exchange.read_body(1000)
            exchange.watch()
            if exchange.path == "/flood":
                exchange.begin(200, [])
                while True:
                    await exchange.write(b"x" * 100_000)
                    self.written += 100_000
            if exchange.path == "/wait":
                await asyncio.Event().wait()
        except (BodyTooLargeError, BadFramingError) as error:
            await exchange.answer(413 if isinstance(error, BodyTooLargeError) else 400, b"", [])
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            self.cancelled.append(exchange)
        else:
            said = f"{exchange.method} {exchange.target} ".encode() + body
            await exchange.answer(200, said, [])

    async def ask(self, raw: bytes) -> list[tuple[int, bytes]]:
        """Status and body of each answer to these bytes, until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(raw)
        got = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return answers_in(got)


def answers_in(got: bytes) -> list[tuple[int, bytes]]:
    answers = []
    while got:
        head, _, got = got.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        length = next((int(line[16:]) for line in lines if line.startswith(b"content-length: ")), 0)
        answers.append((int(lines[0].split()[1]), got[:length]))
        got = got[length:]
    return answers


@asynccontextmanager
async def site_of(**limits: object) -> AsyncIterator[Site]:
    site = Site(**limits)
    listener = socket.create_server(("127.0.0.1", 0))
    site.port = listener.getsockname()[1]
    await site.server.start(listener)
    try:
        yield site
    finally:
        await site.server.close()


CLOSE = b"GET /last HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"


@pytest.mark.parametrize(
    ("raw", "answers"),
    [
        (GET + CLOSE, [(200, b"GET /a "), (200, b"GET /last ")]),
        (
            b"POST /p?q HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nab" + CLOSE,
            [(200, b"POST /p?q ab"), (200, b"GET /last ")],
        ),
        (b"GET http://x/abs?q HTTP/1.1\r\n" + HOST + b"\r\n" + CLOSE, [(200, b"GET /abs?q "), (200, b"GET /last ")]),
        (b"GET /old HTTP/1.0\r\n\r\n", [(200, b"GET /old ")]),
        (b"\r\n\r\n" + CLOSE, [(200, b"GET /last ")]),
        (
            b"POST /h2c HTTP/1.1\r\n" + HOST + H2C + b"Content-Length: 2\r\n\r\nab" + CLOSE,
            [(200, b"POST /h2c ab"), (200, b"GET /last ")],
        ),
        (b"GET /h2c HTTP/1.1\r\n" + HOST + H2C + b"\r\n" + CLOSE, [(200, b"GET /h2c "), (200, b"GET /last ")]),
        (
            b"POST /c HTTP/1.1\r\n"
            + HOST
            + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\nT: x\r\n\r\n"
            + CLOSE,
            [(200, b"POST /c ab"), (200, b"GET /last ")],
        ),
    ],
)
async def test_requests_are_answered_in_their_order(raw: bytes, answers: list[tuple[int, bytes]]) -> None:
    async with site_of() as site:
        assert await site.ask(raw) == answers


BAD = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    "HTTP/2 without asking": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "length and chunks": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "two lengths": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
    "the same length twice": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        400,
    ),
    "a length with a sign": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +3\r\n\r\nabc", 400),
    "a list of lengths": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3, 3\r\n\r\nabc", 400),
    "chunks within something": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "something within chunks": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        400,
    ),
    "chunks under another name": (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "chunks in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a chunk without a size": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\na\r\n0\r\n\r\n",
        400,
    ),
    "a chunk longer than it says": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        400,
    ),
    "a space before the colon": (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length : 3\r\n\r\n", 400),
    "a folded header": (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n", 400),
    "a bare line feed": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "a bare carriage return": (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\rY: b\r\n\r\n", 400),
    "a zero byte": (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
    "a tunnel": (b"CONNECT x:1 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "no path": (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "bytes in the path": (b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "another expectation": (b"GET / HTTP/1.1\r\n" + HOST + b"Expect: 200-ok\r\n\r\n", 417),
    "a long target": (b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431),
    "a long header": (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 2000 + b"\r\n\r\n", 431),
    "a head without end": (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 2_000_000, 431),
    "empty lines without end": (b"\r\n" * 3000, 431),
    "many headers": (b"GET / HTTP/1.1\r\n" + HOST + b"X: 1\r\n" * 40 + b"\r\n", 431),
    "a long body": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5000000\r\n\r\n" + b"x" * 5_000_000, 413),
    "a long body in chunks": (
        b"POST / HTTP/1.1\r\n"
        + HOST
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"400\r\n"
        + b"x" * 1024
        + b"\r\n400\r\n",
        413,
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_request_is_told_so_and_nothing_behind_it_is_served(name: str) -> None:
    raw, status = BAD[name]
    async with site_of(max_head_bytes=1024, max_headers=32, max_body_bytes=1024) as site:
        (good, bad) = (await site.ask(GET + raw + (b"" if "without end" in name else GET)))[:2]
        assert good == (200, b"GET /a ")
        assert bad[0] == status
        if bad[1]:
            assert json.loads(bad[1])["error"]["type"] == "invalid_request_error"


async def test_a_target_longer_than_any_head_is_431_whatever_came_before() -> None:
    async with site_of() as site:
        assert [status for status, _ in await site.ask(b"GET /" + b"a" * 500_000)] == [431]


async def test_a_flood_of_requests_in_one_connection_is_cut() -> None:
    async with site_of() as site:
        answers = await site.ask(GET * 10_000)
        assert [status for status, _ in answers] == [200] * MAX_PIPELINED + [429]


async def test_who_never_ends_its_head_has_a_time_limit_and_others_do_not_notice() -> None:
    async with site_of(head_limit_s=0.2) as site:
        silent = await asyncio.open_connection("127.0.0.1", site.port)
        begun = await asyncio.open_connection("127.0.0.1", site.port)
        begun[1].write(b"GET / HTTP/1.1\r\nX: ")
        kept = await asyncio.open_connection("127.0.0.1", site.port)
        kept[1].write(GET)
        await kept[0].readuntil(b"GET /a ")
        assert await asyncio.wait_for(silent[0].read(), 60) == b""
        assert b" 408 " in await asyncio.wait_for(begun[0].readline(), 60)
        assert site.ended == ["head_timeout"] * 2
        kept[1].write(GET)
        await asyncio.wait_for(kept[0].readuntil(b"GET /a "), 60)
        for _, writer in (silent, begun, kept):
            writer.close()


async def test_half_open_heads_lock_nobody_out() -> None:
    async with site_of(max_connections=20, max_half_open_per_address=10) as site:
        held = []
        for _ in range(50):
            held.append(await asyncio.open_connection("127.0.0.1", site.port))
            held[-1][1].write(b"GET / HTTP/1.1\r\nX: ")
            await held[-1][1].drain()
        assert await site.ask(CLOSE) == [(200, b"GET /last ")]
        assert len(site.server.limits) <= 10
        assert set(site.ended) == {"half_open"}
        for _, writer in held:
            writer.close()


async def test_when_all_places_are_taken_an_idle_connection_goes_and_a_busy_one_stays() -> None:
    async with site_of(max_connections=3) as site:
        busy = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(2)]
        for _, writer in busy:
            writer.write(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
        idle = await asyncio.open_connection("127.0.0.1", site.port)
        idle[1].write(GET)
        await idle[0].readuntil(b"GET /a ")
        third = await asyncio.open_connection("127.0.0.1", site.port)
        third[1].write(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
        assert await asyncio.wait_for(idle[0].read(), 60) == b""
        await until(lambda: site.ended == ["full"])
        await until(lambda: len(site.server.limits) == 3)
        await asyncio.sleep(0.02)  # let the third one's request arrive
        ((status, body),) = await site.ask(CLOSE)
        assert (status, json.loads(body)["error"]["code"]) == (503, "too_many_connections")
        for _, writer in (*busy, idle, third):
            writer.close()


async def test_one_address_does_not_take_all_places() -> None:
    async with site_of(max_connections_per_address=1) as site:
        _, writer = await asyncio.open_connection("127.0.0.1", site.port)
        await until(lambda: len(site.server.limits) == 1)
        assert [status for status, _ in await site.ask(CLOSE)] == [503]
        writer.close()
        await until(lambda: len(site.server.limits) == 0)
        assert [status for status, _ in await site.ask(CLOSE)] == [200]


async def test_a_client_that_does_not_read_is_hung_up_on() -> None:
    async with site_of(slow_client_limit_s=0.2, client_buffer_bytes=64 * 1024) as site:
        _, writer = await asyncio.open_connection("127.0.0.1", site.port, limit=1024)
        writer.write(b"GET /flood HTTP/1.1\r\n" + HOST + b"\r\n")
        await until(lambda: bool(site.cancelled))
        assert site.cancelled[0].gone_reason == "slow_client"
        assert site.ended == ["slow_client"]
        assert site.written < 20_000_000, "and what it did not read is not heaped up"
        writer.close()


async def test_a_hang_up_cancels_at_once() -> None:
    async with site_of() as site:
        _, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
        await until(lambda: len(site.server.limits) == 1)
        await asyncio.sleep(0.02)
        writer.close()
        await until(lambda: bool(site.cancelled))
        assert site.cancelled[0].is_gone


async def test_draining_ends_idle_connections_now_and_others_with_their_answer() -> None:
    async with site_of() as site:
        idle = await asyncio.open_connection("127.0.0.1", site.port)
        idle[1].write(GET)
        await idle[0].readuntil(b"GET /a ")
        begun = await asyncio.open_connection("127.0.0.1", site.port)
        begun[1].write(b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n\r\n")
        await until(lambda: len(site.server.limits) == 2)
        await asyncio.sleep(0.02)
        site.server.stop_accepting()
        assert await asyncio.wait_for(idle[0].read(), 60) == b""
        begun[1].write(b"x")
        assert b"connection: close\r\n" in await asyncio.wait_for(begun[0].read(), 60)
        await asyncio.wait_for(site.server.drained(), 60)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", site.port)
        for _, writer in (idle, begun):
            writer.close()


def certificate_in(folder: Path, name: str) -> dict[str, Path]:
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*words, *subject, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return {"tls_certificate": certificate, "tls_key": key}


async def test_tls_answers_limits_handshakes_and_a_new_server_reads_the_certificate_again(tmp_path: Path) -> None:
    first, second = certificate_in(tmp_path, "first"), certificate_in(tmp_path, "second")

    async def asked(certificate: Path) -> bytes:
        trust = ssl.create_default_context(cafile=str(certificate))
        reader, writer = await asyncio.open_connection("localhost", site.port, ssl=trust)
        writer.write(CLOSE)
        got = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return got

    async with site_of(**first, max_half_open_per_address=3) as site:
        held = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(20)]
        assert (await asked(first["tls_certificate"])).endswith(b"GET /last ")
        assert len(site.server.limits) <= 3
        assert "half_open" in site.ended
        for _, writer in held:
            writer.close()
    for name in ("tls_certificate", "tls_key"):
        first[name].write_bytes(second[name].read_bytes())
    async with site_of(**first) as site:
        assert (await asked(second["tls_certificate"])).endswith(b"GET /last "), "the server after a reload"
    first["tls_key"].write_text("no key")
    with pytest.raises(BadInputError, match="not a certificate with the key"):
        Site(**first)


class Wire(asyncio.Transport):
    """What a connection writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


GOOD = [
    GET,
    b"POST /p?q HTTP/1.1\r\n" + HOST + b"X-Long: " + b"v" * 50 + b"\r\nContent-Length: 10\r\n\r\n0123456789",
    b"POST /c HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    b"POST /h2c HTTP/1.1\r\n" + HOST + H2C + b"Content-Length: 2\r\n\r\nab",
]


@settings(max_examples=80, deadline=None)
@given(
    messages=st.lists(
        st.sampled_from([*GOOD, *(raw for raw, _ in BAD.values() if len(raw) < 500)]), min_size=1, max_size=4
    ),
    cuts=st.lists(st.integers(0, 800), max_size=12),
)
def test_any_split_of_requests_gives_the_same_answers(messages: list[bytes], cuts: list[int]) -> None:
    raw = b"".join(messages)

    async def answers(edges: list[int]) -> list[tuple[int, bytes]]:
        limits = ConnectionLimits(GatewayHttpSettings(), 10)
        wire, connection = Wire(), ClientConnection(Site().serve, limits)
        connection.connection_made(wire)
        for start, end in zip([0, *edges], [*edges, len(raw)], strict=True):
            connection.data_received(raw[start:end])
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        return answers_in(wire.sent)

    async def both() -> None:
        assert await answers(sorted(min(cut, len(raw)) for cut in cuts)) == await answers([])

    asyncio.run(both())
