"""The client's side of a request, without a socket: what is read, what is passed on, what is written."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from fleetctl.gateway.http import answers
from fleetctl.gateway.http.answers import ErrorAnswer
from fleetctl.gateway.http.body_budget import BodyBudget
from fleetctl.gateway.http.exchange import BodyTooLargeError, ClientGoneError, Exchange, new_request_id
from fleetctl.gateway.http.message_head import RequestHead

pytestmark = pytest.mark.anyio

ERROR = ErrorAnswer(503, "not now", "service_unavailable", "no_node_available", retry_after_s=3)


class Client:
    """An exchange, and what it sent."""

    address = "10.0.0.9"
    is_full = False
    keeps_alive = True

    def __init__(self, *parts: bytes, headers: list[tuple[bytes, bytes]] | None = None, is_whole: bool = True) -> None:
        self.sent = b""
        self.kept: list[bool] = []
        given, first = headers or [], dict(reversed(headers or []))
        head = RequestHead("POST", "/v1/a/b", "/v1/a%2Fb", given, first, is_http10=False, keeps_alive=True)
        self.bodies = BodyBudget(10_000, clock=time.monotonic, on_full=lambda: None)
        self.exchange = Exchange(head, self, self.bodies, max_body_bytes=1000, body_limit_s=5)
        for part in parts:
            self.exchange.feed(part)
        if is_whole:
            self.exchange.feed_end()

    def write(self, data: bytes) -> None:
        self.sent += data

    async def wait_for_room(self) -> None:
        raise AssertionError("there is room")

    def finish(self, exchange: Exchange, *, keeps_alive: bool) -> None:
        self.kept.append(keeps_alive)

    @property
    def head(self) -> list[bytes]:
        lines = self.sent.partition(b"\r\n\r\n")[0].split(b"\r\n")
        return [line for line in lines if not line.startswith(b"date: ")]

    @property
    def written(self) -> bytes:
        return self.sent.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (b"a", "a"),
        (b"A.b_c-d:9", "A.b_c-d:9"),
        (b"x" * 128, "x" * 128),
        (b"x" * 129, None),
        (b".a", None),
        (b"a/b", None),
        (b"a\n", None),
        (b"", None),
        (b"\xff", None),
    ],
)
async def test_an_id_that_can_be_logged_and_searched_for_is_used(given: bytes, used: str | None) -> None:
    assert Client(headers=[(b"host", b"h"), (b"x-request-id", given)]).exchange.request_id() == used


async def test_a_new_id_is_32_hex_digits_and_never_the_same() -> None:
    assert Client().exchange.request_id() is None
    first, second = new_request_id(), new_request_id()
    assert len(bytes.fromhex(first)) == 16
    assert first != second


async def test_headers_of_a_hop_and_words_of_ours_are_not_passed_on() -> None:
    dropped = [
        *(b"host", b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"content-length", b"accept-encoding", b"expect", b"x-request-id"),
        *(b"x-fleet-handoff", b"x-fleet-deadline-s"),
    ]
    kept = [(b"authorization", b"Bearer k\xe9y"), (b"x-fleetless", b"1"), (b"content-type", b"application/json")]
    client = Client(headers=[*((name, b"x") for name in dropped), *kept])
    assert client.exchange.forwarded_headers() == [
        (b"authorization", b"Bearer k\xe9y"),
        (b"x-fleetless", b"1"),
        (b"content-type", b"application/json"),
        (b"x-forwarded-for", b"10.0.0.9"),
    ]


async def test_a_header_that_connection_names_is_of_this_hop_alone() -> None:
    given = [(b"connection", b"close, X-Secret"), (b"x-secret", b"1"), (b"x-kept", b"2")]
    assert (b"x-kept", b"2") in Client(headers=given).exchange.forwarded_headers()
    assert b"x-secret" not in dict(Client(headers=given).exchange.forwarded_headers())


async def test_a_body_in_parts_is_joined() -> None:
    assert await Client(b"ab", b"", b"c").exchange.read_body(3) == b"abc"
    assert await Client(b"abc").exchange.read_body(3) == b"abc"
    assert await Client().exchange.read_body(3) == b""


async def test_a_body_is_awaited() -> None:
    client = Client(b"ab", is_whole=False)
    reading = asyncio.create_task(client.exchange.read_body(3))
    await asyncio.sleep(0)
    client.exchange.feed(b"c")
    await asyncio.sleep(0)
    assert not reading.done()
    client.exchange.feed_end()
    assert await reading == b"abc"


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("parts", [(b"abcd",), (b"ab", b"cd")], ids=["at once", "in parts"])
async def test_a_body_over_the_limit_is_not_read_on(parts: tuple[bytes, ...], is_whole: bool) -> None:
    with pytest.raises(BodyTooLargeError):
        await Client(*parts, is_whole=is_whole).exchange.read_body(3)


async def test_a_length_that_says_too_much_is_believed() -> None:
    client = Client(headers=[(b"accept", b"9"), (b"content-length", b"4")], is_whole=False)
    with pytest.raises(BodyTooLargeError):
        await client.exchange.read_body(3)


async def test_who_expects_to_be_asked_for_its_body_is_asked_when_it_is_wanted() -> None:
    client = Client(headers=[(b"expect", b"100-continue"), (b"content-length", b"3")], is_whole=False)
    reading = asyncio.create_task(client.exchange.read_body(3))
    await asyncio.sleep(0)
    assert client.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.exchange.feed(b"abc")
    client.exchange.feed_end()
    assert await reading == b"abc"
    too_much = Client(headers=[(b"expect", b"100-continue"), (b"content-length", b"4")], is_whole=False)
    with pytest.raises(BodyTooLargeError):
        await too_much.exchange.read_body(3)
    assert too_much.sent == b""


async def test_a_client_that_leaves_within_its_body_is_gone() -> None:
    client = Client(b"a", is_whole=False)
    reading = asyncio.create_task(client.exchange.read_body(3))
    await asyncio.sleep(0)
    client.exchange.note_gone()
    with pytest.raises(ClientGoneError):
        await reading


async def watched(client: Client, *, ends: bool = False) -> None:
    """Serves until it is cancelled."""
    client.exchange.watch()
    if ends:
        client.exchange.begin(200, [])
        await client.exchange.end()
    await asyncio.Event().wait()


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_hang_up_cancels_the_task_that_serves(is_early: bool) -> None:
    client = Client()
    if is_early:
        client.exchange.note_gone("slow_client")
    task = asyncio.create_task(watched(client))
    await asyncio.sleep(0)
    client.exchange.note_gone("slow_client")
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert client.exchange.is_gone
    assert client.exchange.gone_reason == "slow_client"
    assert not client.exchange.is_aborted


async def test_a_hang_up_after_the_whole_answer_cancels_nobody() -> None:
    client = Client()
    task = asyncio.create_task(watched(client, ends=True))
    await asyncio.sleep(0)
    client.exchange.note_gone()
    await asyncio.sleep(0)
    assert not task.done()
    assert not client.exchange.is_gone
    client.exchange.abort()
    assert not client.exchange.is_aborted, "there is nobody left to tell"
    task.cancel()


async def test_an_abort_is_no_hang_up() -> None:
    client = Client()
    task = asyncio.create_task(watched(client))
    await asyncio.sleep(0)
    client.exchange.abort()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (client.exchange.is_aborted, client.exchange.is_gone) == (True, False)
    client.exchange.close()


async def test_an_error_before_the_first_byte_is_a_whole_answer() -> None:
    client = Client()
    await client.exchange.fail(ERROR, [(b"x-request-id", b"r1")])
    assert client.head == [
        b"HTTP/1.1 503 Service Unavailable",
        b"content-type: application/json",
        b"x-request-id: r1",
        b"retry-after: 3",
        b"content-length: %d" % len(client.written),
    ]
    detail = {"message": "not now", "type": "service_unavailable", "param": None, "code": "no_node_available"}
    assert json.loads(client.written) == {"error": detail}
    assert (client.exchange.has_begun, client.exchange.has_ended, client.kept) == (True, True, [True])
    await client.exchange.fail(ERROR)
    assert client.sent.count(b"HTTP/1.1") == 1, "an answer has one end"


async def test_an_error_within_a_stream_is_its_last_event() -> None:
    client = Client()
    client.exchange.begin(200, [(b"content-type", b"text/event-stream")])
    assert client.sent == b"", "the head goes out with the first part"
    await client.exchange.write(b"data: 1\n\n")
    assert (client.exchange.has_begun, client.exchange.has_ended) == (True, False)
    await client.exchange.fail(ERROR)
    assert client.head == [b"HTTP/1.1 200 OK", b"content-type: text/event-stream", b"transfer-encoding: chunked"]
    event = ERROR.event()
    assert client.written == b"9\r\ndata: 1\n\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)
    assert event == b"data: " + ERROR.body() + b"\n\n"
    assert client.exchange.has_ended


async def test_a_whole_answer_has_begun_and_ended() -> None:
    client = Client()
    await client.exchange.answer(201, b"{}", [(b"a", b"b")])
    assert (client.exchange.has_begun, client.exchange.has_ended) == (True, True)
    assert client.head == [b"HTTP/1.1 201 Created", b"a: b", b"content-length: 2"]
    assert client.written == b"{}"


@pytest.mark.parametrize("header", [(b"a", b"b\r\nc: d"), (b"a", b"b\nc"), (b"a\r", b"b")])
async def test_a_header_never_ends_its_own_line(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="line break"):
        await Client().exchange.answer(200, b"{}", [header])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (answers.bad_request("m", param="p"), (400, "invalid_request_error", "invalid_request", "p", None)),
        (answers.not_found("/x"), (404, "invalid_request_error", "not_found", None, None)),
        (answers.unavailable("m"), (503, "service_unavailable", "no_node_available", None, 1)),
        (answers.unavailable("m", code="c", retry_after_s=9), (503, "service_unavailable", "c", None, 9)),
        (answers.overloaded("m"), (429, "rate_limit_error", "overloaded", None, 1)),
        (answers.upstream_failed("m"), (502, "server_error", "upstream_failed", None, None)),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
async def test_errors_of_ours_have_openais_shape(error: ErrorAnswer, expected: tuple[Any, ...]) -> None:
    assert (error.status, error.kind, error.code, error.param, error.retry_after_s) == expected
    assert error.headers() == ([] if expected[4] is None else [(b"retry-after", str(expected[4]).encode())])
    assert error.message == ("no such path: /x" if error.status == 404 else "m")
    assert len(answers.not_found("/" + "x" * 500).message) < 230
