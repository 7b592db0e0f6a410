"""The state machine of one alert at its borders: what one evaluation makes of one instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from alerts.evaluation.alert import (
    NEVER_SEEN_KEPT_S,
    RESOLVED_KEPT_S,
    ActiveAlert,
    AlertChange,
    AlertSample,
    advance,
    alertmanager_fingerprint,
    fingerprint_of,
)
from alerts.evaluation.target_liveness import Liveness
from alerts.labels import LabelSet

KEY = LabelSet.of({"alertname": "High", "node": "n1"})
NOW = 1000.0
PENDING = ActiveAlert("f", "High", "pending", KEY.as_dict(), {"summary": "old"}, 6.0, active_at=990.0)
FIRING = replace(PENDING, state="firing", fired_at=995.0)
RESOLVED = replace(FIRING, state="resolved", resolved_at=998.0)
UNKNOWN = replace(FIRING, state="unknown", unknown_since=997.0)
SAMPLE = AlertSample(8.0, {"summary": "new"})


def step(
    before: ActiveAlert | None,
    found: AlertSample | None,
    *,
    now: float = NOW,
    for_s: float = 0.0,
    keep_firing_for_s: float = 0.0,
    liveness: Liveness = Liveness.LIVE,
) -> tuple[ActiveAlert | None, list[tuple[str, str]]]:
    """The instance after one evaluation, and its changes as (from, to)."""
    active: Mapping[LabelSet, ActiveAlert] = {} if before is None else {KEY: before}
    samples = {} if found is None else {KEY: found}
    after, changes = advance(
        "High", active, samples, now, for_s=for_s, keep_firing_for_s=keep_firing_for_s, liveness_of=lambda _: liveness
    )
    return after.get(KEY), [(change.previous, change.alert.state) for change in changes]


def test_new_instance_is_pending_since_now_with_value_and_texts() -> None:
    alert, changes = step(None, SAMPLE, for_s=1.0)
    assert changes == [("inactive", "pending")]
    assert alert == ActiveAlert(
        fingerprint=fingerprint_of(KEY.as_dict()),
        name="High",
        state="pending",
        labels={"alertname": "High", "node": "n1"},
        annotations={"summary": "new"},
        value=8.0,
        active_at=NOW,
    )


@pytest.mark.parametrize(("for_s", "state"), [(10.0, "firing"), (10.001, "pending"), (0.0, "firing")])
def test_pending_fires_when_for_has_passed_to_the_instant(for_s: float, state: str) -> None:
    alert, _ = step(PENDING, SAMPLE, for_s=for_s)
    assert alert is not None
    assert (alert.state, alert.fired_at) == (state, NOW if state == "firing" else None)
    assert (alert.active_at, alert.value, alert.annotations) == (990.0, 8.0, {"summary": "new"})


def test_firing_instance_goes_on_with_new_value_and_its_first_time() -> None:
    alert, changes = step(replace(FIRING, keep_firing_since=999.0), SAMPLE, for_s=1e9)
    assert changes == []
    assert alert == replace(FIRING, value=8.0, annotations={"summary": "new"}, keep_firing_since=None)


def test_pending_that_clears_is_told_and_not_kept() -> None:
    assert step(PENDING, None) == (None, [("pending", "inactive")])


def test_firing_that_clears_is_resolved_now_and_keeps_its_value() -> None:
    alert, changes = step(FIRING, None)
    assert changes == [("firing", "resolved")]
    assert alert == replace(FIRING, state="resolved", resolved_at=NOW)
    assert step(UNKNOWN, None) == (alert, [("unknown", "resolved")])


@pytest.mark.parametrize(
    ("now", "is_kept"), [(998.0 + RESOLVED_KEPT_S, True), (998.0 + RESOLVED_KEPT_S + 0.001, False), (999.0, True)]
)
def test_resolved_is_kept_for_a_quarter_of_an_hour_whatever_the_target_does(now: float, is_kept: bool) -> None:
    for liveness in Liveness:
        assert step(RESOLVED, None, now=now, liveness=liveness) == (RESOLVED if is_kept else None, [])


def test_resolved_that_comes_back_starts_anew_from_inactive() -> None:
    alert, changes = step(RESOLVED, SAMPLE, for_s=5.0)
    assert changes == [("inactive", "pending")]
    assert alert is not None
    assert (alert.active_at, alert.fired_at, alert.resolved_at) == (NOW, None, None)
    alert, changes = step(RESOLVED, SAMPLE)
    assert changes == [("inactive", "firing")]
    assert alert is not None
    assert (alert.active_at, alert.fired_at, alert.resolved_at) == (NOW, NOW, None)


@pytest.mark.parametrize(
    ("since", "keep_s", "state", "keeps_since"),
    [
        (None, 5.0, "firing", NOW),
        (995.0, 5.001, "firing", 995.0),
        (995.0, 5.0, "resolved", None),
        (None, 0.0, "resolved", None),
    ],
)
def test_keeps_firing_until_the_time_has_passed_to_the_instant(
    since: float | None, keep_s: float, state: str, keeps_since: float | None
) -> None:
    alert, _ = step(replace(FIRING, keep_firing_since=since), None, keep_firing_for_s=keep_s)
    assert alert is not None
    assert (alert.state, alert.keep_firing_since) == (state, keeps_since)
    assert alert.resolved_at == (NOW if state == "resolved" else None)


def test_keeps_firing_only_while_the_target_is_live() -> None:
    for liveness, state in (
        (Liveness.LIVE, "firing"),
        (Liveness.LOST, "unknown"),
        (Liveness.NEVER_SEEN, "unknown"),
        (Liveness.REMOVED, "resolved"),
    ):
        alert, _ = step(FIRING, None, keep_firing_for_s=60.0, liveness=liveness)
        assert alert is not None
        assert alert.state == state, liveness


def test_keeping_on_firing_ends_the_unknown() -> None:
    alert, changes = step(UNKNOWN, None, keep_firing_for_s=60.0)
    assert changes == [("unknown", "firing")]
    assert alert is not None
    assert (alert.unknown_since, alert.keep_firing_since) == (None, NOW)


@pytest.mark.parametrize("before", [PENDING, FIRING], ids=["pending", "firing"])
@pytest.mark.parametrize("liveness", [Liveness.LOST, Liveness.NEVER_SEEN])
def test_lost_signal_is_unknown_since_now(before: ActiveAlert, liveness: Liveness) -> None:
    alert, changes = step(before, None, liveness=liveness)
    assert changes == [(before.state, "unknown")]
    assert alert == replace(before, state="unknown", unknown_since=NOW)


def test_unknown_keeps_the_time_since_when() -> None:
    assert step(UNKNOWN, None, liveness=Liveness.LOST) == (UNKNOWN, [])


def test_unknown_that_fires_again_is_the_same_page() -> None:
    alert, changes = step(UNKNOWN, SAMPLE, for_s=1e9)
    assert changes == [("unknown", "firing")]
    assert alert == replace(FIRING, value=8.0, annotations={"summary": "new"})


def test_unknown_that_was_pending_waits_again() -> None:
    before = replace(PENDING, state="unknown", unknown_since=997.0)
    alert, changes = step(before, SAMPLE, for_s=5.0)
    assert changes == [("unknown", "pending")]
    assert alert is not None
    assert (alert.active_at, alert.fired_at, alert.unknown_since) == (NOW, None, None)
    assert step(before, None) == (None, [("unknown", "inactive")])


@pytest.mark.parametrize(
    ("blind_s", "state"), [(NEVER_SEEN_KEPT_S, "unknown"), (NEVER_SEEN_KEPT_S + 0.001, "resolved")]
)
def test_target_that_was_never_seen_is_given_up_after_five_minutes(blind_s: float, state: str) -> None:
    before = replace(UNKNOWN, unknown_since=NOW - blind_s)
    alert, _ = step(before, None, liveness=Liveness.NEVER_SEEN)
    assert alert is not None
    assert alert.state == state
    lost, _ = step(before, None, liveness=Liveness.LOST)
    assert lost is not None
    assert lost.state == "unknown"


def test_unknown_that_was_pending_and_clears_is_told_without_its_time() -> None:
    before = replace(PENDING, state="unknown", unknown_since=997.0)
    _, (change,) = advance(
        "High", {KEY: before}, {}, NOW, for_s=0.0, keep_firing_for_s=0.0, liveness_of=lambda _: Liveness.LIVE
    )
    assert change == AlertChange(replace(PENDING, state="inactive"), "unknown")


def test_instances_that_are_there_come_before_new_ones() -> None:
    new = LabelSet.of({"alertname": "High", "node": "n0"})
    after, changes = advance(
        "High",
        {KEY: PENDING},
        {new: SAMPLE, KEY: SAMPLE},
        NOW,
        for_s=0.0,
        keep_firing_for_s=0.0,
        liveness_of=lambda _: Liveness.LIVE,
    )
    assert list(after) == [KEY, new]
    assert [change.alert.labels["node"] for change in changes] == ["n1", "n0"]
    assert changes[0] == AlertChange(after[KEY], "pending")


def test_fingerprints_are_the_same_everywhere() -> None:
    labels = {"node": "n1", "alertname": "High"}
    assert fingerprint_of(labels) == fingerprint_of(dict(sorted(labels.items())))
    assert fingerprint_of(labels) == "ccb5c68023ea00c1"
    assert fingerprint_of({}) != fingerprint_of({"a": "b"})
    assert alertmanager_fingerprint({}) == "cbf29ce484222325"  # FNV-1a of nothing
    assert alertmanager_fingerprint(labels) == "195c6d038e736bfd"
    assert alertmanager_fingerprint(labels) == alertmanager_fingerprint(dict(sorted(labels.items())))
    turned = {"ü": "1", "z": "2", "日": "3"}
    assert alertmanager_fingerprint(turned) == alertmanager_fingerprint(dict(reversed(turned.items())))
