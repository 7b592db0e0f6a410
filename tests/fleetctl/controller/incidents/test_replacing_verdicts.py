"""A verdict is replaced by better evidence, and by evidence that rules it out: never by less."""

from __future__ import annotations

from diagnostics.diagnosis import Confidence, Diagnosis
from diagnostics.standing import stands_before_replacing


def _verdict(cause: str | None, confidence: Confidence, *ruled_out: str) -> Diagnosis:
    return Diagnosis("latency", cause, confidence=confidence, ruled_out=ruled_out)


def test_surer_verdict_replaces_an_unsure_one_at_once_and_a_confirmed_one_after_it_stood() -> None:
    confirmed = _verdict("slow_node", "confirmed")
    assert stands_before_replacing(confirmed, _verdict("overload", "likely")) == 0
    assert (stands_before_replacing(confirmed, _verdict("overload", "confirmed")) or 0) > 0


def test_less_sure_cause_replaces_only_what_fresh_evidence_rules_out_and_after_longer() -> None:
    standing = _verdict("overload", "confirmed")
    assert stands_before_replacing(_verdict("slow_node", "likely"), standing) is None
    after_s = stands_before_replacing(_verdict("slow_node", "likely", "overload"), standing)
    assert after_s is not None
    assert after_s > (stands_before_replacing(_verdict("slow_node", "confirmed"), standing) or 0)


def test_no_cause_never_replaces_one_an_incident_that_ends_takes_its_evidence_with_it() -> None:
    assert stands_before_replacing(_verdict(None, "unknown", "overload"), _verdict("overload", "likely")) is None


def test_nothing_wrong_gives_way_to_any_cause_and_takes_the_place_of_none() -> None:
    nothing = _verdict(None, "confirmed")
    assert stands_before_replacing(_verdict("cold_start", "likely"), nothing) == 0
    assert stands_before_replacing(nothing, _verdict("cold_start", "likely")) is None
