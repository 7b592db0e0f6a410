"""The gateway's process: how it stops, and how it says that it can't start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from fleetctl.kit.reserved_port import reserve_port
from tests.fixtures.gateway import (
    CONTROLLER_TOKEN,
    DEADLINE_S,
    NODE_TOKEN,
    START_S,
    chat_text,
    scripted_controller,
    scripted_nodes,
)

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

PROGRAM = f"""
import sys
from pathlib import Path
from fleetctl.gateway.life import run_gateway
from fleetctl.kit.errors import FleetctlError
from fleetctl.settings.gateway import GatewaySettings
port, controller, run_dir = sys.argv[1:]
try:
    run_gateway(GatewaySettings(port=int(port)), controller_url=controller, controller_token="{CONTROLLER_TOKEN}",
        node_token="{NODE_TOKEN}", run_dir=Path(run_dir))
except FleetctlError as error:
    print(error.message, file=sys.stderr)
    raise SystemExit(error.exit_code)
"""


@asynccontextmanager
async def gateway_process(port: int, controller_url: str, run_dir: Path) -> AsyncIterator[Process]:
    arguments = [str(port), controller_url, str(run_dir)]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, *arguments, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    except BaseException as error:
        if process.returncode is None:
            process.kill()
        error.add_note(b"".join(await process.communicate()).decode(errors="replace")[-3000:])
        raise
    if process.returncode is None:
        process.kill()
    await process.communicate()


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url + "/health") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def until_health(session: aiohttp.ClientSession, url: str, process: Process, *, is_up: bool) -> None:
    async with asyncio.timeout(START_S if is_up else DEADLINE_S):
        while await answers(session, url) is not is_up:  # another process: there is no event
            assert process.returncode is None or not is_up, "the gateway's process ended"
            await asyncio.sleep(0.02)


async def test_sigterm_lets_streams_finish_and_exits_with_zero(tmp_path: Path) -> None:
    async with scripted_nodes("a") as (node,), scripted_controller() as controller, aiohttp.ClientSession() as session:
        controller.set(node)
        port = reserve_port()
        url = f"http://127.0.0.1:{port}"
        async with gateway_process(port, controller.url, tmp_path) as process:
            await until_health(session, url, process, is_up=True)
            node.wait_at = 4
            node.gate.clear()
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "seed": 1, "stream": True}
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                assert response.status == 200
                process.send_signal(signal.SIGTERM)
                await until_health(
                    session, url, process, is_up=False
                )  # it takes nothing new: an idle gateway would be gone
                assert process.returncode is None
                node.gate.set()
                text = (await response.read()).decode()
            assert text.endswith("data: [DONE]\n\n")
            chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
            assert "".join(c["choices"][0]["delta"]["content"] for c in chunks if c["choices"]) == chat_text()
            async with asyncio.timeout(DEADLINE_S):
                assert await process.wait() == 0


async def test_a_port_in_use_is_one_clear_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with gateway_process(port, "http://127.0.0.1:1", tmp_path) as process:
            _, stderr = await asyncio.wait_for(process.communicate(), DEADLINE_S)
            assert process.returncode == 2
            assert stderr.decode() == f"gateway: cannot listen on 127.0.0.1:{port}: {os.strerror(98)}\n"
