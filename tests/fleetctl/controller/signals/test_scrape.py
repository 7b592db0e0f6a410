"""What a node may answer to a scrape, and what the controller makes of it: a series, or `up` 0 with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from alerts.promql import evaluate
from fleetctl.controller.api.told_now import nodes_now
from fleetctl.controller.controller import Controller
from fleetctl.controller.nodes.node_row import RouteIntent
from tests.fixtures.controller import make_config, running_fleet, stop_all, tell_node, until

pytestmark = pytest.mark.anyio
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    try:
        async with running_fleet(make_config(tmp_path, max_scrape_bytes=10_000)) as opened:
            yield opened
    finally:
        stop_all(tmp_path)


def value(controller: Controller, expression: str) -> float | None:
    samples = evaluate(expression, controller.store, controller.clock.now())
    return samples[0].value if samples else None


async def scrape(controller: Controller) -> None:
    """One turn, and whatever it left in flight."""
    await controller.scraper.collect()
    while controller.scraper.in_flight:
        await controller.scraper.collect()


async def test_series_carry_the_labels_of_their_node(controller: Controller) -> None:
    await tell_node(controller, "node-1", held=4)
    await scrape(controller)
    (sample,) = evaluate('vllm:num_requests_running{node="node-1"}', controller.store, controller.clock.now())
    assert sample.value == 4
    address = str(controller.fleet.nodes["node-1"].url).removeprefix("http://")
    assert (
        sample.labels.items()
        >= {
            "pool": "default",
            "model": "demo",
            "engine": "fleetctl",
            "zone": "local",
            "revision": controller.fleet.nodes["node-1"].row.spec.revision,
            "instance": address,
            "job": "llm-node",
            "model_name": "m",
        }.items()
    )
    assert value(controller, 'up{node="node-1"}') == 1


async def test_a_node_that_died_is_down_and_its_series_end(controller: Controller) -> None:
    await scrape(controller)
    controller.effects.provider.stop("node-1", 0.5)
    await controller.loops.run_turn("fleet")
    await scrape(controller)
    assert value(controller, 'up{node="node-1"}') == 0
    assert value(controller, 'vllm:num_requests_running{node="node-1"}') is None
    assert value(controller, 'up{node="node-2"}') == 1


@pytest.mark.parametrize(
    "text",
    ["x" * 50_000, "this is { no metric", 'a{b="1"} not-a-number\n', "<html>it works</html>"],
    ids=["huge", "garbage", "no number", "html"],
)
async def test_an_answer_that_is_no_exposition_counts_as_down(controller: Controller, text: str) -> None:
    await scrape(controller)
    await tell_node(controller, "node-1", metrics=text)
    await scrape(controller)
    assert value(controller, 'up{node="node-1"}') == 0
    assert value(controller, 'vllm:num_requests_running{node="node-1"}') is None
    (told,) = nodes_now(controller, ["node-1"])
    assert told.signal_problem.startswith(("metrics text refused: line 1", "the answer is longer than"))
    await tell_node(controller, "node-1", metrics=None)
    await scrape(controller)
    assert value(controller, 'up{node="node-1"}') == 1
    (told,) = nodes_now(controller, ["node-1"])
    assert told.signal_problem == ""


async def test_a_label_that_a_node_claims_for_itself_does_not_hide_its_own(controller: Controller) -> None:
    await tell_node(controller, "node-1", metrics='claimed{node="node-2"} 1\n')
    await scrape(controller)
    (sample,) = evaluate("claimed", controller.store, controller.clock.now())
    assert (sample.labels["node"], sample.labels["exported_node"]) == ("node-1", "node-2")


async def _no_utf8(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b"\xff\xfe\x00")


async def _error(_: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="up 1")


async def _drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"# nothing yet\n")
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("handler", [_no_utf8, _error, _drip], ids=["not UTF-8", "status 500", "never ends"])
async def test_a_peer_that_misbehaves_is_down_and_delays_nobody(controller: Controller, handler: Handler) -> None:
    async with _server(handler) as url:
        state = controller.fleet.nodes["node-1"]
        object.__setattr__(state, "url", url)  # as if the node itself answered so
        await controller.scraper.collect()
        assert value(controller, 'up{node="node-2"}') == 1
        await until(lambda: _is(controller, 'up{node="node-1"}', 0), "node-1 is down")


async def test_a_removed_node_leaves_no_series_behind(controller: Controller) -> None:
    await scrape(controller)
    await controller.effects.drain("node-1", deadline_s=0.1)
    await controller.effects.stop_node("node-1", grace_s=1)
    await scrape(controller)
    assert value(controller, 'up{node="node-1"}') is None
    assert value(controller, "sum(up)") == 1


async def test_an_answer_that_comes_after_a_node_was_removed_does_not_bring_it_back(controller: Controller) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def late(_: web.Request) -> web.StreamResponse:
        asked.set()
        await go_on.wait()
        return web.Response(text="late 1\n")

    async with _server(late) as url:
        object.__setattr__(controller.fleet.nodes["node-1"], "url", url)
        await controller.scraper.collect()
        await asked.wait()
        controller.scraper.forget("node-1")
        await controller.routing.change("node-1", wanted=False)
        await controller.loops.run_turn("fleet")
        go_on.set()
        await scrape(controller)
        assert value(controller, 'up{node="node-1"}') is None
        assert value(controller, "late") is None


async def test_a_node_on_its_way_up_is_not_down(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path)) as controller:
            mark = {"state": "begun", "instance": "a", "epoch": 1, "at": 0.0}
            await controller.routing.change("node-1", route=RouteIntent.CORDONED, restart=mark)
            controller.effects.provider.stop("node-1", 0.5)
            await controller.loops.run_turn("fleet")
            await scrape(controller)
            assert value(controller, 'up{node="node-1"}') is None
    finally:
        stop_all(tmp_path)


async def _is(controller: Controller, expression: str, wanted: float) -> bool:
    await controller.scraper.collect()
    return value(controller, expression) == wanted


@asynccontextmanager
async def _server(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def test_after_a_stall_nothing_new_is_known_before_everybody_was_asked_again(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scrape(controller)
    before = controller.clock.now()
    assert controller.signals.known_until(before) == before
    monkeypatch.setattr(controller.stalls, "_long_s", 60.0)
    assert controller.signals.known_until(before + 60) == before
    await scrape(controller)
    assert controller.signals.known_until(before + 61) == before + 61
