"""What the gate counts of each revision's nodes, read from a store."""

from __future__ import annotations

from dataclasses import replace

from alerts.series.store import SeriesStore
from fleetctl.controller.rollouts.evidence import EvidenceReader
from fleetctl.controller.rollouts.gate import Verdict, judge
from fleetctl.controller.rollouts.rollout import Rollout
from fleetctl.settings.rollouts import RolloutSettings

SETTINGS = RolloutSettings()
BEGUN = Rollout("rollout-1", "chat", "rev-a", "rev-b", (0.25, 1.0), 0.0, "ann")
EVERY_S = 5


def test_a_revision_that_refuses_what_the_other_one_serves_fails() -> None:
    """Refused as too long by every node that has it, as its KV cache holds nothing: nothing fails, nothing ends, and a
    quarter of the users get 400."""
    store, rollout = SeriesStore(), BEGUN
    reader = EvidenceReader(store, SETTINGS, 60.0)
    verdict = Verdict.NOT_ENOUGH
    for at in range(0, 300, EVERY_S):
        for node, served, refused in (("old", 3.0 * at, 0.0), ("new", 0.0, 1.0 * at)):
            place = {"node": node, "pool": "chat", "engine": "fleetctl"}
            success = {"__name__": "vllm:request_success_total", "finished_reason": "stop", **place}
            store.append(success, at, served)
            store.append({"__name__": "engine_requests_total", "state": "invalid", **place}, at, refused)
        look = reader.look(rollout, ["new"], ["old"], None, float(at))
        rollout = replace(rollout, evidence=look.stored)
        report = judge(
            look.evidence, look.asked, look.unknown, alpha=SETTINGS.fail_error_ratio, beta=SETTINGS.pass_error_ratio
        )
        verdict = report.verdict
        if verdict is Verdict.FAIL:
            break
    assert verdict is Verdict.FAIL
    assert "errors: " in report.words
    assert "refused as invalid" in report.words
    assert at < 120, "a minute or two of one request a second is enough"
