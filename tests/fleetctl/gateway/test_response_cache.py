"""The response cache: the same bytes again for the same tenant and request, and for nobody and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from fleetctl.gateway.response_cache import CachedAnswer, Recording, ResponseCache, is_deterministic
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.settings.response_cache import ResponseCacheSettings
from tests.fixtures.gateway import Script, small_fleet

PATH = "/v1/chat/completions"


def limits(**changes: Any) -> GatewaySettings:
    return GatewaySettings(response_cache=ResponseCacheSettings(**({"max_bytes": 1_000_000} | changes)))


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_second_deterministic_request_gets_the_same_bytes_without_a_node(tmp_path: Path, stream: bool) -> None:
    async with small_fleet(tmp_path, "a", limits=limits()) as (served, nodes, _):
        first = await served.chat(stream=stream)
        again = await served.chat(stream=stream, user="another person of the same tenant")
        assert (first.headers["X-Fleet-Cache"], again.headers["X-Fleet-Cache"]) == ("miss", "hit")
        assert again.body == first.body
        assert again.headers["Content-Type"].split(";")[0] == first.headers["Content-Type"].split(";")[0]
        assert again.headers["X-Request-Id"] != first.headers["X-Request-Id"]
        assert len(nodes[0].seen) == 1
        fate = await served.fate(again.headers["X-Request-Id"])
        assert (fate["fate"], fate["nodes"], fate["status"]) == ("finished", ["cache"], 200)


@pytest.mark.anyio
async def test_another_table_another_request_and_an_answer_with_an_error_are_no_hits(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", limits=limits()) as (served, nodes, controller):
        nodes[0].script = Script(error_at=3)
        assert (await served.chat()).error is not None
        nodes[0].script = Script()
        assert (await served.chat()).headers["X-Fleet-Cache"] == "miss"
        assert (await served.chat(seed=2)).headers["X-Fleet-Cache"] == "miss"
        assert "X-Fleet-Cache" not in (await served.chat(seed=None, temperature=0.5)).headers
        controller.set(*nodes)
        from tests.fixtures.gateway import until

        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 2)
        assert (await served.chat()).headers["X-Fleet-Cache"] == "miss"
        assert (await served.chat()).headers["X-Fleet-Cache"] == "hit"


@pytest.mark.anyio
async def test_there_is_none_by_default(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        assert "X-Fleet-Cache" not in (await served.chat()).headers
        await served.chat()
        assert len(nodes[0].seen) == 2


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def cache(clock: Clock, **changes: Any) -> ResponseCache:
    return ResponseCache(limits(**changes).response_cache, CollectorRegistry(), clock=clock)


def body(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [], "temperature": 0, **more}).encode()


def fill(made: ResponseCache, text: bytes, *, tenant: str = "t", version: int = 1, answer: bytes = b"x") -> bool:
    """Whether it was a hit; a miss is answered and kept."""
    found = made.look_up(PATH, text, tenant=tenant, table_version=version)
    if isinstance(found, Recording):
        found.answer.note(answer)
        made.store(found)
    return isinstance(found, CachedAnswer)


def test_tenants_never_share_and_key_order_does_not_matter() -> None:
    made = cache(Clock())
    assert not fill(made, body(top_p=1, n=1))
    assert fill(made, body(n=1, top_p=1))
    assert not fill(made, body(n=1, top_p=1), tenant="other")
    assert not fill(made, body(n=1, top_p=1), version=2)
    assert made.look_up(PATH, body(), tenant="t", table_version=None) is None


def test_an_answer_expires_and_a_long_one_is_not_kept() -> None:
    clock = Clock()
    made = cache(clock, ttl_s=10, max_entry_bytes=100)
    fill(made, body())
    clock.now = 10.0
    assert fill(made, body())
    clock.now = 10.1
    assert not fill(made, body())
    assert not fill(made, body(n=1), answer=b"x" * 101)
    assert not fill(made, body(n=1))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from("ab"), st.integers(1, 3), st.integers(0, 900)), max_size=40)
)
def test_bytes_stay_bounded_whatever_comes(calls: list[tuple[int, str, int, int]]) -> None:
    made = cache(Clock(), max_bytes=3000, max_entry_bytes=800)
    for number, tenant, version, size in calls:
        fill(made, body(n=number), tenant=tenant, version=version, answer=b"x" * size)
        made.check_integrity()


@pytest.mark.parametrize(
    ("given_", "is_so"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0.0}, True),
        ({"seed": 7}, True),
        ({}, False),
        ({"temperature": None}, False),
        ({"temperature": False}, False),
        ({"seed": True}, False),
        ({"temperature": 0.7}, False),
    ],
)
def test_only_what_says_so_is_deterministic(given_: dict[str, Any], is_so: bool) -> None:
    assert is_deterministic(given_) is is_so
