"""What a peer may answer over HTTP, byte by byte, and what the scraper makes of it."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from fleetctl.kit.fetch import Fetched, Fetcher
from fleetctl.kit.http_connection import MAX_HEAD_BYTES

pytestmark = pytest.mark.anyio

MAX_BYTES = 10_000
HANG_UP = b"\0hang up"
Scripts = Sequence[Sequence[bytes]]


class Peer:
    """Answers the requests of each connection with its script's parts, in turn; keeps what it was asked."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = list(scripts)
        self.asked: list[bytes] = []
        self.num_connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.has_gone = asyncio.Event()  # a connection of ours was closed by the other side

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts[min(self.num_connections, len(self._scripts) - 1)]
        self.num_connections += 1
        self.writers.append(writer)
        try:
            for answer in script:
                self.asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer.removesuffix(HANG_UP))
                await writer.drain()
                if answer.endswith(HANG_UP):
                    return
            await reader.read()
            self.has_gone.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.has_gone.set()
        finally:
            writer.close()


@asynccontextmanager
async def talking(
    scripts: Scripts, *, timeout_s: float = 30.0, max_bytes: int = MAX_BYTES
) -> AsyncIterator[tuple[Peer, Fetcher, str]]:
    peer, fetcher = Peer(scripts), Fetcher(timeout_s=timeout_s, max_bytes=max_bytes)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    try:
        yield peer, fetcher, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
    finally:
        await fetcher.close()
        for writer in peer.writers:
            writer.close()
        server.close()
        await server.wait_closed()


async def fetch_one(answer: bytes, *, timeout_s: float = 30.0) -> Fetched:
    async with talking([[answer]], timeout_s=timeout_s) as (_, fetcher, url):
        return await fetcher.fetch(url)


def ok(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


def deflated(text: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(text) + packer.flush()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ok(b"x 1\n"), id="with its length"),
        pytest.param(chunked(b"x ", b"1", b"\n"), id="chunked"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nx 1\n" + HANG_UP, id="until the connection ends"),
        pytest.param(ok(gzip.compress(b"x 1\n"), "Content-Encoding: gzip"), id="gzip"),
        pytest.param(ok(deflated(b"x 1\n", 15), "content-encoding: Deflate"), id="deflate"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"x 1\n"), id="after a continue"),
    ],
)
async def test_whole_answer_is_read(answer: bytes) -> None:
    assert await fetch_one(answer) == Fetched("x 1\n")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "answered 503", id="status"),
        pytest.param(b"HTTP/1.1 302 Go\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "answered 302", id="redirect"),
        pytest.param(ok(b"\xff\xfe"), "not in Prometheus' text format: not UTF-8", id="no text"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", "no valid HTTP answer", id="another protocol"),
        pytest.param(ok(b"x 1\n")[:-2] + HANG_UP, "closed before the whole answer", id="cut short"),
        pytest.param(HANG_UP, "closed before the whole answer", id="no answer at all"),
        pytest.param(ok(b"x" * (MAX_BYTES + 1)), f"longer than {MAX_BYTES} bytes", id="too long"),
        pytest.param(
            ok(gzip.compress(b"x" * 5_000_000), "Content-Encoding: gzip"), f"longer than {MAX_BYTES}", id="packed bomb"
        ),
        pytest.param(ok(b"no gzip", "Content-Encoding: gzip"), "cannot be unpacked", id="no gzip"),
        pytest.param(
            ok(gzip.compress(b"x 1\n")[:-9], "Content-Encoding: gzip"),
            "cannot be unpacked: cut short",
            id="half a gzip",
        ),
        pytest.param(ok(b"x 1\n", "Content-Encoding: br"), "packed as br", id="packing nobody asked for"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n" + b"X-Y: " + b"z" * 2 * MAX_HEAD_BYTES, "headers longer than", id="endless headers"
        ),
        pytest.param(
            b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", "no valid HTTP", id="upgrade"
        ),
    ],
)
async def test_what_is_no_whole_answer_has_a_reason(answer: bytes, problem: str) -> None:
    fetched = await fetch_one(answer)
    assert fetched.text is None
    assert problem in fetched.problem


async def test_answer_that_drips_is_given_up_and_its_connection_closed() -> None:
    async with talking([[ok(b"x 1\n")[:-1]]], timeout_s=0.2) as (peer, fetcher, url):
        assert await fetcher.fetch(url) == Fetched(None, "no whole answer within 0.2 s")
        async with asyncio.timeout(60):
            await peer.has_gone.wait()


async def test_nobody_listening_is_named_with_its_address() -> None:
    async with talking([[]]) as (_, fetcher, url):
        pass
    fetcher = Fetcher(timeout_s=30, max_bytes=MAX_BYTES)
    fetched = await fetcher.fetch(url)
    assert fetched.text is None
    assert fetched.problem.startswith(f"cannot connect to {url.split('/')[2]}: ")
    await fetcher.close()


@pytest.mark.parametrize("url", ["ftp://x/metrics", "http:///metrics", "http://x:99999/metrics", "metrics"])
async def test_what_is_no_http_url_is_refused(url: str) -> None:
    fetcher = Fetcher(timeout_s=30, max_bytes=MAX_BYTES)
    assert (await fetcher.fetch(url)).text is None
    await fetcher.close()


async def test_connection_is_used_again() -> None:
    async with talking([[ok(b"a 1\n"), chunked(b"b 1\n"), ok(b"c 1\n")]]) as (peer, fetcher, url):
        assert [(await fetcher.fetch(url)).text for _ in range(3)] == ["a 1\n", "b 1\n", "c 1\n"]
        assert peer.num_connections == 1


@pytest.mark.parametrize(
    "first",
    [
        pytest.param([ok(b"a 1\n", "Connection: close")], id="that it would close"),
        pytest.param([ok(b"a 1\n") + b"HTTP/1.1 200 OK\r\n"], id="with more than was asked for"),
        pytest.param([b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n" + HANG_UP], id="that it closed at once"),
        pytest.param([ok(b"a 1\n"), HANG_UP], id="whose next request it hung up on"),
    ],
)
async def test_connection_is_not_used_again_after_an_answer(first: list[bytes]) -> None:
    async with talking([first, [ok(b"b 1\n")]]) as (peer, fetcher, url):
        await fetcher.fetch(url)
        assert await fetcher.fetch(url) == Fetched("b 1\n")
        assert peer.num_connections == 2


async def test_request_is_not_sent_again_once_it_was_answered_in_part() -> None:
    async with talking([[ok(b"a 1\n"), ok(b"b 1\n")[:-2] + HANG_UP], [ok(b"c 1\n")]]) as (peer, fetcher, url):
        await fetcher.fetch(url)
        assert "closed before the whole answer" in (await fetcher.fetch(url)).problem
        assert peer.num_connections == 1


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (lambda address: f"http://{address}/a%20b/metrics?x=1&y=z", b"GET /a%20b/metrics?x=1&y=z HTTP/1.1\r\n"),
        (lambda address: f"http://{address}", b"GET / HTTP/1.1\r\n"),
        (lambda address: f"http://{address}/a b", b"GET /a%20b HTTP/1.1\r\n"),
        (lambda address: f"http://me:p%40ss@{address}/m", b"Authorization: Basic bWU6cEBzcw==\r\n"),
    ],
    ids=["path and query", "no path", "a blank", "user and password"],
)
async def test_request_says_what_the_url_says(made: Callable[[str], str], line: bytes) -> None:
    async with talking([[ok(b"x 1\n")]]) as (peer, fetcher, url):
        address = url.split("/")[2]
        assert await fetcher.fetch(made(address)) == Fetched("x 1\n")
        assert line in peer.asked[0]
        assert b"Host: %s\r\n" % address.encode() in peer.asked[0]


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
async def test_certificate_must_be_vouched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    await anyio.run_process(
        [
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
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
    )
    if is_known:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    peer = Peer([[ok(b"x 1\n")]])
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=context)
    fetcher = Fetcher(timeout_s=30, max_bytes=MAX_BYTES)
    try:
        fetched = await fetcher.fetch(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics")
        if is_known:
            assert fetched == Fetched("x 1\n")
        else:
            assert fetched.text is None
            assert "certificate" in fetched.problem.lower()
            assert not peer.asked
    finally:
        await fetcher.close()
        for writer in peer.writers:
            writer.close()
        server.close()
        await server.wait_closed()
