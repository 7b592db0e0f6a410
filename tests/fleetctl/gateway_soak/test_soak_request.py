"""The soak's accounting: what counts as right, changed and lost, against a scripted gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from aiohttp import web

from fleetctl.gateway_soak.soak import SoakResult
from fleetctl.gateway_soak.soak_request import Answer, SoakClient, SoakRequest, Tally, make_requests

pytestmark = pytest.mark.anyio

STREAMED = SoakRequest("p", 4, True, 0.0, 1)


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


@asynccontextmanager
async def gateway_of(*answers: tuple[int, list[bytes]]) -> AsyncIterator[str]:
    """Gives these answers one after the other, each a status and its pieces."""
    left = list(answers)

    async def answer(request: web.Request) -> web.StreamResponse:
        status, pieces = left.pop(0)
        response = web.StreamResponse(status=status)
        response.enable_chunked_encoding()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("answers", "text", "problem", "attempts"),
    [
        ([(200, [event("a"), event("b"), b"data: [DONE]\n\n"])], "ab", "", 1),
        ([(429, []), (200, [event("a"), b"data: [DONE]\n\n"])], "a", "", 2),
        ([(200, [event("a")])], None, "RemoteProtocolError", 1),
        ([(500, [b"{}"])], None, "500", 1),
        ([(200, [event("a"), b'data: {"error": {"code": "node_lost"}}\n\n'])], None, "error event", 1),
        ([(200, [b"data: [DONE]\n\n", event("more")])], None, "something came after [DONE]", 1),
    ],
    ids=["whole", "refused, then whole", "cut", "error", "error event", "after its end"],
)
async def test_only_a_whole_answer_counts(
    answers: list[tuple[int, list[bytes]]], text: str | None, problem: str, attempts: int
) -> None:
    async with gateway_of(*answers) as url, aclosing(SoakClient([url], "demo")) as client:
        answer = await client.ask(STREAMED, "r1")
    assert (answer.text, answer.attempts) == (text, attempts)
    assert answer.problem.startswith(problem)


async def test_a_client_of_two_gateways_asks_the_other_one_when_one_is_cut() -> None:
    whole = (200, [event("a"), b"data: [DONE]\n\n"])
    async with gateway_of((200, [event("a")]), whole) as one, gateway_of((200, [event("a")]), whole) as other:
        async with aclosing(SoakClient([one, other], "demo")) as client:
            answer = await client.ask(STREAMED, "r1")
    assert answer.text == "a"
    assert answer.attempts >= 2


def test_a_soak_is_right_when_all_is_and_something_was_disturbed() -> None:
    result = SoakResult(tally=Tally())
    result.tally.note(Answer("r1", "a"), "a")
    assert not result.is_right, "nothing was disturbed"
    result.disturbances["kill_node"] += 1
    assert result.is_right
    result.tally.note(Answer("r2", "aa"), "a")
    assert not result.is_right
    assert result.to_json()["changed_ids"] == ["r2"]


def test_the_requests_are_of_every_kind_and_the_same_each_time() -> None:
    made = make_requests(40, 0)
    assert made == make_requests(40, 0)
    assert {request.is_streamed for request in made} == {True, False}
    assert {request.temperature for request in made} == {0.0, 0.8}
    assert len(set(made)) == 40
