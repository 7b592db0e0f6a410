"""Vectors through the gateway: of a node that has them, counted on the tenant's account."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.gateway.routing.routing_facts import POOLING_PATHS, read_routing_facts
from tests.fixtures.engine import start_node
from tests.fixtures.gateway import scripted_controller, served_gateway, until

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("path", sorted(POOLING_PATHS))
def test_all_of_the_body_counts_as_input(path: str) -> None:
    facts = read_routing_facts(path, b'{"model": "m", "input": ["' + b"a" * 4000 + b'"], "user": "u"}')
    assert (facts.model, facts.user, facts.stream, facts.output_tokens) == ("m", "u", False, 0)
    assert 900 < facts.input_tokens == facts.tokens < 1100
    assert not facts.blocks


@pytest.mark.anyio
async def test_vectors_come_from_the_node_of_their_model(tmp_path: Path) -> None:
    args = ("--task", "embed", "--served-model-name", "vectors")
    with start_node(tmp_path) as talks, start_node(tmp_path, extra_args=args) as embeds:
        async with scripted_controller() as controller:
            controller.version += 1
            controller.routes = [
                {"node": "talks", "url": talks.url, "state": "active", "model": "tiny"},
                {"node": "embeds", "url": embeds.url, "state": "active", "model": "vectors"},
            ]
            async with served_gateway(tmp_path, controller.url) as served:
                await until(lambda: served.gateway.routing.table is not None)
                for number in range(4):
                    body = {"model": "vectors", "input": [f"text {number}", "another"]}
                    async with served.session.post(served.url + "/v1/embeddings", json=body) as answer:
                        assert answer.status == 200, await answer.text()
                        found = await answer.json()
                    direct = embeds.http.post("/v1/embeddings", json=body).json()
                    assert found["data"] == direct["data"]
                    assert found["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"] > 0
