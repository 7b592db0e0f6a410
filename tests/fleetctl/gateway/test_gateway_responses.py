"""`/v1/responses` through the gateway: routed by its model and its prompt, streamed as it comes, counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetctl.gateway.routing.routing_facts import RESPONSES_PATH, read_routing_facts
from tests.fixtures.engine import start_node
from tests.fixtures.gateway import scripted_controller, served_gateway, until

pytestmark = pytest.mark.e2e


ITEMS = [{"role": "user", "content": [{"type": "input_text", "text": "a" * 4000}]}]


@pytest.mark.parametrize("given", ["a" * 4000, ITEMS], ids=["text", "items"])
def test_a_response_is_routed_by_its_prompt(given: object) -> None:
    body = {"model": "m", "instructions": "be brief", "input": given, "max_output_tokens": 7, "stream": True}
    facts = read_routing_facts(RESPONSES_PATH, json.dumps(body).encode())
    assert (facts.model, facts.stream, facts.output_tokens) == ("m", True, 7)
    assert 900 < facts.input_tokens < 1100
    assert facts.head.startswith("be brief")
    assert facts.blocks == read_routing_facts(RESPONSES_PATH, json.dumps(body | {"seed": 1}).encode()).blocks
    other = read_routing_facts(RESPONSES_PATH, json.dumps(body | {"instructions": "be long"}).encode())
    assert other.blocks[0] != facts.blocks[0]


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_is_the_nodes_own(tmp_path: Path, stream: bool) -> None:
    with start_node(tmp_path) as node:
        async with scripted_controller() as controller:
            controller.version += 1
            controller.routes = [{"node": "a", "url": node.url, "state": "active", "model": "tiny"}]
            async with served_gateway(tmp_path, controller.url) as served:
                await until(lambda: served.gateway.routing.table is not None)
                body = {"model": "tiny", "input": "hi", "max_output_tokens": 9, "seed": 3, "stream": stream}
                async with served.session.post(served.url + "/v1/responses", json=body) as answer:
                    text = await answer.text()
                    assert answer.status == 200, text
                direct = node.http.post("/v1/responses", json=body).text
    assert texts(text) == texts(direct)
    assert texts(text)[0]


def texts(answer: str) -> list[str]:
    """The text of the response, by its last event."""
    events = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: {")]
    found = [json.loads(one) for one in events or [answer]]
    last = found[-1].get("response", found[-1])
    return [part["text"] for item in last["output"] for part in item["content"]]
