"""`fleetctl top --web` in a real Chromium: the screen comes, keys work, and nobody gets in without the token."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from fleetctl.bench.cockpit_side import Answers, handler_of
from tests.fixtures.chromium import page_of
from tests.fixtures.controller import until

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.anyio, pytest.mark.timeout(600)]


class Controller:
    """Answers as one of three nodes, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        answers = handler_of(Answers(3))
        asked = self.asked

        class Noted(answers):  # type: ignore[misc, valid-type]
            def do_GET(self) -> None:
                asked.add(self.path.partition("?")[0])
                super().do_GET()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Noted)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def controller() -> Iterator[Controller]:
    made = Controller()
    yield made
    made.close()


class Server:
    """`fleetctl top --web`, and the address that it prints."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process, self.address = process, address


@pytest.fixture
async def server(controller: Controller, tmp_path: Path) -> AsyncIterator[Server]:
    options = ["--controller", controller.url, "--state-dir", str(tmp_path / "state")]
    command = [sys.executable, "-m", "fleetctl.cli", *options, "top", "--web"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(180):
        printed = await process.stdout.readline()
    yield Server(process, printed.decode().strip())
    if process.returncode is None:
        process.terminate()
        await process.wait()


@pytest.fixture
def address(server: Server) -> str:
    return server.address


async def test_keys_in_a_browser_reach_the_cockpit(controller: Controller, address: str, tmp_path: Path) -> None:
    async with page_of(address, tmp_path / "browser") as page:
        await page.wait_until("document.body.classList.contains('-first-byte')")
        assert await page.value("location.search") == ""  # the token does not stay where people copy it from
        await until(lambda: _true("/v1/status" in controller.asked), "the cockpit asks its controller")
        assert "/v1/audit" not in controller.asked
        await page.value("document.querySelector('textarea').focus()")  # as a click does
        await page.press("g", "u")
        await until(lambda: _true("/v1/audit" in controller.asked), "the audit's screen is shown")


async def _true(found: bool) -> bool:
    return found


async def test_nobody_gets_in_without_the_token_under_another_name_or_from_another_page(address: str) -> None:
    place = address.partition("/?")[0]
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.get(place)).status_code == 401
        assert (await http.get(f"{place}/?token=guessed")).status_code == 401
        assert (await http.get(f"{place}/ws")).status_code == 401
        assert (await http.get(address, headers={"Host": "evil.example"})).status_code == 403
        assert (await http.get(address, headers={"Origin": "http://evil.example"})).status_code == 403
        entered = await http.get(address, follow_redirects=True)
        assert entered.status_code == 200
        assert "default-src 'self'" in entered.headers["Content-Security-Policy"]


async def test_a_server_that_is_killed_leaves_no_page_behind(
    server: Server, controller: Controller, tmp_path: Path
) -> None:
    async with page_of(server.address, tmp_path / "browser") as page:
        await page.wait_until("document.body.classList.contains('-first-byte')")
        await until(lambda: _true("/v1/status" in controller.asked), "the cockpit asks its controller")
        pages = processes_of(str(tmp_path / "state")) - {server.process.pid}
        assert pages
        server.process.kill()
        await server.process.wait()
        await until(lambda: _true(not pages & processes_of(str(tmp_path / "state"))), "the page's process ends")


def processes_of(argument: str) -> set[int]:
    """Those that were started with it."""
    found = set()
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if argument.encode() in one.read_bytes().split(b"\0"):
                found.add(int(one.parent.name))
    return found
