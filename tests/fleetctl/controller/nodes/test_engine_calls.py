"""What engines of others are asked to do, by the verbs that our own has: over HTTP, with the answers that they give."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fleetctl.controller.controller import Controller, open_controller
from fleetctl.wire.node import NodePhase
from runbooks.run import Run, RunStatus
from tests.fixtures import ROOT
from tests.fixtures.controller import NoProvider, make_config, until

pytestmark = pytest.mark.anyio

KEY = "sk-of-the-engine"


class Engine:
    """The routes of vLLM or SGLang as far as verbs ask them; `has`: those that are switched on."""

    def __init__(self, name: str, *has: str) -> None:
        self.name = name
        self.has = set(has)
        self.asleep = False
        self.busy = False
        self.adapters: dict[str, str] = {}
        self.refusal = ""  # name of the recorded answer to an adapter
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self.probed_with: set[str] = set()

    def app(self) -> web.Application:
        app = web.Application()
        for path, answer in (
            ("/health", "ok"),
            ("/ready", "ok"),
            ("/version", {"version": "0.33.0"}),
            ("/server_info", {"version": "0.5.23", "tp_size": 1, "mem_fraction_static": 0.8}),
        ):
            app.router.add_get(path, self._says(answer))
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        for path, handler in {
            "/sleep": self.sleep,
            "/wake_up": self.wake,
            "/reset_prefix_cache": self.reset,
            "/flush_cache": self.reset,
            "/v1/load_lora_adapter": self.load,
            "/v1/unload_lora_adapter": self.unload,
            "/load_lora_adapter": self.load,
            "/unload_lora_adapter": self.unload,
            "/start_profile": self.profile,
            "/stop_profile": self.profile,
        }.items():
            if path in self.has:
                app.router.add_post(path, handler)
        if "/sleep" in self.has:
            app.router.add_get("/is_sleeping", self.is_sleeping)
        return app

    def _says(self, answer: object) -> Any:
        async def say(request: web.Request) -> web.Response:
            self.probed_with.add(request.headers.get("Authorization", ""))
            return web.json_response(answer)

        return say

    def _note(self, request: web.Request) -> None:
        self.asked.append(request.path_qs)
        self.tokens.add(request.headers.get("Authorization", ""))

    async def models(self, _: web.Request) -> web.Response:
        rows = [{"id": one, "object": "model", "owned_by": self.name} for one in ("m", *self.adapters)]
        return web.json_response({"object": "list", "data": rows})

    async def metrics(self, _: web.Request) -> web.Response:
        running = {"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs"}[self.name]
        waiting = {"vllm": "vllm:num_requests_waiting", "sglang": "sglang:num_queue_reqs"}[self.name]
        return web.Response(text=f'{running}{{model_name="m"}} 0\n{waiting}{{model_name="m"}} 0\n')

    async def is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.asleep})

    async def sleep(self, request: web.Request) -> web.Response:
        self._note(request)
        self.asleep = True
        return web.Response()

    async def wake(self, request: web.Request) -> web.Response:
        self._note(request)
        self.asleep = False
        return web.Response()

    async def reset(self, request: web.Request) -> web.Response:
        self._note(request)
        if self.busy:
            self.busy = False
            return web.Response(status=400, text="Flush cache failed: requests are running.")
        return web.Response(text="Cache flushed.") if self.name == "sglang" else web.json_response({"success": True})

    async def load(self, request: web.Request) -> web.Response:
        self._note(request)
        body = await request.json()
        if self.refusal:
            return recorded(self.refusal)
        if "missing" in body["lora_path"]:
            error = {"message": f"No adapter found for {body['lora_path']}", "type": "NotFoundError", "code": 404}
            return web.json_response({"error": error}, status=404)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return web.Response(text=f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        self._note(request)
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return recorded("adapter not loaded")
        return web.Response(text="Success")

    async def profile(self, request: web.Request) -> web.Response:
        self._note(request)
        return web.Response()


def recorded(name: str) -> web.Response:
    """What a real vLLM answered."""
    told = json.loads((ROOT / "tests/data/answers/vllm_0.32.0_calls.json").read_text())[name]
    return web.Response(status=told["status"], text=told["body"], content_type="application/json")


VLLM = (
    "/sleep",
    "/wake_up",
    "/reset_prefix_cache",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/start_profile",
    "/stop_profile",
)
SGLANG = ("/flush_cache", "/load_lora_adapter", "/unload_lora_adapter", "/start_profile", "/stop_profile")


class Fleet:
    def __init__(self, controller: Controller) -> None:
        self.controller = controller

    async def turn(self) -> None:
        for loop in ("discovery", "fleet", "scrape", "alerts"):
            await self.controller.loops.run_turn(loop)

    async def act(self, command: str) -> Run:
        executor = self.controller.executor
        run = await executor.act(command, reason="a test", requested_by="person")
        return run if run.status.is_terminal else await executor.drive(run.id)

    def phase(self, name: str) -> tuple[NodePhase, str]:
        state = self.controller.fleet.nodes[name]
        return state.phase, state.reason


@asynccontextmanager
async def fleet_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **engines: Engine) -> AsyncIterator[Fleet]:
    """Found nodes by these names; all scrape and look by themselves."""
    monkeypatch.setenv("ENGINE_KEY", KEY)
    async with AsyncExitStack() as stack:
        targets = []
        for name, engine in engines.items():
            runner = web.AppRunner(engine.app(), shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            address = f"127.0.0.1:{runner.addresses[0][1]}"
            targets.append({"targets": [address], "labels": {"node": name}})
        config = make_config(
            tmp_path / "state",
            start_nodes=False,
            targets=[{"api_key": "k", "static_configs": targets}],
            api_keys={"k": {"env": "ENGINE_KEY"}},
            capacity_floor_ratio=0.1,
        )
        controller = await stack.enter_async_context(open_controller(config, NoProvider()))
        fleet = Fleet(controller)
        names = set(engines)

        async def serve() -> bool:
            await fleet.turn()
            states = controller.fleet.nodes
            return all(name in states and states[name].is_serving for name in names)

        await until(serve, "all serve")
        task = stack.enter_context(_turning(fleet))
        assert task is not None
        yield fleet


class _turning:
    """Looks and scrapes go on while an action waits for them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def __enter__(self) -> object:
        import asyncio

        async def turn() -> None:
            while True:
                await self._fleet.turn()
                await asyncio.sleep(0.05)

        self._task = asyncio.create_task(turn())
        return self._task

    def __exit__(self, *_: object) -> None:
        self._task.cancel()


async def test_vllm_sleeps_is_not_ready_and_wakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("vllm", *VLLM)
    async with fleet_of(tmp_path, monkeypatch, a=engine, b=Engine("vllm", *VLLM)) as fleet:
        run = await fleet.act("sleep a")
        assert run.status is RunStatus.SUCCEEDED, run.error
        assert (engine.asleep, engine.asked) == (True, ["/sleep?level=1"])
        assert fleet.phase("a") == (NodePhase.NOT_READY, "asleep")
        assert (await fleet.act("sleep a")).status is RunStatus.SUCCEEDED
        assert engine.asked == ["/sleep?level=1"], "it sleeps already"
        run = await fleet.act("wake a --wait 20s")
        assert run.status is RunStatus.SUCCEEDED, run.error
        assert not engine.asleep
        assert fleet.phase("a") == (NodePhase.READY, "")
        assert (await fleet.act("drain a")).status is RunStatus.SUCCEEDED
        assert (await fleet.act("node stop a")).status is not RunStatus.RUNNING, "it asks what it holds, too"
    assert engine.tokens == {f"Bearer {KEY}"}, "its own key, and never our token"
    assert engine.probed_with == {f"Bearer {KEY}"}, "whoever asks for its health"


async def test_what_is_not_switched_on_is_refused_before_anything_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine("vllm")
    async with fleet_of(tmp_path, monkeypatch, a=engine, b=Engine("vllm")) as fleet:
        for command, words in {
            "sleep a": "/sleep answers 404: it is not switched on; start the engine with VLLM_SERVER_DEV_MODE=1",
            "wake a": "/wake_up answers 404",
            "reset-prefix-cache a": "VLLM_SERVER_DEV_MODE=1",
            "adapter load a --name x --path /x": "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
            "profile start a": "start the engine with --profiler-config",
        }.items():
            run = await fleet.act(command)
            assert run.status is RunStatus.REFUSED, (command, run.status, run.error)
            assert words in run.error
            assert fleet.phase("a") == (NodePhase.READY, "")
    assert engine.asked == []


async def test_vllm_loads_and_unloads_adapters_once_and_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine("vllm", *VLLM)
    async with fleet_of(tmp_path, monkeypatch, a=engine) as fleet:
        for _ in range(2):
            assert (await fleet.act("adapter load a --name x --path /x")).status is RunStatus.SUCCEEDED
        assert (engine.adapters, engine.asked) == ({"x": "/x"}, ["/v1/load_lora_adapter"])
        refused = await fleet.act("adapter load a --name y --path /missing")
        assert refused.status is RunStatus.REFUSED
        assert "refuses to load an adapter: No adapter found for /missing" in refused.error
        engine.refusal = "adapters not enabled"
        refused = await fleet.act("adapter load a --name y --path /y")
        assert refused.status is RunStatus.REFUSED
        assert "LoRA is not enabled" in refused.error
        assert "--enable-lora" in refused.error
        for _ in range(2):
            assert (await fleet.act("adapter unload a --name x")).status is RunStatus.SUCCEEDED
        assert engine.adapters == {}
        assert "is its model, and no adapter" in (await fleet.act("adapter unload a --name m")).error


async def test_caches_are_reset_and_profiles_begin_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm, sglang = Engine("vllm", *VLLM), Engine("sglang", *SGLANG)
    sglang.busy = True
    async with fleet_of(tmp_path, monkeypatch, v=vllm, s=sglang) as fleet:
        for name in ("v", "s"):
            for command in ("reset-prefix-cache", "profile start", "profile stop"):
                run = await fleet.act(f"{command} {name}")
                assert run.status is RunStatus.SUCCEEDED, (command, run.error)
        refused = await fleet.act("sleep s")
        assert refused.status is RunStatus.REFUSED
        assert "does not say whether its memory is given back" in refused.error
    assert vllm.asked == ["/reset_prefix_cache", "/start_profile", "/stop_profile"]
    assert sglang.asked == ["/flush_cache", "/flush_cache", "/start_profile", "/stop_profile"], "it was busy at first"


async def test_sglang_without_adapters_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet_of(tmp_path, monkeypatch, s=Engine("sglang")) as fleet:
        run = await fleet.act("adapter load s --name x --path /x")
        assert run.status is RunStatus.REFUSED
        assert "/load_lora_adapter answers 404: it is not switched on; start the engine with --enable-lora" in run.error
