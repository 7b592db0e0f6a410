"""The gate: whom it fails, whom it passes, how often it errs under looks without end, and what it does not know."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from fleetctl.controller.rollouts.gate import (
    GateReport,
    SignalEvidence,
    SignalLimits,
    Tally,
    Verdict,
    judge,
    project,
)

SLOW = SignalLimits("TTFT", "above 0.25 s", 0.1)
USUAL = Tally(50.0, 500.0)


def looked_at(
    dice: random.Random, *, stable: float, new: float, margin: float = 0.1, looks: int = 60, alpha: float = 0.05
) -> Verdict:
    """The first verdict over many looks: some requests of each revision between two of them."""
    limits = SignalLimits("signal", "bad", margin)
    seen = SignalEvidence(prior=Tally(round(stable * 500), 500))
    for _ in range(looks):
        num_new, num_stable = dice.randint(0, 3), dice.randint(5, 25)
        seen = seen.plus(
            Tally(sum(dice.random() < new for _ in range(num_new)), num_new),
            Tally(sum(dice.random() < stable for _ in range(num_stable)), num_stable),
            limits,
        )
        report = judge({"signal": seen}, [limits], {}, alpha=alpha, beta=0.05)
        if report.verdict is not Verdict.NOT_ENOUGH:
            return report.verdict
    return Verdict.NOT_ENOUGH


@pytest.mark.parametrize("stable", [0.0, 0.1, 0.5])
def test_revision_that_is_no_worse_is_seldom_stopped_however_often_one_looks(stable: float) -> None:
    dice = random.Random(int(stable * 10) + 7)
    found = Counter(looked_at(dice, stable=stable, new=stable) for _ in range(40))
    assert found[Verdict.FAIL] <= 0.05 * 40, "alpha is 5 %, at the boundary; this is far from it"


def test_revision_at_the_very_boundary_is_stopped_with_at_most_alpha_and_passed_with_at_most_beta() -> None:
    dice = random.Random(3)
    found = Counter(looked_at(dice, stable=0.1, new=0.2) for _ in range(40))
    assert found[Verdict.FAIL] <= 4, "2 expected at most"
    assert found[Verdict.PASS] <= 4


@pytest.mark.parametrize(("stable", "new", "margin"), [(0.1, 0.6, 0.1), (0.0, 0.3, 0.02), (0.2, 0.9, 0.2)])
def test_real_regression_is_stopped(stable: float, new: float, margin: float) -> None:
    dice = random.Random(11)
    found = Counter(looked_at(dice, stable=stable, new=new, margin=margin) for _ in range(20))
    assert found == {Verdict.FAIL: 20}


@pytest.mark.parametrize(("stable", "margin"), [(0.1, 0.1), (0.0, 0.02), (0.3, 0.2)])
def test_healthy_revision_passes_with_the_requests_of_one_canary(stable: float, margin: float) -> None:
    dice = random.Random(5)
    found = Counter(looked_at(dice, stable=stable, new=stable, margin=margin, looks=400) for _ in range(10))
    assert found[Verdict.PASS] >= 9
    assert found[Verdict.FAIL] == 0


@pytest.mark.parametrize("seed", range(20))
def test_factor_of_a_block_is_one_at_most_on_average_wherever_the_truth_lies_within_the_hypothesis(seed: int) -> None:
    """What makes it an e-value, looked at in full: all outcomes of a small block, weighted with their probabilities."""
    dice = random.Random(seed)
    margin, num_new, num_stable = dice.uniform(0.02, 0.3), dice.randint(1, 4), dice.randint(1, 6)
    p = dice.uniform(0.02, 0.6)
    q = min(0.98, p + margin + dice.uniform(0.01, 0.3))
    null_new, null_stable = project(q, p, num_new, num_stable, margin)
    for _ in range(20):
        truth_stable = dice.uniform(0, 1 - margin)
        truth_new = dice.uniform(0, truth_stable + margin)
        new_factor = truth_new * q / null_new + (1 - truth_new) * (1 - q) / (1 - null_new)
        stable_factor = truth_stable * p / null_stable + (1 - truth_stable) * (1 - p) / (1 - null_stable)
        assert new_factor**num_new * stable_factor**num_stable <= 1 + 1e-6


def judged(seen: Mapping[str, SignalEvidence], unknown: Mapping[str, str] = {}) -> GateReport:
    return judge(seen, [SLOW], unknown, alpha=0.01, beta=0.05)


def test_undecided_gate_says_what_it_has_and_what_is_missing() -> None:
    few = SignalEvidence(prior=Tally(1, 12))
    assert judged({"TTFT": few}).words == (
        "not enough yet: TTFT: 12 requests of the stable revision, 50 say what is usual"
    )
    none = SignalEvidence(prior=USUAL)
    assert judged({"TTFT": none}).words == "not enough yet: TTFT: no request of the new revision yet"
    others = {"TTFT": none, "errors": none.plus(Tally(1, 20), Tally(20, 200), SLOW)}
    assert judged(others).words.startswith("not enough yet: TTFT: none of the new revision's 20 requests tells of it")
    some = none.plus(Tally(1, 20), Tally(20, 200), SLOW)
    assert judged({"TTFT": some}).words.startswith("not enough yet: TTFT: 20 requests of the new revision, about ")


def test_what_is_unknown_passes_nothing_and_fails_nothing() -> None:
    fine = SignalEvidence(prior=USUAL)
    for _ in range(30):
        fine = fine.plus(Tally(1, 10), Tally(10, 100), SLOW)
    assert judged({"TTFT": fine}).verdict is Verdict.PASS
    stale = judged({"TTFT": fine}, {"TTFT": "no fresh signal of node-4"})
    assert (stale.verdict, stale.words) == (
        Verdict.NOT_ENOUGH,
        "not enough yet: TTFT: no fresh signal of node-4",
    )
    assert judged({}, {"TTFT": "no fresh signal of node-4"}).verdict is Verdict.NOT_ENOUGH


def test_signal_that_can_not_get_worse_holds_nothing_up() -> None:
    """A pool whose prompts share nothing has no prefix hits to lose."""
    all_missed = SignalEvidence().plus(Tally(0, 0), Tally(80, 80), SLOW)
    assert judged({"TTFT": all_missed}).verdict is Verdict.PASS


def test_failure_is_told_with_both_revisions_numbers() -> None:
    bad = SignalEvidence(prior=USUAL).plus(Tally(30, 40), Tally(20, 200), SLOW)
    report = judged({"TTFT": bad})
    assert report.verdict is Verdict.FAIL
    assert report.words == (
        "TTFT: 75.0% of 40 requests above 0.25 s, 10.0% of 700 of the stable revision: worse by more than the 10 points"
        " allowed"
    )


def test_evidence_is_the_same_after_it_was_stored() -> None:
    seen = SignalEvidence(prior=USUAL).plus(Tally(3, 40), Tally(20, 200), SLOW)
    assert SignalEvidence.from_json(seen.to_json()) == seen
    assert SignalEvidence.from_json(SignalEvidence().to_json()).plus(Tally(), Tally(), SLOW).new == Tally()
