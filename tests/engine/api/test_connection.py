"""Below the routes: heads and bodies within limits of size and time, told in OpenAI's shape; no request lost."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fixtures.engine import EngineNode, start_node

BODY = b'{"prompt": "hello", "max_tokens": 1}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
SIZED = POST + b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n" % len(BODY) + BODY + b"\r\n"
# What Java's HTTP client sends with each request unless it is told to speak HTTP/1.1.
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("connection")) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    """For what never comes: what is only late on a busy machine is asked of the other one."""
    with start_node(tmp_path_factory.mktemp("hasty"), extra_args=("--body-timeout", "1")) as running:
        yield running


@contextmanager
def connection(node: EngineNode) -> Iterator[socket.socket]:
    host, _, port = node.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as opened:
        yield opened


def read_answer(opened: socket.socket) -> tuple[int, Any]:
    """One answer with a Content-Length; status 0 when the node closed without one."""
    reader = opened.makefile("rb")
    status = reader.readline()
    if not status:
        return 0, None
    size = 0
    while line := reader.readline().strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            size = int(value)
    return int(status.split()[1]), json.loads(reader.read(size))


def ask(node: EngineNode, *parts: bytes) -> tuple[int, Any]:
    with connection(node) as opened:
        try:
            for part in parts:
                opened.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was refused before all of it was sent
        try:
            return read_answer(opened)
        except ConnectionResetError:
            return 0, None


@pytest.mark.parametrize(
    ("parts", "status", "code"),
    [
        ((POST + b"X-A: " + b"a" * 70_000 + b"\r\n\r\n",), 431, "headers_too_large"),
        ((POST + b"".join(b"X-%d: y\r\n" % i for i in range(20_000)) + b"\r\n",), 431, "headers_too_large"),
        ((b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",), 431, "headers_too_large"),
        ((CHUNKED + b"\r\n" + CHUNKS + b"0\r\n" + b"X-A: b\r\n" * 20_000,), 431, "headers_too_large"),
        ((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",), 400, "bad_http"),
        ((b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",), 400, "bad_http"),
        ((SIZED + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,), 400, "bad_http"),
        ((POST + b"Content-Length: -1\r\n\r\n",), 400, "bad_http"),
        ((POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",), 400, "bad_http"),
        ((POST + b"Content-Length: 9999999999999999\r\n\r\n",), 413, "body_too_large"),
        ((CHUNKED + b"\r\nzz\r\n",), 400, "bad_http"),
        ((POST + b"X-Fleet-Deadline-S: 1e400\r\nContent-Length: 2\r\n\r\n{}",), 400, "invalid_value"),
        ((POST,), 408, "request_timeout"),
        ((SIZED + b"\r\n" + BODY[:5],), 408, "body_timeout"),
    ],
    ids=[
        *("long-header", "many-headers", "long-path", "trailers", "tls", "path-bytes", "two-framings"),
        *("negative-length", "length-past-64-bits", "long-length", "bad-chunk", "deadline", "slow-head", "slow-body"),
    ],
)
def test_what_is_no_request_within_limits_is_told_in_openais_shape(
    node: EngineNode, hasty: EngineNode, parts: tuple[bytes, ...], status: int, code: str
) -> None:
    got, body = ask(hasty if status == 408 else node, *parts)
    assert got == status, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    if code != "invalid_value":
        assert body["error"]["code"] == code


@pytest.mark.parametrize("start", [POST + b"X-A: ", b"GET /"], ids=["header", "path"])
def test_a_head_without_end_is_cut_off(node: EngineNode, start: bytes) -> None:
    status, _ = ask(node, start, *[b"a" * 65_536] * 40)
    assert status in (0, 431)


def test_a_connection_that_asks_nothing_is_closed(hasty: EngineNode) -> None:
    assert ask(hasty) == (0, None)


@pytest.mark.parametrize(
    "request_bytes",
    [
        SIZED + b"\r\n" + BODY,
        CHUNKED + b"\r\n" + CHUNKS + b"0\r\n\r\n",
        CHUNKED + b"\r\n" + CHUNKS + b"0\r\nX-Sum: 1\r\n\r\n",
        SIZED + UPGRADE + b"\r\n" + BODY,
        CHUNKED + UPGRADE + b"\r\n" + CHUNKS + b"0\r\n\r\n",
        SIZED + b"X-Request-Id: \xff\xfe\r\nAuthorization: Bearer \xff\r\n\r\n" + BODY,
    ],
    ids=["sized", "chunked", "trailer", "upgrade", "upgrade-chunked", "header-bytes"],
)
@pytest.mark.parametrize("cut_at", [None, -3, 30], ids=["at-once", "late-body", "late-head"])
def test_a_request_is_read_however_it_comes(node: EngineNode, request_bytes: bytes, cut_at: int | None) -> None:
    parts = (request_bytes,) if cut_at is None else (request_bytes[:cut_at], request_bytes[cut_at:])
    status, body = ask(node, *parts)
    assert (status, body.get("usage", {}).get("completion_tokens")) == (200, 1)


def test_a_connection_serves_on_after_an_offer_of_another_protocol(node: EngineNode) -> None:
    with connection(node) as opened:
        for head in (SIZED + UPGRADE, SIZED, SIZED + UPGRADE):
            opened.sendall(head + b"\r\n" + BODY)
            assert read_answer(opened)[0] == 200


def test_offers_of_another_protocol_without_a_pause_are_all_answered(node: EngineNode) -> None:
    count = 2000
    request = b"GET /health/live HTTP/1.1\r\nHost: node\r\n" + UPGRADE + b"\r\n"
    with connection(node) as opened:
        opened.sendall(request * count + b"GET /health/live HTTP/1.1\r\nConnection: close\r\n\r\n")
        answered = b"".join(iter(lambda: opened.recv(1 << 20), b"")).count(b"HTTP/1.1 200 OK")
    assert answered == count + 1
