"""The soak's client and its accounting: what counts as right, changed and lost, against a scripted gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from fleetctl.gateway_soak.gateway_downtimes import KEPT_S, GatewayDowntimes
from fleetctl.gateway_soak.soak import SoakResult
from fleetctl.gateway_soak.soak_client import SoakClient
from fleetctl.gateway_soak.soak_request import COMPLETIONS, SoakRequest
from fleetctl.gateway_soak.tally import Answer, FateCheck, read_fates

pytestmark = pytest.mark.anyio

STREAMED = SoakRequest("seeded", COMPLETIONS, '{"prompt": "p"}', is_streamed=True)
DONE = b"data: [DONE]\n\n"


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
    app.router.add_post(COMPLETIONS, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def text_of(answer: Answer) -> str | None:
    return None if answer.told is None else json.loads(answer.told)["choice 0.text"]


@pytest.mark.parametrize(
    ("answers", "text", "problem", "attempts"),
    [
        ([(200, [event("a"), event("b"), DONE])], "ab", "", 1),
        ([(429, []), (200, [event("a"), DONE])], "a", "", 2),
        ([(200, [event("a")])], None, "RemoteProtocolError", 1),
        ([(500, [b"{}"])], None, "500", 1),
        ([(200, [event("a"), b'data: {"error": {"code": "node_lost"}}\n\n'])], None, "error event", 1),
        ([(200, [DONE, event("more")])], None, "something came after [DONE]", 1),
    ],
    ids=["whole", "refused, then whole", "cut", "error", "error event", "after its end"],
)
async def test_only_a_whole_answer_counts(
    answers: list[tuple[int, list[bytes]]], text: str | None, problem: str, attempts: int
) -> None:
    async with gateway_of(*answers) as url, aclosing(SoakClient([url], "demo")) as client:
        answer = await client.ask(STREAMED, "r1")
    assert (text_of(answer), answer.attempts) == (text, attempts)
    assert answer.problem.startswith(problem)
    assert (answer.ttft_s is None) == (text is None and "error" not in problem and "RemoteProtocol" not in problem)


async def test_the_other_gateway_is_asked_when_one_was_killed_and_only_then() -> None:
    whole = (200, [event("a"), DONE])
    for was_killed in (True, False):
        async with gateway_of((200, [event("a")]), whole) as one, gateway_of((200, [event("a")]), whole) as other:
            gateways = SoakClient([one, other], "demo", lambda url, since, said=was_killed: said)
            async with aclosing(gateways) as client:
                answer = await client.ask(STREAMED, "r1")
        assert text_of(answer) == ("a" if was_killed else None)
        assert (answer.attempts >= 2) == was_killed


def test_a_broken_connection_is_excused_only_around_a_kill_of_its_gateway() -> None:
    now = 100.0
    downtimes = GatewayDowntimes(clock=lambda: now)
    assert not downtimes.was_killed("a", 0.0)
    downtimes.note_killed("a")
    assert downtimes.was_killed("a", 500.0), "it is down still"
    assert not downtimes.was_killed("b", 0.0)
    now = 110.0
    downtimes.note_all_back()
    assert downtimes.was_killed("a", 90.0)
    assert downtimes.was_killed("a", 110.0 + KEPT_S)
    assert not downtimes.was_killed("a", 111.0 + KEPT_S)


def test_a_soak_is_right_when_all_is_and_something_was_disturbed() -> None:
    result = SoakResult()
    result.tally.note(Answer("r1", '{"a": "a"}'), "greedy", '{"a": "a"}', is_streamed=True)
    assert not result.is_right, "nothing was disturbed"
    result.disturbances["kill_node"] += 1
    assert result.is_right
    result.tally.note(Answer("r2", '{"a": "aa"}'), "greedy", '{"a": "a"}', is_streamed=True)
    assert not result.is_right
    told = result.to_json()
    assert (told["finished"], told["streams"], told["changed"]) == (1, 1, 1)
    assert told["changes"][0]["request_id"] == "r2"
    assert told["changes"][0]["difference"].startswith("a, from 1")


def test_each_attempt_has_one_fate_in_the_logs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [("r1", "refused"), ("r1", "finished"), ("r2", "finished"), ("r2", "finished"), ("r4", "failed")]
    written = [json.dumps({"event": "request.finished", "request_id": one, "outcome": what}) for one, what in lines]
    log.write_text("\n".join(['{"event": "other"}', *written, '{"event": "request.finished", "requ']))
    check = FateCheck.of({"r1": 2, "r2": 1, "r3": 1, "r4": 1}, read_fates([log]))
    assert check.outcomes == {"finished": 2, "unknown": 1, "failed": 1}
    assert (check.twice, check.missing) == (["r2"], ["r3"])
    result = SoakResult(fates=check)
    result.disturbances["kill_node"] += 1
    assert not result.is_right
    result.fates.twice.clear()
    assert not result.is_right, "a fate is missing and no gateway was killed"
    result.had_gateway_killed = True
    assert result.is_right
