"""`shadow list` and the lists of other traffic rules. Controller and gateway are recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from fleetctl.cli.app import run
from fleetctl.traffic_rule import CanarySpec, OverflowSpec, ShadowSpec, ShedSpec, TrafficRule
from fleetctl.wire.gateway import Gateway, GatewayPhase
from tests.fixtures.recorded_controller import RecordedController, recorded_controller

REPORT = {
    "rule": "shadow",
    "orders": "copies of 5% of the requests to revision r2",
    "made_by": "ann",
    "made_at": 1.0,
    "in_force": True,
    "requests": 12_345,
    "compared": 10_000,
    "measured_only": 2_000,
    "exact": 9_990,
    "mean_agreement": 0.9991,
    "mean_tokens": {"user": 211.25, "shadow": 210.0},
    "ttft_p50_s": {"user": 0.2104, "shadow": None},
    "errors": 345,
    "results": {"compared": 10_000, "measured": 2_000, "failed": 345, "dropped": 7},
    "differing": ["req-1", "req-2"],
    "of_a_newer_gateway": 1,
}


@pytest.fixture
def controller() -> Iterator[RecordedController]:
    now = time.time()
    with recorded_controller({}) as made:
        made.answers |= {
            "/v1/traffic-rules": [
                TrafficRule(id="shadow", spec=ShadowSpec(revision="r2", share=0.05), made_at=now),
                TrafficRule(id="shadow-x", spec=ShadowSpec(pool="next", share=0.1), made_at=now, expires_at=now + 3600),
                TrafficRule(id="canary", spec=CanarySpec(revisions={"r2": 0.005}), made_by="bob", made_at=now),
                TrafficRule(id="overflow", spec=OverflowSpec(state="on"), made_at=now),
                TrafficRule(id="shed", spec=ShedSpec.model_validate({"below": "standard"}), made_at=now),
            ],
            "/v1/gateways": [
                Gateway(name="10.20.30.40:7800", url=made.url, phase=GatewayPhase.READY),
                Gateway(name="gone", url="http://127.0.0.1:1", phase=GatewayPhase.UNREACHABLE),
            ],
            "/gateway/shadow": json.dumps({"shadows": [{**REPORT, "expires_at": now + 1800}]}),
        }
        yield made


def test_a_shadow_is_listed_with_what_each_gateway_found(
    controller: RecordedController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--controller", controller.url, "shadow", "list"]) == 0
    told = capsys.readouterr()
    head, found, unreported = told.out.splitlines()
    assert head.split() == ["RULE", "GATEWAY", "ENDS", "SENT", "COMPARED", "EXACT", "AGREE", "TTFT", "MS", "ERRORS"]
    assert found.split() == ["shadow", "10.20.30.40:7800", "30m", "12345", "10000", "9990", "99.9%", "210/-", "345"]
    assert unreported.split() == ["shadow-x", "-", "60m", "-", "-", "-", "-", "-/-", "-"]
    assert all(len(line) <= 80 for line in told.out.splitlines())
    assert "no report from gateway gone" in told.err
    assert run(["--controller", controller.url, "shadow", "list", "-o", "json"]) == 0
    one, other = json.loads(capsys.readouterr().out)
    assert (one["exact"], one["differing"], other["exact"]) == (9_990, ["req-1", "req-2"], None)


@pytest.mark.parametrize("kind", ["canary", "shed", "overflow"])
def test_rules_are_listed_by_kind(
    controller: RecordedController, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    assert run(["--controller", controller.url, kind, "list"]) == 0
    _, row = capsys.readouterr().out.splitlines()
    assert row.split()[:2] == [kind, kind]
    assert kind != "canary" or "0.5% to revision r2" in row
