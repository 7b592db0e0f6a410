"""What `fleetctl doctor` says of what is wrong, and that it says how to mend it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.cli.app import run
from fleetctl.doctor.finding import Finding, Health
from fleetctl.doctor.fleet import (
    judge_clock,
    judge_gateways,
    judge_nodes,
    judge_notifications,
    judge_role,
    judge_status,
)
from fleetctl.doctor.here import check_installation, check_state_dir
from fleetctl.doctor.monitoring import check_monitoring, judge_receivers, judge_rules
from fleetctl.doctor.node_clocks import check_node_clocks, judge_node_clocks, skew_s
from fleetctl.doctor.node_tokens import judge_node_tokens
from fleetctl.settings.tree import Settings
from fleetctl.wire.alertmanager import AlertmanagerState
from fleetctl.wire.gateway import Gateway, GatewayPhase
from fleetctl.wire.held import HeldRequests
from fleetctl.wire.identity import CallerInfo, TokenRole
from fleetctl.wire.node import NodePhase
from fleetctl.wire.notification import Receiver
from fleetctl.wire.status import Status
from tests.fixtures.alertmanager import NEEDS_BOTH, alertmanager, prometheus
from tests.fixtures.cockpit import make_node
from tests.fixtures.recorded_controller import RecordedController, recorded_controller

RULES = {"LLMNodeDown", "LLMNodeSlow"}
METRICS = """\
alertmanager_notifications_total{integration="webhook",receiver="fleetctl"} 8
alertmanager_notifications_total{integration="email",receiver="x"} 3
alertmanager_notifications_failed_total{integration="webhook",reason="other"} FAILED
"""
CONFIG = "receivers: [{webhook_configs: [{url: http://c:7700/webhooks/alertmanager}]}]"


def make_status(**changes: Any) -> Status:
    known = {"version": "1", "started_at": 0, "epoch": 1, "policy": "ask", "now": 1_000.0, "loops": {}}
    return Status(**{**known, "nodes_ready": 1, "nodes_total": 1, "firing": 0, "open_incidents": 0, **changes})


def worst(found: Iterator[Finding] | list[Finding]) -> dict[str, Health]:
    """What is not good, by check."""
    return {one.check: one.health for one in found if one.health is not Health.good}


def rules_answer(*names: str, health: str = "ok") -> dict[str, Any]:
    return {"data": {"groups": [{"rules": [{"name": n, "health": health, "lastError": "parse"} for n in names]}]}}


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        ({}, {"Alertmanager": Health.unused}),
        ({"version": "2"}, {"controller": Health.doubtful, "Alertmanager": Health.unused}),
        ({"late_loops": ["scrape"]}, {"loops": Health.bad, "Alertmanager": Health.unused}),
        ({"storage_error": "disk full"}, {"state": Health.bad, "Alertmanager": Health.unused}),
        (
            {"alertmanagers": [AlertmanagerState(url="http://a", last_error="refused", queued=3)]},
            {"Alertmanager": Health.bad},
        ),
        ({"alertmanagers": [AlertmanagerState(url="http://a", sent=3)]}, {}),
    ],
)
def test_what_troubles_the_controller_is_told(status: dict[str, Any], wanted: dict[str, Health]) -> None:
    found = list(judge_status(make_status(**status), "1"))
    assert worst(found) == wanted
    assert all(one.mend for one in found if one.health is not Health.good)


@pytest.mark.parametrize(
    ("theirs", "health"),
    [(100.0, Health.good), (101.5, Health.good), (98.5, Health.good), (104.0, Health.bad), (90.0, Health.bad)],
)
def test_clocks_that_are_apart_are_told_and_a_slow_answer_is_no_skew(theirs: float, health: Health) -> None:
    assert judge_clock(theirs, 99.0, 101.0).health is health
    assert judge_clock(100.0, 90.0, 110.0).health is Health.good, "read somewhere within a slow answer"


@pytest.mark.parametrize(
    ("date", "off_s"),
    [
        ("Tue, 24 Nov 2026 00:00:10 GMT", 0.0),
        ("Tue, 24 Nov 2026 00:00:15 GMT", 4.0),
        ("Tue, 24 Nov 2026 00:00:03 GMT", -6.5),
        ("yesterday", None),
        ("", None),
    ],
)
def test_a_date_tells_how_far_a_clock_is_off_but_for_its_fraction_of_a_second(date: str, off_s: float | None) -> None:
    midnight = 1_795_478_400.0
    assert skew_s(date, midnight + 10.5, midnight + 11.0) == off_s


def test_nodes_with_a_wrong_clock_are_named_and_those_that_can_not_be_asked_are_not_guessed() -> None:
    (found,) = judge_node_clocks({"node-1": 0.0, "node-2": -6.4, "node-3": None})
    assert (found.health, "node-2 6 s behind" in found.seen, "node-1" in found.seen) == (Health.bad, True, False)
    assert [one.health for one in judge_node_clocks({"node-1": None})] == [Health.unused]
    (found,) = judge_node_clocks({"node-1": 1.0, "node-2": None})
    assert (found.health, "1 told no time" in found.seen) == (Health.good, True)


def test_nodes_that_refuse_the_controllers_token_are_named_and_a_silent_one_is_not_guessed() -> None:
    refused = HeldRequests(unknown="answered 401", is_refused=True)
    (found,) = judge_node_tokens({"node-1": HeldRequests(), "node-2": refused})
    assert (found.health, "node-2: the" in found.seen, "node-1" in found.seen) == (Health.bad, True, False)
    (found,) = judge_node_tokens({"node-1": HeldRequests(), "node-2": HeldRequests(unknown="no answer within 2 s")})
    assert (found.health, found.seen) == (Health.unknown, "node-2: no answer within 2 s")
    assert [one.health for one in judge_node_tokens({"node-1": HeldRequests()})] == [Health.good]
    assert judge_node_tokens({}) == []


@pytest.mark.anyio
async def test_nodes_are_asked_for_the_time(controller: RecordedController) -> None:
    nodes = [make_node("node-1", url=controller.url), make_node("node-2", url="http://127.0.0.1:9")]
    (found,) = await check_node_clocks(nodes)
    assert (found.health, found.seen) == (Health.good, "1 nodes' are within 2 s of this one; 1 told no time")
    assert await check_node_clocks([]) == []


@NEEDS_BOTH
def test_a_real_prometheus_and_alertmanager_are_looked_through(tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    rule = {"alert": "LLMNodeDown", "expr": "up == 0"}
    (folder / "ours.yml").write_text(json.dumps({"groups": [{"name": "ours", "rules": [rule]}]}))
    webhook = "http://127.0.0.1:9/webhooks/alertmanager"
    with (
        alertmanager(tmp_path / "with", webhook) as telling,
        alertmanager(tmp_path / "without") as silent,
        prometheus(tmp_path / "prometheus", [folder / "ours.yml"], {}, telling) as server,
    ):
        tree: dict[str, Any] = {"signals": {"prometheus": {"url": server}}, "alertmanagers": [telling, silent]}
        settings = Settings(state_dir=tmp_path, **tree)
        found = list(check_monitoring(settings, lambda: {"LLMNodeDown"}))
        assert [(one.check, one.health) for one in found] == [
            ("rules", Health.good),
            ("webhook", Health.good),
            ("webhook", Health.doubtful),
        ], found
        (rules, *_) = check_monitoring(settings, lambda: RULES)
        assert (rules.health, "lacks 1 of our 2 alerts" in rules.seen) == (Health.doubtful, True)
    gone = {one.check: one.health for one in check_monitoring(settings, lambda: RULES)}
    assert gone == {"Prometheus": Health.bad, "Alertmanager": Health.bad}


def test_a_token_that_may_only_look_is_told() -> None:
    assert judge_role(CallerInfo(name="a", role=TokenRole.VIEWER, via="token")).health is Health.doubtful
    assert judge_role(CallerInfo(name="a", role=TokenRole.OPERATOR, via="token")).health is Health.good


def test_receivers_that_fail_and_those_that_nobody_tried_are_named_with_what_to_type() -> None:
    fine = Receiver(name="chat", kind="slack", waiting=0, held=0, delivered_at=1.0, routes=["all"])
    failing = fine.model_copy(update={"last_error": "receiver chat: answered 403"})
    unheard, unrouted = fine.model_copy(update={"delivered_at": None}), fine.model_copy(update={"routes": []})
    assert worst(judge_notifications([fine])) == {}
    for receivers, health in (
        ([failing], Health.bad),
        ([unheard], Health.unknown),
        ([unrouted], Health.doubtful),
        ([], Health.unused),
    ):
        assert worst(judge_notifications(receivers)) == {"receivers": health}
    assert [one.mend for one in judge_notifications([failing])] == ["fleetctl notify show chat"]


def test_nodes_and_gateways_that_do_not_answer_are_named_with_what_to_type() -> None:
    bad = list(judge_nodes([make_node("node-1"), make_node("node-2", phase=NodePhase.UNREACHABLE, reason="no answer")]))
    assert [(one.health, one.mend) for one in bad] == [(Health.bad, "fleetctl diagnose node-2")]
    assert worst(judge_nodes([make_node("node-1", phase=NodePhase.STOPPED)])) == {"nodes": Health.unused}
    gone = Gateway(name="g", url="http://g", phase=GatewayPhase.UNREACHABLE)
    assert worst(judge_gateways([gone])) == {"gateways": Health.bad}


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (rules_answer(*RULES, "Other"), {}),
        (rules_answer("LLMNodeDown"), {"rules": Health.doubtful}),
        (rules_answer("Other"), {"rules": Health.doubtful}),
        (rules_answer(*RULES, health="err"), {"rules": Health.bad}),
        ({}, {"rules": Health.doubtful}),
    ],
)
def test_rules_that_prometheus_lacks_or_can_not_judge_are_told(
    answer: dict[str, Any], wanted: dict[str, Health]
) -> None:
    assert worst(judge_rules("http://p", answer, RULES)) == wanted


@pytest.mark.parametrize(
    ("config", "failed", "health"),
    [(CONFIG, "0", Health.good), (CONFIG, "8", Health.bad), ("receivers: []", "0", Health.doubtful)],
)
def test_a_webhook_that_alertmanager_can_not_reach_is_told(config: str, failed: str, health: Health) -> None:
    assert judge_receivers("http://a", config, METRICS.replace("FAILED", failed)).health is health


def test_secrets_that_others_can_read_are_told(tmp_path: Path) -> None:
    token = tmp_path / "controller.token"
    token.write_text("secret")
    token.chmod(0o644)
    (found,) = [one for one in check_state_dir(Settings(state_dir=tmp_path)) if one.health is Health.bad]
    assert found.mend == f"chmod 600 {token}"
    token.chmod(0o600)
    assert worst(check_state_dir(Settings(state_dir=tmp_path))) == {}


def test_a_token_of_another_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command then talks without one, and the controller refuses what only a token may do."""
    token = tmp_path / "controller.token"
    token.write_text("secret")
    token.chmod(0o600)
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != token and allowed(path, mode))
    (found,) = [one for one in check_state_dir(Settings(state_dir=tmp_path)) if one.health is Health.bad]
    assert f"{token} can't be read by this user" in found.seen
    assert found.mend.startswith(f"sudo chown $USER {token}")


def test_an_interpreter_that_is_too_old_is_told() -> None:
    assert worst(check_installation("1", (3, 10, 1))) == {"installation": Health.bad}
    assert worst(check_installation("1")) == {}


@pytest.fixture(scope="module")
def controller() -> Iterator[RecordedController]:
    import time

    from fleetctl.kit.version import software_version

    answers = {
        "/v1/status": make_status(version=software_version(), now=time.time()),
        "/v1/identity": CallerInfo(name="ann", role=TokenRole.OPERATOR, via="named token"),
        "/v1/nodes": [make_node("node-1")],
        "/v1/gateways": [],
        "/v1/receivers": [],
    }
    with recorded_controller(answers) as made:
        yield made


def test_a_fleet_that_is_well_ends_with_zero_and_one_that_does_not_answer_with_one(
    controller: RecordedController, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--state-dir", str(tmp_path)]
    code = run([*given, "--controller", controller.url, "doctor", "-o", "json"])
    told = {one["check"]: one["health"] for one in json.loads(capsys.readouterr().out)}
    assert (code, told["controller"], told["permissions"]) == (0, "good", "good"), told
    del controller.answers["/v1/receivers"]
    assert run([*given, "--controller", controller.url, "doctor", "-o", "json"]) == 0, "an older one has no receivers"
    told = {one["check"]: one["health"] for one in json.loads(capsys.readouterr().out)}
    assert told["receivers"] == "unknown"
    assert run([*given, "--controller", "http://127.0.0.1:9", "doctor"]) == 1
    assert "to mend it: fleetctl up" in capsys.readouterr().out


def test_settings_that_can_not_be_read_are_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "f.yaml"
    config.write_text("controler: {}\n")
    assert run(["--config", str(config), "doctor"]) == 1
    assert "controler" in capsys.readouterr().out
