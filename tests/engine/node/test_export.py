"""A running request as another node can go on with it: exactly, with or without its end here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fleetctl.kit.tls import NO_TLS
from tests.fixtures.engine import EngineNode, Streamed, read_stream, start_node

BODY = {"prompt": "hello", "max_tokens": 300, "ignore_eos": True, "seed": 5, "stream": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineNode, EngineNode]]:
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(start_node(tmp_path_factory.mktemp(name))) for name in "ab")
        yield first, second


def stream_and_export(node: EngineNode, after: int, **export: Any) -> tuple[Streamed, dict[str, Any]]:
    """The whole stream, and what was exported when so many of its events had come."""
    exported: list[dict[str, Any]] = []

    def look(count: int) -> None:
        if count == after:
            answer = node.http.post("/admin/export", json={"request_ids": ["mine", "other"], **export})
            assert answer.status_code == 200, answer.text
            exported.append(answer.json())
            node.full_speed()

    with node.slowed():
        whole = read_stream(node, "/v1/completions", BODY, headers={"X-Request-Id": "mine"}, on_chunk=look)
    return whole, exported[0]


def go_on(node: EngineNode, handoff: dict[str, Any]) -> Streamed:
    return read_stream(node, "/internal/continue", handoff)


def test_an_exported_request_goes_on_in_both_places(nodes: tuple[EngineNode, EngineNode]) -> None:
    here, exported = stream_and_export(nodes[0], 9)
    assert exported["unknown"] == ["other"]
    (handoff,) = exported["requests"]
    given = handoff["state"]["choices"][0]["output_token_ids"]
    there = go_on(nodes[1], handoff)
    assert here.is_done
    assert 8 <= len(given) < 300, "the first event has no token"
    assert [*given, *there.token_ids()] == here.token_ids()
    assert here.text().endswith(there.text())


def test_a_request_that_is_taken_over_ends_here_with_an_error(nodes: tuple[EngineNode, EngineNode]) -> None:
    whole = read_stream(nodes[1], "/v1/completions", BODY)
    here, exported = stream_and_export(nodes[0], 5, stop=True)
    assert (here.error or {})["code"] == "exported"
    there = go_on(nodes[1], exported["requests"][0])
    assert here.token_ids() + there.token_ids() == whole.token_ids()
    assert here.text() + there.text() == whole.text()


def test_export_needs_the_token_and_names(nodes: tuple[EngineNode, EngineNode]) -> None:
    assert httpx.post(f"{nodes[0].url}/admin/export", verify=NO_TLS, json={"request_ids": ["x"]}).status_code == 401
    for bad in ({}, {"request_ids": []}, {"request_ids": None}, {"request_ids": ["x"] * 65}):
        assert nodes[0].http.post("/admin/export", json=bad).status_code == 400
    empty = nodes[0].http.post("/admin/export", json={"request_ids": ["x"]}).json()
    assert empty == {"requests": [], "unknown": ["x"]}
