"""Real small servers on loopback for gateway and load tests: scripted nodes, and a controller's routing table.

A node's tokens depend on (prompt, seed, position) only, as the contract asks, so that a moved request can be compared
with one that was left alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from fleetctl.gateway.app import Gateway, make_server
from fleetctl.gateway.proxy import MOVE_PATIENCE_S

NODE_TOKEN = "node-secret"
CONTROLLER_TOKEN = "controller-secret"
DEADLINE_S = 20.0


async def until(condition: Callable[[], bool], what: str = "condition") -> None:
    """Wait until the condition holds; fails the test after a generous deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.005)


def token_at(prompt: str, seed: int, position: int) -> int:
    digest = hashlib.blake2b(f"{prompt}|{seed}|{position}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) % 8192


def expected_text(prompt: str, seed: int, max_tokens: int) -> str:
    return "".join(f" t{token_at(prompt, seed, i)}" for i in range(max_tokens))


@dataclass
class Script:
    """What a node does with requests. Positions count output tokens of the whole request, over all nodes."""

    refuse: tuple[int, dict[str, str]] | None = None  # status and headers
    fail_continue: int | None = None  # status of /internal/continue
    drop_before_answer: bool = False  # close the connection instead of answering
    hand_off_at: int | None = None
    linger_s: float = 0.0  # between a hand-off and the end of its stream
    cut_at: int | None = None  # abort the connection
    end_at: int | None = None  # end the stream in order, but without [DONE]
    error_at: int | None = None  # send an error event, then [DONE]
    piece_bytes: int | None = None  # write frames in pieces of this size
    newline: bytes = b"\n"
    repeat_at: int | None = None  # send this token twice
    change_at: int | None = None  # send a wrong token here
    stop_at: int | None = None  # finish early


@dataclass
class ScriptedNode:
    name: str
    script: Script = field(default_factory=Script)
    url: str = ""
    gate: asyncio.Event = field(default_factory=asyncio.Event)  # closed: streams wait before their next token
    wait_at: int = 0  # the gate holds at this position
    seen: list[dict[str, Any]] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    hung_up: list[str] = field(default_factory=list)
    port: int = 0
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/internal/continue", self._continue)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self.seen.append({"path": request.path, "headers": request.headers.copy()})
        if self.script.refuse:
            status, headers = self.script.refuse
            return web.json_response({"error": {"message": "refused"}}, status=status, headers=headers)
        return web.json_response({"object": "list", "data": [{"id": "demo", "object": "model", "owned_by": self.name}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._first(request, body, "chat", json.dumps(body.get("messages")))

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._first(request, body, "completion", str(body.get("prompt")))

    async def _first(self, request: web.Request, body: dict[str, Any], kind: str, prompt: str) -> web.StreamResponse:
        self.seen.append({"path": request.path, "headers": request.headers.copy(), "body": body})
        if self.script.drop_before_answer:
            assert request.transport is not None
            request.transport.abort()
            await asyncio.sleep(DEADLINE_S)
        if self.script.refuse:
            status, headers = self.script.refuse
            return web.json_response({"error": {"message": "refused"}}, status=status, headers=headers)
        if body.get("max_tokens", 16) < 1:
            return web.json_response({"error": {"message": "max_tokens must be positive"}}, status=400)
        state = {
            "id": f"{kind}-{request.headers['X-Request-Id']}",
            "kind": kind,
            "prompt": prompt,
            "seed": body.get("seed", 0),
            "max_tokens": body.get("max_tokens", 16),
            "stream": bool(body.get("stream")),
            "sent": 0,
        }
        return await self._answer(request, state)

    async def _continue(self, request: web.Request) -> web.StreamResponse:
        handoff = await request.json()
        self.seen.append({"path": request.path, "headers": request.headers.copy(), "body": handoff})
        if request.headers.get("Authorization") != f"Bearer {NODE_TOKEN}":
            return web.json_response({"error": {"message": "who are you"}}, status=401)
        if self.script.fail_continue:
            return web.json_response({"error": {"message": "cannot"}}, status=self.script.fail_continue)
        if self.script.refuse:
            status, headers = self.script.refuse
            return web.json_response({"error": {"message": "refused"}}, status=status, headers=headers)
        assert handoff["version"] == 1
        return await self._answer(request, handoff["state"])

    async def _answer(self, request: web.Request, state: dict[str, Any]) -> web.StreamResponse:
        request_id = request.headers["X-Request-Id"]
        self.open.add(request_id)
        try:
            return await (self._stream if state["stream"] else self._whole)(request, state)
        except (asyncio.CancelledError, ConnectionError):
            self.hung_up.append(request_id)
            raise
        finally:
            self.open.discard(request_id)

    async def _whole(self, request: web.Request, state: dict[str, Any]) -> web.StreamResponse:
        if state["max_tokens"] > self.wait_at:
            await self.gate.wait()
        can_move = request.headers.get("X-Fleet-Handoff") == "accept"
        if can_move and self.script.hand_off_at is not None:
            moved = {**state, "sent": self.script.hand_off_at}
            return web.json_response(_handoff(request, moved), status=202, headers={"X-Fleet-Handoff": "state"})
        if self.script.cut_at is not None:
            response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"id":')
            assert request.transport is not None
            request.transport.close()
            return response
        text = expected_text(state["prompt"], state["seed"], state["max_tokens"])
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        usage = {"completion_tokens": state["max_tokens"]}
        return web.json_response({"id": state["id"], "choices": [choice], "usage": usage})

    async def _stream(self, request: web.Request, state: dict[str, Any]) -> web.StreamResponse:
        script = self.script
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        assert request.transport is not None
        can_move = request.headers.get("X-Fleet-Handoff") == "accept"

        async def frame(data: str, event: str = "") -> None:
            newline = script.newline
            head = b"event: " + event.encode() + newline if event else b""
            await self._write(response, head + b"data: " + data.encode() + newline + newline)

        stop = min(state["max_tokens"], script.stop_at or state["max_tokens"])
        for position in range(state["sent"], stop):
            if position >= self.wait_at:
                await self.gate.wait()
            if can_move and script.hand_off_at is not None and position >= script.hand_off_at:
                await frame(json.dumps(_handoff(request, {**state, "sent": position})), "fleet.handoff")
                await asyncio.sleep(script.linger_s)  # its end comes later than its last event
                return response
            if script.cut_at is not None and position >= script.cut_at:
                await response.write(b'data: {"half')
                await asyncio.sleep(0.01)  # let what was written leave before the connection dies
                request.transport.abort()
                return response
            if script.end_at is not None and position >= script.end_at:
                return response
            if script.error_at is not None and position >= script.error_at:
                await frame(json.dumps({"error": {"message": "broken", "type": "server_error"}}))
                await frame("[DONE]")
                return response
            token = token_at(state["prompt"], state["seed"], position) + (position == script.change_at)
            for _ in range(2 if position == script.repeat_at else 1):
                await frame(json.dumps(_chunk(state, f" t{token}", [token])))
        await frame(json.dumps(_chunk(state, "", [], "length")))
        usage = {"prompt_tokens": 1, "completion_tokens": stop, "total_tokens": 1 + stop}
        await frame(json.dumps({"id": state["id"], "choices": [], "usage": usage}))
        await frame("[DONE]")
        return response

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        size = self.script.piece_bytes or len(data)
        for start in range(0, len(data), size):
            await response.write(data[start : start + size])
            if self.script.piece_bytes:
                await asyncio.sleep(0)  # each piece may travel on its own


def _chunk(state: dict[str, Any], text: str, token_ids: list[int], finish_reason: str | None = None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "token_ids": token_ids}
    if state["kind"] == "chat":
        choice["delta"] = {"content": text}
    else:
        choice["text"] = text
    return {"id": state["id"], "choices": [choice]}


def _handoff(request: web.Request, state: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "request_id": request.headers["X-Request-Id"], "kind": state["kind"], "state": state}


class ScriptedController:
    """The controller's routing route, long-polled as the contract says."""

    def __init__(self) -> None:
        self.version = 0
        self.routes: list[dict[str, str]] = []
        self.changed = asyncio.Event()
        self.url = ""
        self.polls: list[dict[str, str]] = []
        self.answer: web.Response | None = None  # given instead of a table
        self._runner: web.AppRunner | None = None
        self.port = 0

    def set(self, *nodes: ScriptedNode, cordoned: tuple[ScriptedNode, ...] = (), version: int | None = None) -> None:
        self.version = self.version + 1 if version is None else version
        self.routes = [{"node": n.name, "url": n.url, "state": "active", "model": "demo"} for n in nodes]
        self.routes += [{"node": n.name, "url": n.url, "state": "cordoned", "model": "demo"} for n in cordoned]
        self.changed.set()
        self.changed = asyncio.Event()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/routing", self._routing)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _routing(self, request: web.Request) -> web.Response:
        self.polls.append(dict(request.query))
        if request.headers.get("Authorization") != f"Bearer {CONTROLLER_TOKEN}":
            return web.json_response({"error": "no"}, status=401)
        if self.answer is not None:
            return self.answer
        if self.version == 0:
            return web.Response(status=204)
        after = request.query.get("after")
        if after is not None and int(after) >= self.version:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), float(request.query["wait_s"]))
            if int(after) >= self.version:
                return web.Response(status=204)
        return web.json_response({"version": self.version, "routes": self.routes})


@dataclass
class Served:
    """A gateway that answers on loopback, and a client session for it."""

    gateway: Gateway
    url: str
    session: aiohttp.ClientSession
    stop: Callable[[], None]

    async def chat(self, prompt: str = "hello", *, max_tokens: int = 8, seed: int = 1, **more: Any) -> Reply:
        headers = more.pop("headers", {})
        body = {"model": "demo", "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
        body |= {"seed": seed, "stream": True, **more}
        async with self.session.post(self.url + "/v1/chat/completions", json=body, headers=headers) as response:
            return Reply(response.status, response.headers.copy(), await response.read())

    async def fate(self, request_id: str) -> dict[str, Any]:
        async with self.session.get(f"{self.url}/gateway/requests/{request_id}") as response:
            value: dict[str, Any] = await response.json()
            return value


@dataclass
class Reply:
    status: int
    headers: CIMultiDict[str]
    body: bytes

    @property
    def frames(self) -> list[str]:
        return [f for f in self.body.decode().replace("\r\n", "\n").split("\n\n") if f]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(f.removeprefix("data: ")) for f in self.frames if f.startswith("data: {")]

    @property
    def text(self) -> str:
        chunks = [choice for event in self.events for choice in event.get("choices", [])]
        return "".join(c["delta"].get("content", "") for c in chunks if "delta" in c)

    @property
    def is_done(self) -> bool:
        return bool(self.frames) and self.frames[-1] == "data: [DONE]"

    @property
    def error(self) -> dict[str, Any] | None:
        if not self.headers["Content-Type"].startswith("text/event-stream"):
            found: dict[str, Any] | None = json.loads(self.body).get("error")
            return found
        return next((e["error"] for e in self.events if "error" in e), None)


def chat_text(prompt: str = "hello", *, max_tokens: int = 8, seed: int = 1) -> str:
    """What an unmoved chat of `Served.chat` says."""
    return expected_text(json.dumps([{"role": "user", "content": prompt}]), seed, max_tokens)


@asynccontextmanager
async def scripted_nodes(*names: str) -> AsyncIterator[list[ScriptedNode]]:
    nodes = [ScriptedNode(name) for name in names]
    for node in nodes:
        node.gate.set()
        await node.start()
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


@asynccontextmanager
async def scripted_controller() -> AsyncIterator[ScriptedController]:
    controller = ScriptedController()
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop()


@asynccontextmanager
async def served_gateway(
    run_dir: Path,
    controller_url: str,
    *,
    move_patience_s: float = MOVE_PATIENCE_S,
    drain_grace_s: float = 30.0,
    node_token: str = NODE_TOKEN,
) -> AsyncIterator[Served]:
    """A gateway in this process, on a port of its own."""
    gateway = Gateway(
        controller_url=controller_url,
        controller_token=CONTROLLER_TOKEN,
        node_token=node_token,
        run_dir=run_dir,
        move_patience_s=move_patience_s,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = make_server(gateway, drain_grace_s=drain_grace_s)

    def stop() -> None:
        server.should_exit = True

    async with gateway.opened(), aiohttp.ClientSession() as session:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await until(lambda: server.started or task.done(), "gateway started")
            yield Served(gateway, url, session, stop)
            gateway.fates.check_integrity()
            gateway.loads.check_integrity()
        finally:
            stop()
            assert gateway.proxy is not None
            gateway.proxy.abort_all()
            await session.close()
            await task


@asynccontextmanager
async def small_fleet(
    run_dir: Path, *names: str, move_patience_s: float = 0.0
) -> AsyncIterator[tuple[Served, list[ScriptedNode], ScriptedController]]:
    """Scripted nodes behind a gateway that knows them all."""
    async with scripted_nodes(*names) as nodes, scripted_controller() as controller:
        controller.set(*nodes)
        async with served_gateway(run_dir, controller.url, move_patience_s=move_patience_s) as served:
            await until(lambda: served.gateway.routing.table is not None, "a table")
            yield served, nodes, controller
