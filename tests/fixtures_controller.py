"""A controller over small real nodes, for the tests of `fleetctl.controller`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from fleetctl.controller.app import serve
from fleetctl.controller.config import ControllerConfig
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.providers.local import LocalProvider
from fleetctl.providers.process import ProcessTable
from fleetctl.providers.spec import NodeSpec

TOKEN = "token-of-the-controller"
NODE_TOKEN = "token-of-the-nodes"
SMALL_NODE = Path(__file__).parent / "fixtures_small_node.py"


def make_config(state_dir: Path, *, nodes: int = 2, **changes: Any) -> ControllerConfig:
    specs = tuple(make_spec(f"node-{number}") for number in range(1, nodes + 1))
    values: dict[str, Any] = {
        "state_dir": state_dir, "token": TOKEN, "node_token": NODE_TOKEN, "port": 0, "node_specs": specs,
        "probe_interval_s": 0.1, "scrape_interval_s": 0.2, "evaluation_interval_s": 0.2, "gateway_wait_s": 0.3,
        "drain_grace_s": 5.0,
    }  # fmt: skip
    return ControllerConfig(**{**values, **changes})


def make_spec(name: str, *extra_args: str) -> NodeSpec:
    return NodeSpec(name=name, model_dir="none", model="demo", extra_args=extra_args)


def make_provider(state_dir: Path) -> LocalProvider:
    """Starts small nodes instead of the engine; all else is the product's provider."""
    state_dir.mkdir(parents=True, exist_ok=True)
    token_file = state_dir / "node.token"
    token_file.write_text(NODE_TOKEN)
    command = (sys.executable, "-I", str(SMALL_NODE))
    return LocalProvider(state_dir / "run", node_token_file=token_file, engine_command=command)


def stop_all(state_dir: Path) -> None:
    table = ProcessTable(state_dir / "run")
    for name in table.running():
        table.stop(name, 0.5)


@asynccontextmanager
async def running_fleet(config: ControllerConfig) -> AsyncIterator[Controller]:
    """An open controller whose fleet loop turns until every node is ready. Its other loops stand still."""
    async with open_controller(config, make_provider(config.state_dir)) as controller:
        await fleet_ready(controller)
        yield controller


async def fleet_ready(controller: Controller) -> None:
    async def look() -> bool:
        await controller.loops.turn("fleet")
        states = [state for state in controller.fleet.nodes.values() if state.row.wanted]
        return bool(states) and all(state.is_serving for state in states)

    await until(look, "the fleet is ready")


async def until(
    condition: Callable[[], Awaitable[object]], what: str, timeout_s: float = 20.0, pause_s: float = 0.03
) -> Any:
    """The condition's first true result. Fails the test after the timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := await condition():
            return found
        await asyncio.sleep(pause_s)
    raise AssertionError(f"not within {timeout_s} s: {what}")


async def tell_node(controller: Controller, name: str, **facts: Any) -> None:
    """Set what a small node holds or says."""
    async with httpx.AsyncClient(trust_env=False) as http:
        url = controller.fleet.nodes[name].url
        (await http.post(f"{url}/test", json=facts)).raise_for_status()


async def ask_drain(controller: Controller, name: str) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {NODE_TOKEN}"}) as http:
        answer: dict[str, Any] = (await http.get(f"{controller.fleet.nodes[name].url}/admin/drain")).json()
        return answer


@asynccontextmanager
async def serving(config: ControllerConfig) -> AsyncIterator[str]:
    """A whole controller (loops, runs, HTTP) on a free port of this process. Gives its URL; ends it in order."""
    stopping = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    provider = make_provider(config.state_dir)
    served = asyncio.create_task(serve(config, url.set_result, provider=provider, stopping=stopping))
    await asyncio.wait({served, url}, return_when=asyncio.FIRST_COMPLETED)
    if served.done():
        served.result()
    try:
        yield url.result()
    finally:
        stopping.set()
        await served
