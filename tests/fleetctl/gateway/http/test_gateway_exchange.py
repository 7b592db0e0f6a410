"""The client's side of a request over ASGI, without a server: what is read, what is passed on, what is written."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fleetctl.gateway.http import answers
from fleetctl.gateway.http.answers import ErrorAnswer, Message
from fleetctl.gateway.http.exchange import BodyTooLargeError, ClientGoneError, Exchange, new_request_id

pytestmark = pytest.mark.anyio

ERROR = ErrorAnswer(503, "not now", "service_unavailable", "no_node_available", retry_after_s=3)


class Client:
    """What a server would hand to the application, and what the application sent."""

    def __init__(self, *parts: Message, headers: list[tuple[bytes, bytes]] | None = None, query: bytes = b"") -> None:
        self.parts = list(parts)
        self.sent: list[Message] = []
        self.is_asked = asyncio.Event()
        scope = {"headers": headers or [], "raw_path": b"/v1/a%2Fb", "query_string": query}
        self.exchange = Exchange(scope, self.receive, self.send)

    async def receive(self) -> Message:
        if not self.parts:
            self.is_asked.set()
            await asyncio.Event().wait()
        return self.parts.pop(0)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def written(self) -> bytes:
        return b"".join(message["body"] for message in self.sent if message["type"] == "http.response.body")


def part(body: bytes, more_body: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more_body}


GONE: Message = {"type": "http.disconnect"}


@pytest.mark.parametrize(("query", "path"), [(b"", "/v1/a%2Fb"), (b"x=%20&y", "/v1/a%2Fb?x=%20&y")])
async def test_path_and_query_stay_as_the_client_encoded_them(query: bytes, path: str) -> None:
    assert Client(query=query).exchange.target == path


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
        ("authorization", "Bearer k\u00e9y"),
        ("x-fleetless", "1"),
        ("content-type", "application/json"),
    ]


async def test_a_body_in_parts_is_joined() -> None:
    assert await Client(part(b"ab", True), part(b"", True), part(b"c")).exchange.read_body(3) == b"abc"
    assert await Client(part(b"abc")).exchange.read_body(3) == b"abc"
    assert await Client({"type": "http.request", "body": b"ab"}).exchange.read_body(3) == b"ab"


@pytest.mark.parametrize("parts", [(part(b"abcd"),), (part(b"ab", True), part(b"cd"))], ids=["at once", "in parts"])
async def test_a_body_over_the_limit_is_not_read_on(parts: tuple[Message, ...]) -> None:
    with pytest.raises(BodyTooLargeError):
        await Client(*parts).exchange.read_body(3)


@pytest.mark.parametrize(("stated", "is_read"), [(b"3", True), (b"4", False), (b"-1", False), (b"x", False)])
async def test_a_length_that_says_too_much_is_believed(stated: bytes, is_read: bool) -> None:
    client = Client(part(b"abc"), headers=[(b"accept", b"9"), (b"content-length", stated)])
    if is_read:
        assert await client.exchange.read_body(3) == b"abc"
    else:
        with pytest.raises(BodyTooLargeError):
            await client.exchange.read_body(3)
        assert client.parts, "nothing was read"


async def test_a_client_that_leaves_within_its_body_is_gone() -> None:
    with pytest.raises(ClientGoneError):
        await Client(part(b"a", True), GONE).exchange.read_body(3)


async def watched(client: Client, *, ends: bool = False) -> None:
    """Serves until it is cancelled."""
    client.exchange.watch()
    if ends:
        await client.exchange.end()
    await client.is_asked.wait()
    await asyncio.Event().wait()


async def test_a_hang_up_cancels_the_task_that_serves() -> None:
    client = Client(GONE)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(watched(client), 5)
    assert client.exchange.is_gone
    assert not client.exchange.is_aborted


async def test_a_hang_up_after_the_whole_answer_cancels_nobody() -> None:
    client = Client(GONE)
    task = asyncio.create_task(watched(client, ends=True))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    assert not client.exchange.is_gone
    client.exchange.abort()
    assert not client.exchange.is_aborted, "there is nobody left to tell"
    task.cancel()


async def test_an_abort_is_no_hang_up() -> None:
    client = Client()
    task = asyncio.create_task(watched(client))
    await client.is_asked.wait()
    client.exchange.abort()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (client.exchange.is_aborted, client.exchange.is_gone) == (True, False)
    client.exchange.close()


async def test_an_error_before_the_first_byte_is_a_whole_answer() -> None:
    client = Client()
    await client.exchange.fail(ERROR, [(b"x-request-id", b"r1")])
    start, body = client.sent
    assert start == {
        "type": "http.response.start",
        "status": 503,
        "headers": [
            (b"content-type", b"application/json"),
            (b"x-request-id", b"r1"),
            (b"retry-after", b"3"),
            (b"content-length", str(len(body["body"])).encode()),
        ],
    }
    detail = {"message": "not now", "type": "service_unavailable", "param": None, "code": "no_node_available"}
    assert json.loads(body["body"]) == {"error": detail}
    assert (client.exchange.has_begun, client.exchange.has_ended, body["more_body"]) == (True, True, False)
    await client.exchange.fail(ERROR)
    assert len(client.sent) == 2, "an answer has one end"


async def test_an_error_within_a_stream_is_its_last_event() -> None:
    client = Client()
    await client.exchange.begin(200, [(b"content-type", b"text/event-stream")])
    await client.exchange.write(b"data: 1\n\n")
    assert (client.exchange.has_begun, client.exchange.has_ended) == (True, False)
    await client.exchange.fail(ERROR)
    assert client.sent[0]["status"] == 200
    assert [message["more_body"] for message in client.sent[1:]] == [True, False]
    assert client.written == b"data: 1\n\n" + ERROR.event()
    assert ERROR.event() == b"data: " + ERROR.body() + b"\n\n"
    assert client.exchange.has_ended


async def test_a_whole_answer_has_begun_and_ended() -> None:
    client = Client()
    await client.exchange.answer(201, b"{}", [(b"a", b"b")])
    assert (client.exchange.has_begun, client.exchange.has_ended) == (True, True)
    assert client.sent[0]["headers"] == [(b"a", b"b"), (b"content-length", b"2")]
    assert (client.sent[0]["status"], client.written) == (201, b"{}")


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
