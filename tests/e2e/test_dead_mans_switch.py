"""Who calls when the controller is gone: a real Alertmanager and a URL that fall silent with it, and speak again."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fleetctl.controller.heartbeat import ALERT
from fleetctl.kit.reserved_port import reserve_port
from tests.fixtures.alertmanager import HTTP, NEEDS_BOTH, alertmanager, controller_command, process, wait_for
from tests.fixtures.controller import stop_all

pytestmark = [pytest.mark.e2e, NEEDS_BOTH]


@dataclass
class Outside:
    """What calls somebody when it hears nothing: what it was told, and how often it was asked."""

    url: str = ""
    pings: int = 0
    told: list[tuple[str, dict[str, str]]] = field(default_factory=list)  # status and labels, as Alertmanager told it


@contextmanager
def outside() -> Iterator[Outside]:
    made = Outside()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.pings += 1
            self._answer()

        def do_POST(self) -> None:
            body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            made.told += [(one["status"], one["labels"]) for one in body["alerts"]]
            self._answer()

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
