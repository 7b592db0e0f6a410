"""Strangers at the controller's HTTP API: unfinished and endless heads, too many connections, foreign host names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest

from fleetctl.controller import http_connections
from fleetctl.controller.http_connections import ConnectionLimits, LimitedProtocol
from fleetctl.kit.tls import NO_TLS
from tests.fixtures.controller import TOKEN, NoProvider, make_config, serving

pytestmark = pytest.mark.anyio

MAX_CONNECTIONS = 20


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A controller without nodes, that has few places."""
    config = make_config(
        tmp_path_factory.mktemp("controller"),
        nodes=0,
        max_connections=MAX_CONNECTIONS,
        allowed_hosts=["fleet.example.com"],
    )
    async with serving(config, NoProvider()) as url:
        yield url


async def connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def answer_to(url: str, sent: bytes) -> bytes:
    reader, writer = await connected(url)
    try:
        writer.write(sent)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def get(url: str, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        return await http.get(f"{url}{path}", headers=headers)


async def test_flood_of_unfinished_heads_keeps_nobody_out(url: str) -> None:
    writers = []
    for _ in range(3 * MAX_CONNECTIONS):
        _, writer = await connected(url)
        writer.write(b"GET /v1/status HTTP/1.1\r\nX-Slow: ")
        writers.append(writer)
    assert (await get(url, "/v1/status")).status_code == 200
    refused = [line for line in (await get(url, "/metrics")).text.splitlines() if 'reason="full"' in line]
    assert refused
    assert float(refused[0].split()[-1]) >= 2 * MAX_CONNECTIONS
    for writer in writers:
        writer.close()


async def test_an_answer_waits_for_no_word_of_its_client(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    admitted = []
    admit = ConnectionLimits.admit

    def note(limits: ConnectionLimits, connection: LimitedProtocol) -> bool:
        admitted.append(connection.transport.get_extra_info("socket"))
        return admit(limits, connection)

    monkeypatch.setattr(ConnectionLimits, "admit", note)
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        assert (await http.get(f"{url}/v1/status")).status_code == 200
        (ours,) = admitted
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_head_that_is_not_sent_in_time_ends_its_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "HEAD_TIMEOUT_S", 0.1)
    for sent in (b"", b"GET /v1/status HTTP/1.1\r\nX-Slow: "):
        assert (await answer_to(url, sent)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
async def test_head_that_is_too_large_is_refused(url: str, end: bytes) -> None:
    sent = b"GET /v1/status HTTP/1.1\r\nX: " + b"a" * (http_connections.MAX_HEAD_BYTES + 1) + end
    assert (await answer_to(url, sent)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("rebound.example.com:7700", 421),
        ("localhost.example.com", 421),
        ("fleet.example.com", 200),
        ("LOCALHOST:7700", 200),
        ("127.0.0.1:7700", 200),
        ("[::1]:7700", 200),
        ("192.0.2.7", 200),
    ],
)
async def test_reads_without_a_token_are_answered_under_our_own_names_only(url: str, host: str, status: int) -> None:
    answer = await get(url, "/v1/nodes", Host=host)
    assert answer.status_code == status
    if status == 421:
        assert "controller.allowed_hosts" in answer.json()["remedy"]


async def test_token_is_good_under_any_name(url: str) -> None:
    answer = await get(url, "/v1/nodes", Host="rebound.example.com", Authorization=f"Bearer {TOKEN}")
    assert answer.status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example.com", "http://127.0.0.1:1", "null", "http://localhost:3000"])
async def test_a_script_of_a_foreign_page_is_refused_whatever_it_brings(url: str, origin: str) -> None:
    for more in ({}, {"Authorization": f"Bearer {TOKEN}"}):
        answer = await get(url, "/v1/nodes", Origin=origin, **more)
        assert answer.status_code == 403
        assert "Origin" in answer.json()["error"]
        assert answer.json()["exit_code"] == 3


async def test_a_script_of_our_own_page_or_of_an_allowed_host_is_answered(url: str) -> None:
    assert (await get(url, "/v1/nodes", Origin=url)).status_code == 200
    assert (await get(url, "/v1/nodes", Origin="https://fleet.example.com")).status_code == 200
    assert (await get(url, "/v1/nodes", Origin="https://fleet.example.com:8443")).status_code == 200


async def test_what_the_asker_has_already_is_not_sent_again(url: str) -> None:
    first = await get(url, "/v1/runbooks")
    tag = first.headers["ETag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = await get(url, "/v1/runbooks", **{"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
    other = await get(url, "/v1/runbooks", **{"If-None-Match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)
    assert "ETag" not in (await get(url, "/metrics")).headers
