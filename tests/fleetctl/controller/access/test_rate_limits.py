"""Whoever asks too often is told to wait, and holds nobody else up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from fleetctl.client import ControllerClient
from fleetctl.controller.alertmanager.webhook import WEBHOOK_PATH
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.http_api import create_app
from fleetctl.wire.freeze import FreezeRequest
from fleetctl.wire.identity import TokenRequest, TokenRole
from tests.fixtures.controller import TOKEN, NoProvider, make_config, serving
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio

ELSEWHERE, NEIGHBOUR, HERE = ("192.0.2.9", 1), ("192.0.2.10", 1), ("127.0.0.1", 1)
LIMITS = {"reads_per_s": 2, "changes_per_s": 0.5}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Callers:
    """One application, asked by several."""

    def __init__(self, controller: Controller, clock: DrivenClock) -> None:
        self.controller = controller
        self.clock = clock
        self._app = create_app(controller, asyncio.Event())

    @asynccontextmanager
    async def http(self, token: str | None, client: tuple[str, int] = ELSEWHERE) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        transport = httpx.ASGITransport(self._app, client=client)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
            yield http

    async def statuses(
        self, count: int, method: str, path: str, token: str | None, client: tuple[str, int] = ELSEWHERE
    ) -> Sequence[int]:
        async with self.http(token, client) as http:
            return [(await http.request(method, path)).status_code for _ in range(count)]


@pytest.fixture
async def callers(tmp_path: Path) -> AsyncIterator[Callers]:
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=0, rate_limits=LIMITS), NoProvider(), clock) as controller:
        yield Callers(controller, clock)


async def test_a_token_that_asks_too_often_waits_and_no_other_does(callers: Callers) -> None:
    request = TokenRequest(name="ann", role=TokenRole.OPERATOR)
    ann = (await callers.controller.tokens.create(request, "admin")).token
    assert await callers.statuses(21, "GET", "/v1/identity", ann) == [200] * 20 + [429]
    assert await callers.statuses(6, "DELETE", "/v1/freezes/x", ann) == [400] * 5 + [429]
    async with callers.http(ann) as http:
        refused = await http.get("/v1/identity")
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["error"] == "ann asks too often: more than 2 reads a second"
    assert "controller.rate_limits.reads_per_s" in refused.json()["remedy"]
    assert await callers.statuses(1, "GET", "/v1/identity", TOKEN) == [200]
    assert await callers.statuses(1, "GET", "/v1/identity", None, HERE) == [200]
    callers.clock.move(1.0)
    assert await callers.statuses(3, "GET", "/v1/identity", ann) == [200, 200, 429]
    limited = callers.controller.exposition().decode()
    assert 'controller_http_rate_limited_total{by="token",kind="reads"} 3.0' in limited
    assert 'controller_http_rate_limited_total{by="token",kind="changes"} 1.0' in limited


async def test_an_address_without_a_token_or_with_wrong_ones_waits_and_its_neighbour_does_not(callers: Callers) -> None:
    assert await callers.statuses(21, "GET", "/v1/nodes", None) == [401] * 20 + [429]
    assert await callers.statuses(1, "GET", "/v1/nodes", "wrong") == [429]
    assert await callers.statuses(1, "GET", "/v1/nodes", None, NEIGHBOUR) == [401]
    assert await callers.statuses(1, "GET", "/v1/nodes", TOKEN) == [200], "a right token is not held up"


@pytest.mark.parametrize("path", ["/health/live", "/metrics", "/v1/routing"])
async def test_what_gateways_and_watchers_ask_for_is_never_held_up(callers: Callers, path: str) -> None:
    assert await callers.statuses(21, "GET", "/v1/nodes", None, HERE) == [200] * 20 + [429]
    assert set(await callers.statuses(30, "GET", path, None, HERE)) <= {200, 204}


async def test_alertmanagers_notifications_are_not_held_up_by_what_its_machine_asks(callers: Callers) -> None:
    assert 429 in await callers.statuses(21, "GET", "/v1/nodes", None)
    assert 429 in await callers.statuses(21, "POST", "/v1/freezes", None)
    assert 429 not in await callers.statuses(30, "POST", WEBHOOK_PATH, None)


async def test_the_client_waits_as_it_is_told_and_asks_again(tmp_path: Path) -> None:
    config = make_config(tmp_path, nodes=0, rate_limits={"changes_per_s": 2})
    async with serving(config, NoProvider()) as url, ControllerClient(url, TOKEN) as client:
        made = [await client.make_freeze(FreezeRequest(reason=f"launch {number}")) for number in range(21)]
        assert len({one.id for one in made}) == 21
