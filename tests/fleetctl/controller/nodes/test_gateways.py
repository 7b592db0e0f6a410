"""A gateway that dies is started again, by real processes; one that can't live is reported, and started ever later."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from alerts.promql import evaluate
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.nodes.gateways import judge_gateway
from fleetctl.controller.nodes.node_answers import GatewayReport
from fleetctl.kit.reserved_port import reserve_port
from fleetctl.kit.restart_backoff import LONGEST_S, STAYED_UP_S, RestartBackoff
from fleetctl.providers.process import ProcessTable
from fleetctl.providers.provider import ObservedInstance
from fleetctl.wire.gateway import GatewayPhase, GatewayWorkers
from runbooks.ports import PermanentError, WayOut
from tests.fixtures.controller import NoProvider, make_config, until

pytestmark = pytest.mark.anyio

PROGRAM = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status = {"table_version": 3, "nodes": {"n1": {"out": "ejected: slow"}}, "in_flight": 2}
        status["overflow"] = [{"endpoint": "far", "models": ["m"], "budget_left": 0.5}]
        status["workers"] = {"generation": 4, "wanted": 2, "serving": 1, "reload_error": None}
        body = json.dumps(status | {"tenants": [{"tenant": "shop", "running": 2}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
REPORT = GatewayReport(3, 0.1, 0, 0, {}, ())


async def observed(controller: Controller, phase: GatewayPhase) -> None:
    """Look until the local gateway is in this phase."""
    deadline = controller.clock.now() + 20
    while controller.gateways.states["gateway"].phase is not phase:
        assert controller.clock.now() < deadline, controller.gateways.states
        await controller.gateways.observe_gateways()
        await controller.clock.sleep(0.02)


async def test_a_gateway_that_is_killed_is_started_again_and_said_so_and_one_that_is_stopped_is_not(
    tmp_path: Path,
) -> None:
    port = reserve_port()
    config = make_config(tmp_path, nodes=0, gateway_url=f"http://127.0.0.1:{port}")
    table = ProcessTable(config.settings.run_dir)
    try:
        table.start("gateway", [sys.executable, "-c", PROGRAM, str(port)], url=f"http://127.0.0.1:{port}")
        async with open_controller(config, NoProvider()) as controller:
            await observed(controller, GatewayPhase.READY)
            assert controller.gateways.states["gateway"].reason == "1 of 2 workers serve"
            first = table.observe("gateway")
            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)
            await observed(controller, GatewayPhase.DOWN)
            await observed(controller, GatewayPhase.READY)
            state = controller.gateways.states["gateway"]
            assert (state.deaths, state.process_up) == (1, True)
            assert state.instance not in (None, first.instance)
            events = [entry.kind for entry in await controller.timeline.read()]
            assert "gateway.ended" in events
            assert "gateway.started" in events
            assert controller.gateways.num_sharing(controller.clock.now()) == 1
            (tenant,) = await controller.gateways.tenants()
            assert (tenant.tenant, tenant.running) == ("shop", 2)
            assert controller.gateways.ways_out() == [WayOut("far", frozenset({"m"}), 0.5)]
            loop_names = controller.loops.ages(0)
            assert "gateways" in loop_names
            told = []
            for _ in range(2):
                await controller.loops.run_turn("fleet-series")
                deaths = evaluate("fleet_gateway_deaths_total", controller.store, controller.clock.now())
                await another_moment(controller)
                told += [(sample.labels["instance"], sample.value) for sample in deaths]
            address = f"127.0.0.1:{port}"
            assert told == [(address, 0.0), (address, 1.0)], "a count that nobody saw at zero did not rise for anybody"

            receipt = await controller.effects.restart_gateway("gateway", wait_s=60)
            assert receipt["replaced_instance"] == state.instance
            assert controller.gateways.states["gateway"].deaths == 1, "what was asked for is no death"
            with pytest.raises(PermanentError, match="no gateway named other"):
                await controller.effects.restart_gateway("other", wait_s=1)
        table.stop("gateway", 5)
        async with open_controller(config, NoProvider()) as controller:
            for _ in range(3):
                await controller.gateways.observe_gateways()
            assert not table.observe("gateway").running, "it was stopped before this controller came: nobody wants it"
            assert controller.gateways.states["gateway"].phase is GatewayPhase.DOWN
    finally:
        table.stop("gateway", 1)


async def another_moment(controller: Controller) -> None:
    """Two turns of one millisecond are one: the second one's points are not taken."""
    begun = controller.clock.now()

    async def is_later() -> bool:
        return controller.clock.now() - begun > 0.002

    await until(is_later, "time goes on")


def test_starts_come_later_each_time_until_one_stays_up() -> None:
    backoff, now, delays = RestartBackoff(), 1000.0, []
    for _ in range(10):
        backoff.note_ended(now)
        assert backoff.due_at is not None
        delays.append(backoff.due_at - now)
        now = backoff.due_at
        backoff.note_started(now)
        now += 0.5
    assert delays == [0, 1, 2, 4, 8, 16, 32, LONGEST_S, LONGEST_S, LONGEST_S]
    assert backoff.is_looping
    now += STAYED_UP_S
    backoff.note_ended(now)
    assert (backoff.due_at, backoff.is_looping) == (now, False)


@pytest.mark.parametrize(
    ("report", "running", "phase", "reason"),
    [
        (REPORT, True, GatewayPhase.READY, ""),
        (GatewayReport(None, None, 0, 0, {}, ()), True, GatewayPhase.NOT_READY, "no routing table yet"),
        (None, True, GatewayPhase.UNREACHABLE, "no answer"),
        (None, None, GatewayPhase.UNREACHABLE, "no answer"),
        (None, False, GatewayPhase.DOWN, "its process ended: killed by SIGKILL"),
        (
            GatewayReport(3, 0.1, 0, 0, {}, ("m",)),
            True,
            GatewayPhase.READY,
            "the controller sees no node of m well; all are tried",
        ),
        (
            replace(REPORT, workers=GatewayWorkers(generation=1, wanted=2, serving=1, reload_error="no such file")),
            True,
            GatewayPhase.READY,
            "1 of 2 workers serve; the last reload changed nothing: no such file",
        ),
    ],
    ids=["ready", "no table", "hangs", "of others, away", "killed", "fails open", "impaired"],
)
def test_a_gateways_phase_is_its_own_word_or_its_processs(
    report: GatewayReport | None, running: bool | None, phase: GatewayPhase, reason: str
) -> None:
    seen = None if running is None else ObservedInstance("gateway", running, exit_status=None if running else -9)
    assert judge_gateway(report, "no answer", seen) == (phase, reason)
