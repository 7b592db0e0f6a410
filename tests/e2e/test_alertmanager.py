"""The whole way through real processes: Prometheus' rule fires, Alertmanager tells us, an incident opens; and back."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alerts.evaluation.alert import alertmanager_fingerprint
from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from fleetctl.controller.alertmanager.alertmanager_client import AlertmanagerClient
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.kit.reserved_port import reserve_port
from fleetctl.settings.alertmanager import AlertmanagerPeer
from fleetctl.wire.silence import SilenceMatcher, SilenceRequest
from tests.fixtures.alertmanager import (
    HTTP,
    NEEDS_BOTH,
    alertmanager,
    controller_command,
    process,
    prometheus,
    target_groups,
    wait_for,
)
from tests.fixtures.controller import TOKEN, make_config, make_provider, stop_all, until
from tests.fixtures.driven import HEALTHY_STEP_S, DrivenClock, Traffic, drive

pytestmark = [pytest.mark.e2e, NEEDS_BOTH, pytest.mark.timeout(600)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stop_all(tmp_path / "state")


def our_rules(folder: Path) -> list[Path]:
    """Our rule files as they are, but that alerts wait for a second only, and a silent node for five."""
    folder.mkdir(exist_ok=True)
    copies = []
    for path in [*builtin_signal_files(), *builtin_rule_files()]:
        copy = folder / f"{path.parent.name}-{path.name}"
        text = re.sub(r"(?m)^(\s+for:) .*$", r"\1 1s", path.read_text())
        copy.write_text(text.replace("llm:up[1m]", "llm:up[5s]").replace("llm:up offset 1m", "llm:up offset 5s"))
        copies.append(copy)
    return copies


def fleetctl(url: str, state_dir: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "fleetctl.cli", "--state-dir", str(state_dir), "--controller", url]
    done = subprocess.run(
        [*command, *words, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "FLEETCTL_CONTROLLER__TOKEN": TOKEN},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_prometheus_fires_alertmanager_delivers_and_a_killed_controller_misses_nothing(folder: Path) -> None:
    port, dead = reserve_port(), reserve_port()
    url, state_dir = f"http://127.0.0.1:{port}", folder / "state"

    def is_up() -> bool:
        status = HTTP.get(f"{url}/v1/status").json()
        return bool(status["nodes_ready"] == 2)

    def incidents() -> list[dict[str, Any]]:
        return list(HTTP.get(f"{url}/v1/incidents").json())

    def node_of(incident: dict[str, Any]) -> str:
        return str(incident["scope"].get("node"))

    with alertmanager(folder / "am", f"{url}/webhooks/alertmanager", TOKEN, "LLMNodeDown|HighTTFT") as am:
        command = controller_command(state_dir, port, am)
        with process(command, folder / "controller.log", is_up) as first:
            addresses = {n["name"]: n["url"].removeprefix("http://") for n in HTTP.get(f"{url}/v1/nodes").json()}
            # Prometheus looks for node-2 where nobody is; we see it well: the alert can only come from outside.
            seen = {"node-1": addresses["node-1"], "node-2": f"127.0.0.1:{dead}"}
            with prometheus(folder / "prometheus", our_rules(folder / "rules"), seen, am):
                (incident,) = wait_for(incidents, "an incident is open")
                assert node_of(incident) == "node-2"
                down = next(one for one in incident["alerts"] if one["name"] == "LLMNodeDown")
                assert (down["source"], down["labels"]["pool"], down["silenced"]) == ("alertmanager", "default", "no")
                shown = fleetctl(url, state_dir, "incident", "show", incident["id"])
                assert "(told by alertmanager)" in json.dumps(shown["timeline"])
                assert shown["diagnosis"]["tree"], "its scope is known, so it was diagnosed"

                os.killpg(first.pid, 9)
                first.wait(10)
                # While nobody answers, another node gets into trouble.
                started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                other = {"labels": {"alertname": "HighTTFT", "instance": addresses["node-1"]}, "startsAt": started}
                assert HTTP.post(f"{am}/api/v2/alerts", json=[other]).status_code == 200
                wait_for(
                    lambda: failed_deliveries(am) > 0, "Alertmanager has tried to deliver while the controller was down"
                )
                with process(command, folder / "controller.log", is_up) as second:
                    wait_for(lambda: len(incidents()) == 2, "the second incident is open")
                    assert {node_of(one) for one in incidents()} == {"node-1", "node-2"}
                    assert incident["id"] in {one["id"] for one in incidents()}
                    os.killpg(second.pid, 9)
                    second.wait(10)
                with process(command, folder / "controller.log", is_up):
                    silenced_by_the_command_line_is_silenced_there_and_here(url, am, state_dir)
                    (folder / "prometheus" / "targets.json").write_text(json.dumps(target_groups(addresses)))

                    def of_node_2() -> dict[str, Any]:
                        return next(one for one in incidents() if node_of(one) == "node-2")

                    wait_for(lambda: of_node_2()["status"] == "resolved", "the incident ended with its alert")
                    assert len(incidents()) == 2, "exactly one incident for each node, over two kills"
                    kinds = [e["kind"] for e in HTTP.get(f"{url}/v1/events?incident_id={incident['id']}").json()]
                    assert kinds.count("incident.opened") == 1
                    status = fleetctl(url, state_dir, "status")
                    assert status["webhook"]["accepted"] > 0
                    assert status["webhook"]["refused"] == 0


def failed_deliveries(am: str) -> float:
    lines = HTTP.get(f"{am}/metrics").text.splitlines()
    name = 'alertmanager_notification_requests_failed_total{integration="webhook"}'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def silenced_by_the_command_line_is_silenced_there_and_here(url: str, am: str, state_dir: Path) -> None:
    made = fleetctl(
        url, state_dir, "silence", "add", "HighTTFT", "instance=~127.*", "--comment", "known", "--by", "ann", "-d", "2h"
    )
    there = HTTP.get(f"{am}/api/v2/silence/{made['id']}").json()
    assert (there["status"]["state"], there["createdBy"], there["comment"]) == ("active", "admin (says ann)", "known")
    assert {(m["name"], m["value"], m["isRegex"]) for m in there["matchers"]} == {
        ("alertname", "HighTTFT", False),
        ("instance", "127.*", True),
    }

    def alert(name: str) -> dict[str, Any]:
        return next(one for one in fleetctl(url, state_dir, "get", "alerts") if one["name"] == name)

    assert (alert("HighTTFT")["silenced"], alert("HighTTFT")["silenced_by"]) == ("yes", [made["id"]])
    assert alert("LLMNodeDown")["silenced"] == "no"
    assert [one["id"] for one in fleetctl(url, state_dir, "silence", "list")] == [made["id"]]
    assert fleetctl(url, state_dir, "silence", "expire", made["id"])["state"] == "expired"
    assert HTTP.get(f"{am}/api/v2/silence/{made['id']}").json()["status"]["state"] == "expired"
    assert fleetctl(url, state_dir, "silence", "list") == []
    assert alert("HighTTFT")["silenced"] == "no"


def is_firing(controller: Controller, name: str) -> bool:
    return any(one.name == name and one.state == "firing" for one in controller.alerting.own_alerts())


@pytest.mark.anyio
async def test_our_alert_arrives_at_every_peer_is_silenced_there_and_resolves(folder: Path) -> None:
    """In simulated time, a little in Alertmanager's past: what ended has ended there too, what fires has not."""
    clock, traffic = DrivenClock(time.time() - 200), Traffic()

    async def there(url: str) -> list[dict[str, Any]]:
        found = (await asyncio.to_thread(HTTP.get, f"{url}/api/v2/alerts")).json()
        return [one for one in found if one["labels"]["alertname"] == "LLMNodeSlow"]

    async def passes(controller: Controller, seconds: int) -> None:
        begun = clock.now()
        await drive(controller, clock, traffic, lambda: clock.now() - begun >= seconds)

    with alertmanager(folder / "am") as am, alertmanager(folder / "other") as other:
        dead = f"http://127.0.0.1:{reserve_port()}"
        config = make_config(
            folder / "state",
            nodes=3,
            external_labels={"cluster": "test"},
            resend_s=3600.0,  # what fires does so for four of them, and by Alertmanager's clock much more may pass
            alertmanagers=tuple(AlertmanagerPeer(url=url) for url in (dead, am, other)),
        )
        async with open_controller(config, make_provider(folder / "state"), clock) as controller:
            await drive(
                controller, clock, traffic, lambda: sum(s.is_serving for s in controller.fleet.nodes.values()) == 3
            )
            await passes(controller, 40)
            silences = controller.alertmanager.silences
            muted = SilenceRequest(
                matchers=[SilenceMatcher(name="cluster", op="=", value="test")],
                duration_s=3600,
                comment="drill",
                created_by="ann",
            )
            silence = await silences.add(muted)
            traffic.step_s["node-2"] = 0.15
            await drive(controller, clock, traffic, lambda: is_firing(controller, "LLMNodeSlow"))
            await passes(controller, 5)
            assert controller.book.open_incidents() == [], "a silenced alert opens no incident"
            assert list(controller.journal.list()) == []
            (alert,) = await until(lambda: there(am), "our alert is in Alertmanager")
            assert (alert["labels"]["node"], alert["labels"]["cluster"]) == ("node-2", "test")
            assert alert["annotations"]["summary"]
            assert alert["status"]["silencedBy"] == [silence.id]

            await silences.expire(silence.id)
            await drive(controller, clock, traffic, lambda: controller.book.open_incidents() != [])
            (alert,) = await until(lambda: there(other), "and in the other one")
            assert alert["status"] == {"state": "active", "silencedBy": [], "inhibitedBy": []}
            client = AlertmanagerClient(AlertmanagerPeer(url=other))
            assert {alertmanager_fingerprint(alert["labels"])} <= await client.firing()
            await client.close()
            assert alert["generatorURL"].startswith("http://127.0.0.1")

            traffic.step_s["node-2"] = HEALTHY_STEP_S
            await drive(controller, clock, traffic, lambda: not is_firing(controller, "LLMNodeSlow"))
            await passes(controller, 2)

            async def is_gone() -> bool:
                return await there(am) == [] == await there(other)

            await until(is_gone, "both know that it is over")
            states = {one.url: one for one in controller.alert_sender.states()}
            assert states[dead].sent == 0
            assert states[dead].failed > 0
            assert states[am].failed == states[am].dropped == states[other].failed == 0
            assert states[am].last_success_at is not None
            metrics = controller.exposition().decode()
            assert f'controller_alertmanager_alerts_sent_total{{alertmanager="{am}"}}' in metrics
            assert "controller_silences_known 1.0" in metrics
            assert set(controller.loops.failures().values()) == {0}
