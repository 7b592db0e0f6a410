"""Streams outlive their nodes: real nodes that end without a word, and clients that read what they would have read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fleetctl.settings.gateway import GatewaySettings
from tests.engine.api.test_continuation import said
from tests.fixtures.engine import TOKEN, EngineNode, start_node
from tests.fixtures.gateway import ScriptedController, Served, scripted_controller, served_gateway, until

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

NUM_STREAMS = 20
PLAIN = range(NUM_STREAMS, NUM_STREAMS + 6)
# Those that are well answer in these on a busy machine too.
LIMITS = GatewaySettings(probe_after_s=0.3, probe_limit_s=4, connect_limit_s=20)
SLOW, OTHERS = 50.0, 3.0  # 80 steps of the victim take 8 s: none ends before it does
FIRST_EVENTS = 3


class Link:
    """A TCP relay before a node, that can be cut."""

    def __init__(self, target: str) -> None:
        self._port = int(target.rpartition(":")[2])
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.url = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, other_writer]
        await asyncio.gather(self._copy(reader, other_writer), self._copy(other_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def cut(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineNode]]:
    """The first one is the victim; it is well again after each fault but the last."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(start_node(tmp_path_factory.mktemp(name))) for name in "abc"]


@asynccontextmanager
async def gateway_before(tmp_path: Path, urls: list[str], **more: Any) -> AsyncIterator[Served]:
    async with scripted_controller() as controller:
        route(controller, urls)
        async with served_gateway(tmp_path, controller.url, node_token=TOKEN, limits=LIMITS, **more) as served:
            await until(lambda: served.gateway.routing.table is not None)
            yield served


def route(controller: ScriptedController, urls: list[str]) -> None:
    controller.version += 1
    controller.routes = [
        {"node": f"n{i}", "url": url, "state": "active", "model": "tiny"} for i, url in enumerate(urls)
    ]


def make_body(number: int) -> tuple[str, dict[str, Any]]:
    """Of all kinds; long enough to be in the middle of its answer when a node dies."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0, "return_token_ids": True},
        {"seed": number, "stream_options": {"include_usage": True}},
        {},  # its seed is its id's
        {"seed": number, "logprobs": True, "top_logprobs": 2},
        {"seed": number, "n": 2, "stop": ["zq"]},
    ]
    body = {"messages": [{"role": "user", "content": f"tell me about number {number}"}], "stream": True}
    body |= {"model": "tiny", "max_tokens": 80, "ignore_eos": True}
    return "/v1/chat/completions", body | kinds[number % len(kinds)]


async def read(served: Served, url: str, number: int, on_event: Callable[[], None] = lambda: None) -> list[str]:
    """All events of one stream."""
    path, body = make_body(number)
    headers = {"X-Request-Id": f"s{number}"}
    text = b""
    async with served.session.post(url + path, json=body, headers=headers) as response:
        assert response.status == 200
        async for data in response.content.iter_any():
            text += data
            if text.count(b"\n\n") >= FIRST_EVENTS:
                on_event()
    assert b":p " not in text
    assert b"fleet.handoff" not in text
    return text.decode().removesuffix("\n\n").split("\n\n")


async def ask(served: Served, url: str, number: int) -> Any:
    """The choices of a plain answer."""
    path, body = make_body(number)
    body |= {"stream": False, "stream_options": None}
    async with served.session.post(url + path, json=body, headers={"X-Request-Id": f"s{number}"}) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["choices"]


def told(events: list[str]) -> dict[Any, Any]:
    answer = said([event.removeprefix("data: ") for event in events])
    answer["head"].pop("created")
    return answer


async def ask_through(served: Served, trouble: Callable[[], object]) -> tuple[list[list[str]], list[Any]]:
    """All streams and plain answers, with `trouble` when each stream has had some of its events."""
    begun: set[int] = set()

    def note(number: int) -> Callable[[], None]:
        return lambda: begun.add(number)

    tasks = [asyncio.create_task(read(served, served.url, n, note(n))) for n in range(NUM_STREAMS)]
    plain = [asyncio.create_task(ask(served, served.url, n)) for n in PLAIN]
    await until(lambda: len(begun) == NUM_STREAMS)
    trouble()
    return await asyncio.gather(*tasks), await asyncio.gather(*plain)


FAULTS: dict[str, Callable[[EngineNode, Link], object]] = {
    "cut": lambda node, link: link.cut(),
    "stop api": lambda node, link: node.proc.send_signal(signal.SIGSTOP),
    "stop core": lambda node, link: os.kill(node.core_pid(), signal.SIGSTOP),
    "kill core": lambda node, link: os.kill(node.core_pid(), signal.SIGKILL),
    "kill api": lambda node, link: node.proc.send_signal(signal.SIGKILL),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_answer_is_lost_or_changed_when_a_node_ends_without_a_word(
    tmp_path: Path, nodes: list[EngineNode], fault: str
) -> None:
    victim, *others = nodes
    await asyncio.to_thread(victim.wait_ready)
    core_pid = victim.core_pid()
    link = Link(victim.url)
    await link.open()
    async with gateway_before(tmp_path, [link.url, *(node.url for node in others)]) as served:
        quiet = await asyncio.gather(*(read(served, others[0].url, n) for n in range(NUM_STREAMS)))
        quiet_plain = await asyncio.gather(*(ask(served, others[0].url, n) for n in PLAIN))
        for node in nodes:
            times = SLOW if node is victim else OTHERS
            await asyncio.to_thread(node.http.post, "/admin/faults", json={"slow_steps": times})
        answers, plain = await ask_through(served, lambda: FAULTS[fault](victim, link))
        fates = [await served.fate(f"s{n}") for n in (*range(NUM_STREAMS), *PLAIN)]
        link.cut()
        victim.proc.send_signal(signal.SIGCONT)
        with contextlib.suppress(ProcessLookupError):
            os.kill(core_pid, signal.SIGCONT)
    assert {fate["fate"] for fate in fates} == {"finished"}
    for number, events in enumerate(answers):
        assert told(events) == told(quiet[number]), f"stream {number}: {fates[number]}"
    assert plain == quiet_plain
    moved = [fate for fate in fates if fate["moves"]]
    assert moved, "some streams were on the node that ended"
    assert all(fate["moves"][0]["from"] == "n0" and fate["moves"][0]["tokens"] for fate in moved)
