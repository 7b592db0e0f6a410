"""Who calls when the controller is gone: a real Alertmanager and a URL that fall silent with it, and speak again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleetctl.controller.heartbeat import ALERT
from fleetctl.kit.reserved_port import reserve_port
from tests.fixtures.alertmanager import HTTP, NEEDS_BOTH, alertmanager, controller_command, process, wait_for
from tests.fixtures.controller import stop_all
from tests.fixtures.http_server import Asked, serve_http

pytestmark = [pytest.mark.e2e, NEEDS_BOTH, pytest.mark.timeout(600)]


@dataclass
class Outside:
    """What calls somebody when it hears nothing: what it was told, and how often it was asked."""

    url: str = ""
    pings: int = 0
    told: list[tuple[str, dict[str, str]]] = field(default_factory=list)  # status and labels, as Alertmanager told it


@contextmanager
def outside() -> Iterator[Outside]:
    made = Outside()

    def answer(asked: Asked) -> tuple[int, bytes]:
        if asked.method == "GET":
            made.pings += 1
        else:
            made.told += [(one["status"], one["labels"]) for one in json.loads(asked.body)["alerts"]]
        return 200, b""

    with serve_http(answer) as url:
        made.url = url
        yield made


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    stop_all(tmp_path / "state")


def test_a_controller_that_hangs_or_dies_is_missed_by_alertmanager_and_by_the_url(
    tmp_path: Path, state_dir: Path
) -> None:
    port = reserve_port()
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        return HTTP.get(f"{url}/health/live").status_code == 200

    with outside() as heard, alertmanager(tmp_path / "am", f"{heard.url}/alerts", names=ALERT) as am:

        def last() -> str:
            return heard.told[-1][0] if heard.told else ""

        def falls_silent() -> None:
            pings = heard.pings
            wait_for(lambda: last() == "resolved", "Alertmanager says that the alert which always fires has ended")
            assert heard.pings == pings, "the URL was asked for a controller that does nothing"

        def speaks() -> None:
            pings = heard.pings
            wait_for(lambda: last() == "firing", "the alert which always fires is heard")
            wait_for(lambda: heard.pings > pings + 1, "the URL is asked again and again")

        command = controller_command(
            state_dir,
            port,
            am,
            heartbeat_url=f"{heard.url}/ping",
            heartbeat_interval_s=1.0,
            alive_alert=True,
            resend_s=1.0,
        )
        log = tmp_path / "controller.log"
        with process(command, log, is_up) as first:
            speaks()
            assert heard.told[-1][1] == {"alertname": ALERT, "severity": "none", "cluster": "test"}
            os.killpg(first.pid, signal.SIGSTOP)
            falls_silent()
            os.killpg(first.pid, signal.SIGCONT)
            speaks()
            os.killpg(first.pid, signal.SIGKILL)
            first.wait(10)
            falls_silent()
        with process(command, log, is_up):
            speaks()
            assert HTTP.get(f"{url}/v1/incidents").json() == []
            assert f"{heard.url}/ping" not in log.read_text()
