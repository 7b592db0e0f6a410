"""Real Alertmanager and Prometheus processes, and a controller as a process, for tests of the ways between them.

As a program: `python fixtures_alertmanager.py STATE_DIR PORT ALERTMANAGER_URL` runs a controller over two small nodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

PROMETHEUS = shutil.which("prometheus") or "/usr/bin/prometheus"
ALERTMANAGER = (
    shutil.which("prometheus-alertmanager") or shutil.which("alertmanager") or "/usr/bin/prometheus-alertmanager"
)
NEEDS_PROMETHEUS = pytest.mark.skipif(
    not Path(PROMETHEUS).exists() and not os.environ.get("CI"), reason="apt-get install prometheus"
)
NEEDS_BOTH = pytest.mark.skipif(
    not (Path(PROMETHEUS).exists() and Path(ALERTMANAGER).exists()) and not os.environ.get("CI"),
    reason="apt-get install prometheus prometheus-alertmanager",
)
WITHIN_S = 60.0
HTTP = httpx.Client(trust_env=False, timeout=5)


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def wait_for(look: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
    """The first true result; requests that fail meanwhile count as not yet."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
        except (httpx.HTTPError, ValueError):
            pass
        time.sleep(0.05)
    raise AssertionError(f"not within {within_s} s: {what}")


@contextmanager
def process(command: list[str], log: Path, ready: Callable[[], bool]) -> Iterator[subprocess.Popen[bytes]]:
    """The process, once it is ready; killed with its group at the end."""
    with log.open("ab") as out:
        started = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:

        def look() -> bool:
            assert started.poll() is None, log.read_text()[-3000:]
            return ready()

        wait_for(look, f"{command[0]} is ready: see {log}")
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(10)


@contextmanager
def server(program: str, folder: Path, *options: str) -> Iterator[str]:
    """A Prometheus or an Alertmanager, once it is ready, on a port of its own; its log in `folder`. Gives its URL."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [program, *options, f"--web.listen-address=127.0.0.1:{port}"]
    with process(command, folder / "log", lambda: HTTP.get(f"{url}/-/ready").status_code == 200):
        yield url


@contextmanager
def alertmanager(
    folder: Path, webhook_url: str = "http://127.0.0.1:9/", token: str = "none", names: str = ".*"
) -> Iterator[str]:
    """One Alertmanager that tells the webhook at once of the alerts whose names fit. Gives its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "route": {
            "receiver": "nobody",
            "routes": [{"receiver": "fleetctl", "matchers": [f'alertname=~"{names}"']}], "group_by": ["alertname"],
            "group_wait": "1s", "group_interval": "2s", "repeat_interval": "4h",
        },
        "receivers": [
            {"name": "nobody"},
            {
                "name": "fleetctl",
                "webhook_configs": [
                    {
                        "url": webhook_url, "send_resolved": True,
                        "http_config": {"authorization": {"type": "Bearer", "credentials": token}},
                    }
                ],
            }
        ],
    }  # fmt: skip
    (folder / "alertmanager.yml").write_text(json.dumps(config))  # JSON is YAML
    places = (f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'data'}")
    with server(ALERTMANAGER, folder, *places, "--cluster.listen-address=") as url:
        yield url


@contextmanager
def prometheus(folder: Path, rules: list[Path], targets: dict[str, str], alertmanager_url: str) -> Iterator[str]:
    """One Prometheus that scrapes and evaluates each second. `targets`: node name to host:port. Gives its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "targets.json").write_text(json.dumps(target_groups(targets)))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "900ms", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager_url.removeprefix("http://")]}]}]},
        "scrape_configs": [
            {
                "job_name": "llm",
                "file_sd_configs": [{"files": [str(folder / "targets.json")], "refresh_interval": "1s"}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    places = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
    with server(PROMETHEUS, folder, *places, "--rules.alert.resend-delay=1s") as url:
        yield url


def target_groups(targets: dict[str, str]) -> list[dict[str, Any]]:
    """For file_sd: each node with the labels that the controller gives it."""
    return [
        {
            "targets": [address],
            "labels": {"node": node, "pool": "default", "model": "demo", "engine": "vllm", "zone": "local"},
        }
        for node, address in targets.items()
    ]


def controller_command(state_dir: Path, port: int, alertmanager_url: str) -> list[str]:
    return [sys.executable, str(Path(__file__)), str(state_dir), str(port), alertmanager_url]


def main() -> None:
    from fixtures_controller import make_config, make_provider

    from fleetctl.alertmanager_settings import AlertmanagerPeer
    from fleetctl.controller.app import serve
    from fleetctl.kit.log import configure_logging

    state_dir, port, url = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    configure_logging("info", "json")
    config = make_config(
        state_dir, port=port, alertmanagers=(AlertmanagerPeer(url=url),), silences_interval_s=0.5,
        external_labels={"cluster": "test"},
    )  # fmt: skip
    asyncio.run(serve(config, provider=make_provider(state_dir)))


if __name__ == "__main__":
    main()
