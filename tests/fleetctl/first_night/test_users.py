"""The users of a drill: those who hang up, and tenants whose keys the gateway takes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from fleetctl.first_night.impatient_users import CHAT_PATH, ImpatientUsers
from fleetctl.first_night.tenants import Tenants
from fleetctl.gateway.admission.tenants_file import list_keys, read_tenants
from fleetctl.kit.api_key import digest_of, shown_id
from fleetctl.kit.errors import BadInputError
from fleetctl.load.shape import RequestShape

pytestmark = pytest.mark.anyio


async def test_who_hangs_up_asks_again_as_often_as_was_said_and_who_is_answered_does_not() -> None:
    never = asyncio.Event()
    bodies: list[dict[str, object]] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        if bodies[-1]["max_tokens"] == 999:
            await never.wait()
        return web.Response(text="data: [DONE]")

    app = web.Application()
    app.router.add_post(CHAT_PATH, answer)
    async with TestServer(app) as server:
        users = ImpatientUsers(str(server.make_url("")), "demo", patience_s=0.2, tries=3, chars_per_token=4.0)
        shapes = [RequestShape(0.0, 10, 999), RequestShape(0.0, 10, 5)]
        await users.send_until(shapes, asyncio.Event())
        never.set()
    assert sorted(hung_up for _, _, hung_up in users.ended) == [False, True, True, True]
    assert len(bodies) == 4


def test_gateway_reads_the_tenants_and_refuses_the_file_with_a_mistake(tmp_path: Path) -> None:
    tenants = Tenants(tmp_path / "tenants.yaml")
    tenants.write(requests_per_min=40)
    read_tenants(tenants.path)
    ids = {row.tenant: row.id for row in list_keys(tenants.path)}
    assert ids == {
        "web": shown_id(digest_of(tenants.key.encode())),
        "batch": shown_id(digest_of(tenants.other_key.encode())),
    }
    tenants.write("tenants: [what is this")
    with pytest.raises(BadInputError):
        read_tenants(tenants.path)
