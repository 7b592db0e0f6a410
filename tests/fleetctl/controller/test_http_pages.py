"""Pages of the controller's lists: every row once, whatever comes and goes while somebody reads."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from diagnostics.incident import Incident, IncidentStatus
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.http_api import create_app
from fleetctl.controller.incidents.incident_store import save_incident
from fleetctl.controller.openapi import OPERATIONS
from fleetctl.controller.tables import events
from fleetctl.wire.freeze import FreezeRequest
from fleetctl.wire.identity import TokenRequest, TokenRole
from tests.fixtures.controller import TOKEN, NoProvider, make_config

pytestmark = pytest.mark.anyio

LISTS = sorted(path for (method, path), one in OPERATIONS.items() if method == "GET" and one.is_list)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def controller(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Controller]:
    """Without nodes, whose loops stand still: it has incidents, events, freezes, tokens and what is built in."""
    config = make_config(tmp_path_factory.mktemp("controller"), nodes=0)
    async with open_controller(config, NoProvider()) as controller:
        for number in range(7):
            await controller.freezes.make(FreezeRequest(reason=f"launch {number}"))
            await controller.tokens.create(TokenRequest(name=f"token-{number}", role=TokenRole.VIEWER), "test")
            await controller.audit.record("token.created", who="admin", target=f"token-{number}")
            await save(controller, f"inc-{number}", 1000.0 + number // 2)  # two at the same time
        yield controller


@pytest.fixture
async def http(controller: Controller) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(controller, asyncio.Event()))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
        yield http


async def save(controller: Controller, incident_id: str, opened_at: float) -> None:
    incident = Incident(incident_id, "node-1 is slow", IncidentStatus.RESOLVED, "page", {"node": "node-1"}, opened_at)
    await controller.database.write(lambda c: save_incident(c, incident))


async def pages(http: httpx.AsyncClient, path: str, **params: Any) -> AsyncIterator[list[Any]]:
    answer = await http.get(path, params=params)
    while True:
        assert answer.status_code == 200, answer.text
        yield answer.json()
        if "next" not in answer.links:
            return
        answer = await http.get(answer.links["next"]["url"])


@pytest.mark.parametrize("path", LISTS)
async def test_pages_have_the_rows_of_the_whole_list_once_each(http: httpx.AsyncClient, path: str) -> None:
    if path == "/v1/tenants" or path == "/v1/silences":
        pytest.skip("asks gateways and Alertmanager, which are not there")
    whole = (await http.get(path)).json()
    told = [page async for page in pages(http, path, limit=3)]
    assert all(len(page) <= 3 for page in told)
    rows = [row for page in told for row in page]
    assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, whole))


@pytest.mark.parametrize(
    ("path", "size"), [("/v1/incidents", "limit"), ("/v1/audit", "limit"), ("/v1/events", "newest")]
)
async def test_what_happens_while_somebody_reads_back_in_time_moves_no_page(
    controller: Controller, http: httpx.AsyncClient, path: str, size: str
) -> None:
    key = "id" if path == "/v1/incidents" else "seq"
    before = {row[key] for row in (await http.get(path, params={size: 1000})).json()}
    seen: list[Any] = []
    number = 0
    async for page in pages(http, path, **{size: 2}):
        seen += [row[key] for row in page]
        number += 1
        await save(controller, f"new-{path[4:]}-{number}", 5000.0 + number)
        await controller.audit.record("token.created", who="admin", target=f"new-{number}")
        await controller.timeline.append("node.ready", "node-1: ready")
    assert len(seen) == len(set(seen))
    assert set(seen) == before
    assert number > 2


async def test_a_row_that_goes_takes_no_other_with_it(controller: Controller, http: httpx.AsyncClient) -> None:
    for number in range(4):
        await controller.freezes.make(FreezeRequest(reason=f"more {number}"))
    ids = [row["id"] for row in (await http.get("/v1/freezes")).json()]
    seen: list[str] = []
    async for page in pages(http, "/v1/freezes", limit=3):
        seen += [row["id"] for row in page]
        if len(seen) == 3:
            await controller.freezes.end(seen[-1], "test")
    assert seen == ids


async def test_an_answer_has_no_more_rows_than_any_may_have(controller: Controller, http: httpx.AsyncClient) -> None:
    rows = [{"at": 1.0, "kind": "x.y", "text": str(number), "data": {}} for number in range(1100)]
    await controller.database.write(lambda c: c.execute(sa.insert(events), rows))
    for path in (f"/v1/events?newest={10**9}", f"/v1/events?limit={10**9}", "/v1/events"):
        assert await anext(len(page) async for page in pages(http, path)) == 1000


async def test_a_cursor_of_another_list_or_of_nobody_is_refused(http: httpx.AsyncClient) -> None:
    first = await http.get("/v1/incidents", params={"limit": 1})
    cursor = httpx.URL(first.links["next"]["url"]).params["cursor"]
    mark = json.loads(base64.urlsafe_b64decode(cursor + "=="))[0]
    forged = [
        base64.urlsafe_b64encode(json.dumps([mark, *key]).encode()).decode()
        for key in (["x", "y"], [1.0], [1.0, "\ud800"], [float("nan"), "a"], [10**30, "a"], [None, "a"], [1.0, ["a"]])
    ]
    for wrong in ("x", "é", "", "A" * 5000, *forged):
        answer = await http.get("/v1/incidents", params={"limit": 1, "cursor": wrong})
        assert answer.status_code == 400, wrong
        assert "Link" in answer.json()["remedy"]
    for path in ("/v1/audit", "/v1/nodes", "/v1/incidents?status=open"):
        assert (await http.get(f"{path}{'&' if '?' in path else '?'}cursor={cursor}")).status_code == 400
    assert (await http.get("/v1/incidents", params={"limit": 0})).status_code == 400


async def test_a_page_is_known_only_together_with_what_comes_after_it(
    http: httpx.AsyncClient,
) -> None:
    first = await http.get("/v1/incidents", params={"limit": 1, "status": "resolved"})
    tag = {"If-None-Match": first.headers["ETag"]}
    known = await http.get("/v1/incidents", params={"limit": 1, "status": "resolved"}, headers=tag)
    assert (known.status_code, known.headers.get("Link")) == (304, first.headers.get("Link"))
