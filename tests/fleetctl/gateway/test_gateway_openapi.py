"""Clients of the gateway get what a node documents: the gateway adds no answer that no client knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.engine import TOKEN, start_node
from tests.fixtures.gateway import scripted_controller, served_gateway, until
from tests.fixtures.generated_requests import hold_to

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

SETTINGS = Path(__file__).with_name("schemathesis.toml")
OF_CLIENTS = "^/v1/"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_generated_requests_of_clients_get_what_a_node_documents(tmp_path: Path) -> None:
    # Short answers: what is proven here is their shape.
    with start_node(tmp_path, extra_args=("--max-model-len", "512", "--max-output-tokens", "16")) as node:
        document = tmp_path / "openapi.json"
        document.write_bytes(node.http.get("/openapi.json").content)
        async with (
            scripted_controller() as controller,
            served_gateway(tmp_path / "gateway", controller.url, node_token=TOKEN) as served,
        ):
            controller.routes = [{"node": "node-1", "url": node.url, "state": "active", "model": "tiny"}]
            controller.version += 1
            await until(lambda: served.gateway.routing.table is not None, "the node is routed to")
            args = ("--url", served.url, "--include-path-regex", OF_CLIENTS, "--max-examples", "30")
            await hold_to(document, SETTINGS, tmp_path, *args)
            assert (await served.chat("hello", max_tokens=4)).status in (200, 404)
