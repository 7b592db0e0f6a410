"""What the gate counts of each revision's nodes, read from a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from alerts.series.store import SeriesStore
from fleetctl.controller.rollouts.evidence import EvidenceReader
from fleetctl.controller.rollouts.gate import GateReport, Verdict, judge
from fleetctl.controller.rollouts.rollout import Rollout
from fleetctl.settings.rollouts import RolloutSettings

SETTINGS = RolloutSettings()
BEGUN = Rollout("rollout-1", "chat", "rev-a", "rev-b", (0.25, 1.0), 0.0, "ann")
EVERY_S = 5


def _judged(refused_per_s: Mapping[str, float], until_s: int) -> tuple[GateReport, int]:
    """The gate's word on nodes that refuse all that they get, beside an old one that serves, and when it was said."""
    store, rollout = SeriesStore(), BEGUN
    reader = EvidenceReader(store, SETTINGS, 60.0)
    for at in range(0, until_s, EVERY_S):
        for node, served, refused in (("old", 3.0, 0.0), *((name, 0.0, each) for name, each in refused_per_s.items())):
            place = {"node": node, "pool": "chat", "engine": "fleetctl"}
            success = {"__name__": "vllm:request_success_total", "finished_reason": "stop", **place}
            store.append(success, at, served * at)
            store.append({"__name__": "engine_requests_total", "state": "invalid", **place}, at, refused * at)
        look = reader.look(rollout, list(refused_per_s), ["old"], None, float(at))
        rollout = replace(rollout, evidence=look.stored)
        report = judge(
            look.evidence, look.asked, look.unknown, alpha=SETTINGS.fail_error_ratio, beta=SETTINGS.pass_error_ratio
        )
        if report.verdict is Verdict.FAIL:
            break
    return report, at


def test_a_revision_that_refuses_what_the_other_one_serves_fails() -> None:
    """Refused as too long by every node that has it, as its KV cache holds nothing: nothing fails, nothing ends, and a
    quarter of the users get 400."""
    report, at = _judged({"new": 1.0}, 300)
    assert report.verdict is Verdict.FAIL
    assert "errors: " in report.words
    assert "refused as invalid" in report.words
    assert at < 120, "a minute or two of one request a second is enough"


def test_a_canary_of_two_nodes_that_refuse_their_first_ten_requests_each_fails() -> None:
    report, _ = _judged({"new-1": 0.1, "new-2": 0.1}, 100)
    assert report.verdict is Verdict.FAIL
