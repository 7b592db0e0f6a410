"""The dead-man's switch speaks while the controller does its work, and tells nobody its URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import structlog
from pydantic import SecretStr, ValidationError

from fleetctl.controller.alertmanager.alert_sender import AlertSender
from fleetctl.controller.alertmanager.outgoing_alert import OutgoingAlert
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.heartbeat import ALERT, Heartbeat, Vitals
from fleetctl.settings.controller import ControllerSettings
from tests.fixtures.controller import make_config, make_provider, stop_all
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio
URL = "https://hc.example/ping/s3cret-uuid"


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    try:
        config = make_config(tmp_path, nodes=0, start_nodes=False, heartbeat_url=SecretStr(URL))
        async with open_controller(config, make_provider(tmp_path), DrivenClock()) as opened:
            yield opened
    finally:
        stop_all(tmp_path)


async def beat(controller: Controller, vitals: Vitals, status: int) -> list[str]:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if status == 0:
            raise httpx.ConnectError(f"no way to {request.url}")
        return httpx.Response(status)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        await Heartbeat(SecretStr(URL), http, vitals, controller.records).send()
    return asked


def sample(controller: Controller, name: str) -> float:
    found = controller.metrics.registry.get_sample_value(name, {"result": "ok"} if name.endswith("_total") else {})
    return found or 0.0


async def test_it_speaks_while_rules_are_in_time_and_falls_silent_with_them(controller: Controller) -> None:
    assert "heartbeat" in controller.loops.ages(controller.clock.now())
    vitals = Vitals(controller.records)
    assert await beat(controller, vitals, 200) == [URL]
    assert sample(controller, "controller_heartbeats_total") == 1
    vitals.late_loops = lambda now: ["alerts", "audit"]
    assert vitals.why_not == "late: alerts"
    assert await beat(controller, vitals, 200) == []
    vitals.late_loops = lambda now: ["audit"]
    assert vitals.why_not == ""


@pytest.mark.parametrize("status", [0, 404, 503])
async def test_a_word_that_nobody_takes_ages_is_told_once_and_never_with_the_url(
    controller: Controller, status: int
) -> None:
    vitals = Vitals(controller.records)
    with structlog.testing.capture_logs() as logged:
        await beat(controller, vitals, status)
    (line,) = [one for one in logged if one["event"] == "heartbeat.failed"]
    assert "s3cret" not in repr(logged)
    assert line["why"] in ("ConnectError", "answered 404", "answered 503")
    controller.clock.move(400)  # type: ignore[attr-defined]
    assert sample(controller, "controller_heartbeat_age_seconds") >= 400
    assert "s3cret" not in controller.exposition().decode()


async def test_the_alert_that_always_fires_is_sent_again_until_it_is_not_true(controller: Controller) -> None:
    class Peer:
        def __init__(self) -> None:
            self.took: list[OutgoingAlert] = []

        def offer(self, alerts: list[OutgoingAlert]) -> None:
            self.took += alerts

    peer, vitals, clock = Peer(), Vitals(controller.records), controller.clock
    assert isinstance(clock, DrivenClock)
    sender = AlertSender(
        [peer],  # type: ignore[list-item]
        lambda: (),
        clock,
        is_held_back=lambda alert: False,
        is_gone=lambda labels: False,
        external_labels={"cluster": "eu"},
        public_url="http://c",
        vitals=vitals,
    )
    for _ in range(3):
        await sender.queue_due()
        clock.move(30)
    assert [one.labels for one in peer.took] == [{"alertname": ALERT, "severity": "none", "cluster": "eu"}] * 2
    assert peer.took[-1].ends_at > clock.now()
    vitals.late_loops = lambda now: ["scrape"]
    clock.move(60)
    await sender.queue_due()
    assert len(peer.took) == 2


def test_a_url_that_is_none_is_refused_without_repeating_it() -> None:
    with pytest.raises(ValidationError) as caught:
        ControllerSettings(heartbeat_url=SecretStr("hc.example/s3cret"))
    assert "s3cret" not in str(caught.value)
