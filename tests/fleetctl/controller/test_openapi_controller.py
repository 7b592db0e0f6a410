"""The controller's `/openapi.json` tells the truth: every operation has the role of its route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleetctl.controller.openapi import OPERATIONS
from fleetctl.kit.tls import NO_TLS
from tests.fixtures.controller import TOKEN, NoProvider, make_config, serving, stop_all
from tests.fixtures.generated_requests import hold_to

pytestmark = pytest.mark.anyio

SETTINGS = Path(__file__).with_name("schemathesis.toml")
ENDLESS, TAKES_A_FILE = "^/v1/events/(stream|nodes)$", "post_v1_incidents"


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


@pytest.mark.e2e
async def test_generated_requests_get_documented_answers(tmp_path: Path) -> None:
    """Of a controller of its own with two nodes, as whoever may do everything."""
    config = make_config(tmp_path / "state", nodes=2, rate_limits={"reads_per_s": 10**6, "changes_per_s": 10**6})
    try:
        async with serving(config) as url:
            args = ("--max-examples", "4", "--header", f"Authorization: Bearer {TOKEN}")
            left_out = ("--exclude-path-regex", ENDLESS, "--exclude-operation-id", TAKES_A_FILE)
            await hold_to(f"{url}/openapi.json", SETTINGS, tmp_path, *args, *left_out)
            async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
                assert (await http.get(f"{url}/health/leader")).status_code == 200
    finally:
        stop_all(tmp_path / "state")
