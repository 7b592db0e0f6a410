"""Bodies on their way in, over all connections: who has to go when there is no room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from fleetctl.gateway.http.body_budget import SLOW_AFTER_S, BodyBudget
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.settings.gateway_http import GatewayHttpSettings
from tests.fixtures.gateway import small_fleet, until


class Body:
    """A body that may be pushed out."""

    def __init__(self) -> None:
        self.is_pushed_out = False

    def push_out(self) -> None:
        self.is_pushed_out = True


def make_budget(now: Callable[[], float] = lambda: 0.0) -> tuple[BodyBudget, list[None]]:
    """Of 100 bytes, and what grows with each body that is pushed out."""
    full: list[None] = []
    return BodyBudget(100, clock=now, on_full=lambda: full.append(None)), full


def test_without_room_the_next_body_goes_while_none_is_slow() -> None:
    (budget, full), first, next_one = make_budget(), Body(), Body()
    budget.hold(first, 60)
    budget.hold(next_one, 30)
    budget.hold(next_one, 30)
    assert (first.is_pushed_out, next_one.is_pushed_out) == (False, True)
    assert (budget.num_bytes, len(full)) == (60, 1)
    budget.hold(first, 40)
    assert not first.is_pushed_out, "what was pushed out holds nothing any more"


def test_without_room_bodies_that_are_slow_go_first() -> None:
    times = [0.0, 1.0, *[2.0 + SLOW_AFTER_S] * 3]
    (budget, full), slow, slower, quick = make_budget(lambda: times.pop(0)), Body(), Body(), Body()
    budget.hold(slower, 30)
    budget.hold(slow, 60)
    budget.hold(quick, 90)
    assert (slower.is_pushed_out, slow.is_pushed_out, quick.is_pushed_out) == (True, True, False)
    assert (budget.num_bytes, len(full)) == (90, 2)
    budget.release(quick)
    budget.release(quick)
    assert budget.num_bytes == 0


@pytest.mark.anyio
async def test_a_client_is_told_503_while_bodies_of_others_fill_the_budget(tmp_path: Path) -> None:
    http = GatewayHttpSettings(max_body_bytes=4096, max_receiving_bytes=4096)
    async with small_fleet(tmp_path, "a", limits=GatewaySettings(http=http)) as (served, nodes, _):
        registry = served.gateway.metrics.registry

        def held() -> float:
            return registry.get_sample_value("gateway_receiving_body_bytes") or 0.0

        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
        writer.write(head + b" " * 3000)
        await until(lambda: held() == 3000)
        refused = await served.chat("x" * 2000)
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert refused.error is not None
        assert refused.error["code"] == "too_many_bodies"
        assert not nodes[0].seen
        assert (await served.chat("x" * 500)).is_done, "there is room for this one"
        assert registry.get_sample_value("gateway_connections_ended_total", {"reason": "bodies_full"}) == 1
        writer.close()
        await until(lambda: held() == 0)
        assert (await served.chat("x" * 2000)).is_done


def test_a_budget_below_the_longest_body_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_receiving_bytes"):
        GatewayHttpSettings(max_body_bytes=4096, max_receiving_bytes=2048)
