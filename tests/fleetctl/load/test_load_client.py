"""The load generator over real sockets: scripted nodes behind a real gateway."""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from fleetctl.load.client import CalibrationError, LoadRun, LoadSettings, measure_chars_per_token
from fleetctl.load.generated_shapes import TrafficKind, generate_shapes
from fleetctl.load.ledger import Report
from fleetctl.load.shape import RequestShape
from tests.fixtures.gateway import Script, scripted_controller, scripted_nodes, served_gateway, small_fleet, until

pytestmark = pytest.mark.anyio

TRAFFIC = TrafficKind(rate_per_s=400, max_output_tokens=12, output_tokens_median=6)


def make_shapes(count: int, **changes: Any) -> list[RequestShape]:
    return list(islice(generate_shapes(TRAFFIC), count))


async def run_load(url: str, count: int = 40, **settings: Any) -> tuple[LoadRun, Report]:
    run = LoadRun(LoadSettings(url=url, model="demo", **settings))
    return run, await run.send_all(make_shapes(count), asyncio.Event())


def others(report: Report) -> dict[str, int]:
    """The counts that are not zero, of those that should be."""
    names = ("lost", "duplicated", "refused", "abandoned", "in_flight", "held_back", "move_unknown", "unverified")
    return {name: value for name in names if (value := getattr(report, name))}


async def test_undisturbed_traffic_all_finishes(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        _, report = await run_load(served.url)
        assert (report.sent, report.finished, others(report)) == (40, 40, {})
        assert report.ttft_s.count == 40
        assert report.ttft_s.p50 is not None
        assert report.itl_s.p99 is not None
        assert report.output_tokens == sum(s.output_tokens for s in make_shapes(40))
        body = nodes[0].seen[0]["body"]
        assert body["ignore_eos"] is True
        assert body["return_token_ids"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["temperature"] > 0
        assert len({seen["body"]["seed"] for node in nodes for seen in node.seen}) == 40
        json.dumps(report.as_json())


async def test_moved_requests_are_counted_and_proved_equal(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.hand_off_at = 3
        run, report = await run_load(served.url)
        assert report.finished == 40
        assert report.moved > 0
        assert report.unverified == report.moved
        nodes[0].script.hand_off_at = None
        report = await run.verify_moved()
        assert (report.verified, report.finished, others(report)) == (report.moved, 40, {})


@pytest.mark.parametrize(
    ("script", "fate", "reason"),
    [
        (Script(change_at=4), "lost", "differs_after_move"),
        (Script(repeat_at=4, stop_at=None), "duplicated", "too_much"),
    ],
    ids=["wrong token", "repeated token"],
)
async def test_a_move_that_is_not_exact_is_found(tmp_path: Path, script: Script, fate: str, reason: str) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, controller):
        controller.set(nodes[0])
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 2)
        nodes[0].gate.clear()
        nodes[0].script.hand_off_at = 3
        nodes[1].script = script
        run = LoadRun(LoadSettings(url=served.url, model="demo"))
        task = asyncio.create_task(run.send_all([RequestShape(0.0, 10, 8)], asyncio.Event()))
        await until(lambda: bool(nodes[0].open))
        controller.set(*nodes)
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 3)
        nodes[0].gate.set()
        report = await task
        assert report.moved == 1
        nodes[0].script = nodes[1].script = Script()
        report = await run.verify_moved()
        assert getattr(report, fate) == 1
        assert report.reasons == {reason: 1}
        assert report.finished == 0


async def test_a_second_run_that_fails_proves_nothing(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.hand_off_at = 3
        run, report = await run_load(served.url)
        for node in nodes:
            node.script = Script(refuse=(503, {}))
        after = await run.verify_moved()
        assert (after.verified, after.unverified, after.finished) == (0, report.moved, 40)
        nodes[0].script = nodes[1].script = Script()
        assert (await run.verify_moved()).verified == report.moved, "it can be tried again"


@pytest.mark.parametrize(
    ("script", "fate", "reason"),
    [
        (Script(refuse=(429, {"X-Fleet-Refused": "overloaded"})), "refused", "http_429"),
        (Script(refuse=(503, {"X-Fleet-Refused": "draining"})), "refused", "http_503"),
        (Script(cut_at=2), "lost", "error_event"),
        (Script(end_at=2), "lost", "error_event"),
        (Script(error_at=2), "lost", "error_event"),
        (Script(stop_at=2), "lost", "missing_tokens"),
        (Script(repeat_at=2), "duplicated", "too_much"),
        (Script(refuse=(500, {})), "lost", "http_500"),
        (Script(hand_off_at=0, fail_continue=503), "lost", "failed_after_start"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_each_way_to_fail_has_its_fate(tmp_path: Path, script: Script, fate: str, reason: str) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].script = script
        run = LoadRun(LoadSettings(url=served.url, model="demo"))
        report = await run.send_all([RequestShape(0.0, 10, 8)] * 3, asyncio.Event())
        assert getattr(report, fate) == 3
        assert report.reasons == {reason: 3}
        assert report.sent == 3


async def test_no_gateway_is_lost_not_refused() -> None:
    _, report = await run_load("http://127.0.0.1:1", count=3)
    assert (report.lost, report.reasons) == (3, {"unreachable": 3})
    assert report.ttft_s.p50 is None
    assert report.ttft_s.count == 0


async def test_a_gateway_that_dies_loses_what_it_held(tmp_path: Path) -> None:
    async with scripted_nodes("a") as (node,), scripted_controller() as controller:
        controller.set(node)
        node.wait_at = 2
        node.gate.clear()
        async with served_gateway(tmp_path, controller.url) as served:
            await until(lambda: served.gateway.routing.table is not None)
            run = LoadRun(LoadSettings(url=served.url, model="demo"))
            task = asyncio.create_task(run.send_all([RequestShape(0.0, 10, 8)] * 4, asyncio.Event()))
            registry = served.gateway.metrics.registry
            await until(lambda: registry.get_sample_value("gateway_ttft_seconds_count") == 4)
        report = await task
        assert (report.sent, report.lost) == (4, 4)


async def test_stop_ends_endless_traffic_and_lets_requests_finish(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].wait_at = 1
        nodes[0].gate.clear()
        stop = asyncio.Event()
        run = LoadRun(LoadSettings(url=served.url, model="demo"))
        task = asyncio.create_task(run.send_all(generate_shapes(TRAFFIC), stop))
        await until(lambda: len(nodes[0].open) >= 5)
        assert run.report().in_flight >= 5
        stop.set()
        nodes[0].gate.set()
        report = await task
        assert report.finished == report.sent >= 5


async def test_arrivals_beyond_the_limit_are_held_back_and_counted(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].gate.clear()
        run = LoadRun(LoadSettings(url=served.url, model="demo", max_in_flight=3))
        task = asyncio.create_task(run.send_all([RequestShape(0.0, 10, 4)] * 10, asyncio.Event()))
        await until(lambda: len(nodes[0].open) == 3)
        nodes[0].gate.set()
        report = await task
        assert (report.sent, report.finished, report.held_back) == (3, 3, 7)


async def test_requests_that_do_not_end_are_abandoned_after_the_drain(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].gate.clear()
        _, report = await run_load(served.url, count=3, drain_timeout_s=0.05)
        assert (report.abandoned, report.reasons, report.in_flight) == (3, {"stopped": 3}, 0)
        await until(lambda: len(nodes[0].hung_up) == 3, "the node was told")


async def test_cancelling_leaves_no_task_behind(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].gate.clear()
        run = LoadRun(LoadSettings(url=served.url, model="demo"))
        task = asyncio.create_task(run.send_all(generate_shapes(TRAFFIC), asyncio.Event()))
        await until(lambda: len(nodes[0].open) >= 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        names = [t.get_coro().__qualname__ for t in asyncio.all_tasks()]  # type: ignore[union-attr]
        assert not [name for name in names if name.startswith("LoadRun")]
        report = run.report()
        assert report.in_flight == 0
        assert report.abandoned == report.sent >= 3


async def test_the_chars_of_a_token_are_measured_without_what_the_template_adds() -> None:
    from aiohttp import web

    async def chat(request: web.Request) -> web.Response:
        text = (await request.json())["messages"][0]["content"]
        usage = {"prompt_tokens": 17 + len(text) // 2, "completion_tokens": 1}
        return web.Response(
            text=f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n", content_type="text/event-stream"
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        assert await measure_chars_per_token(url, "demo") == pytest.approx(2.0, rel=0.01)
    finally:
        await runner.cleanup()
    with pytest.raises(CalibrationError):
        await measure_chars_per_token(url, "demo")


async def test_every_fourth_request_asks_for_its_answer_in_one_piece(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        _, report = await run_load(served.url, plain_every=4)
        assert (report.sent, report.finished, others(report)) == (40, 40, {})
        assert sum("stream" not in seen["body"] for node in nodes for seen in node.seen) == 10
        assert report.ttft_s.count == 30
