"""The controller's `/openapi.json` tells the truth: every operation has the role of its route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fleetctl.controller.openapi import OPERATIONS
from fleetctl.kit.tls import NO_TLS
from tests.fixtures.controller import NoProvider, make_config, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A controller without nodes."""
    config = make_config(tmp_path_factory.mktemp("controller"), nodes=0)
    async with serving(config, NoProvider()) as url:
        yield url


async def read(url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        answer = await http.get(f"{url}/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def test_each_operation_has_its_role_from_its_route(url: str) -> None:
    document = await read(url)
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert told == set(OPERATIONS)
    without_role = {key for key in told if "x-fleetctl-role" not in document["paths"][key[1]][key[0].lower()]}
    assert without_role == {("POST", "/webhooks/alertmanager")}, "it has credentials of its own"
    assert document["paths"]["/v1/runs/{id}/approval"]["post"]["x-fleetctl-role"] == "approver"
