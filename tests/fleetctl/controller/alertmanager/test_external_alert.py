"""Notices arrive at least once, late, twice and in any grouping; the alert ends up the same."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.controller.alertmanager.external_alert import LATE_COPY_S, ExternalAlert, apply_notice, notice_key
from fleetctl.controller.alertmanager.webhook_payload import NS, Notice, decode_notification
from tests.fixtures import DATA

NOW = 1_795_210_000.0
WEBHOOKS = DATA / "webhooks"


def notice(status: str, starts: float | None = 100, ends: float | None = None, fingerprint: str = "f") -> Notice:
    return Notice(
        fingerprint=fingerprint,
        is_firing=status == "firing",
        labels={"alertname": "A"},
        annotations={},
        starts_ns=None if starts is None else int(starts * NS),
        ends_ns=None if ends is None else int(ends * NS),
    )


def after(*steps: tuple[Notice, float]) -> ExternalAlert:
    alert = None
    for told, at in steps:
        alert = apply_notice(alert, told, at)
    assert alert is not None
    return alert


def test_fires_and_resolves() -> None:
    assert after((notice("firing"), NOW)).is_firing
    ended = after((notice("firing"), NOW), (notice("resolved", ends=200), NOW + 9))
    assert (ended.is_firing, ended.was_firing, ended.resolved_at) == (False, True, NOW + 9)


def test_an_alert_that_arrives_only_as_resolved_never_fired_here() -> None:
    alert = after((notice("resolved", ends=200), NOW))
    assert (alert.is_firing, alert.was_firing, alert.resolved_at) == (False, False, NOW)


def test_a_repeat_changes_only_when_it_was_heard() -> None:
    once = after((notice("firing"), NOW))
    assert replace(apply_notice(once, notice("firing"), NOW + 60), heard_at=NOW) == once


def test_a_late_copy_after_the_end_opens_nothing() -> None:
    steps = ((notice("firing"), NOW), (notice("resolved", ends=200), NOW + 9))
    assert not after(*steps, (notice("firing"), NOW + 10)).is_firing
    assert not after(*steps, (notice("firing", starts=90), NOW + 10)).is_firing
    assert not after(*steps, (notice("firing", starts=150), NOW + 10)).is_firing, "began before that end"


def test_a_firing_notice_that_comes_after_its_own_resolved_one_opens_nothing() -> None:
    assert not after((notice("resolved", ends=200), NOW), (notice("firing"), NOW + 5)).is_firing


def test_the_same_start_long_after_the_end_fires_again_as_a_new_episode() -> None:
    """Alertmanager ended it because Prometheus was away; Prometheus is back and sends the start it knows."""
    later = NOW + 9 + LATE_COPY_S + 1
    alert = after((notice("firing"), NOW), (notice("resolved", ends=200), NOW + 9), (notice("firing"), later))
    assert (alert.is_firing, alert.began_at, alert.resolved_at) == (True, later, None)


def test_a_new_start_is_a_new_episode_at_once() -> None:
    steps = ((notice("firing"), NOW), (notice("resolved", ends=200), NOW + 9), (notice("firing", starts=201), NOW + 10))
    assert after(*steps).is_firing


def test_the_end_of_an_older_episode_does_not_end_the_newer_one() -> None:
    alert = after((notice("firing", starts=300), NOW), (notice("resolved", starts=100, ends=200), NOW + 1))
    assert alert.is_firing


def test_the_end_of_a_newer_episode_ends_the_one_we_know() -> None:
    """As in a recorded group: n2 is resolved with a start that was never seen firing."""
    assert not after((notice("firing", starts=100), NOW), (notice("resolved", starts=300, ends=300), NOW + 1)).is_firing


def test_an_end_without_a_time_ends_it() -> None:
    assert not after((notice("firing"), NOW), (notice("resolved", starts=None), NOW + 1)).is_firing


def test_began_never_later_than_heard_of() -> None:
    assert after((notice("firing", starts=NOW + 3600), NOW)).began_at == NOW
    assert after((notice("firing", starts=None), NOW)).began_at == NOW


def test_the_key_is_of_group_alert_start_and_status() -> None:
    told = notice("firing")
    others = [notice("resolved"), notice("firing", starts=101), notice("firing", fingerprint="g")]
    keys = {notice_key("g", told), notice_key("h", told), *(notice_key("g", other) for other in others)}
    assert len(keys) == 5
    assert notice_key("g", replace(told, annotations={"value": "7"})) == notice_key("g", told)


def recorded() -> list[Notice]:
    found: list[Notice] = []
    for path in sorted(WEBHOOKS.glob("*.json")):
        found += decode_notification(path.read_bytes(), NOW, max_alerts=100).notices
    return found


def final(notices: list[Notice]) -> dict[str, bool]:
    state: dict[str, ExternalAlert] = {}
    for step, told in enumerate(notices):
        state[told.fingerprint] = apply_notice(state.get(told.fingerprint), told, NOW + step * 0.1)
    return {key: alert.is_firing for key, alert in state.items()}


@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 100), max_size=20))
def test_recorded_notices_in_any_order_and_number_end_resolved(dice: object, extra: list[int]) -> None:
    notices = recorded()
    notices += [notices[index % len(notices)] for index in extra]
    dice.shuffle(notices)  # type: ignore[attr-defined]
    assert final(notices) == dict.fromkeys(("550fcce42c5b6abb", "2e45fab719d41ee4", "b45b5c9ea73cea3d"), False)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=12))
def test_each_notice_twice_is_each_once(steps: list[tuple[bool, int]]) -> None:
    told = [
        notice("firing" if fires else "resolved", starts=10 * episode, ends=None if fires else 10 * episode + 5)
        for fires, episode in steps
    ]
    once, twice = final(told), final([copy for one in told for copy in (one, one)])
    assert once == twice


def test_the_recorded_sequence_as_it_came() -> None:
    by_file = {
        path.name[:2]: decode_notification(path.read_bytes(), NOW, max_alerts=100).notices
        for path in WEBHOOKS.glob("*.json")
    }
    assert json.dumps(sorted(by_file)) == '["17", "18", "20", "22"]'
    assert list(final([*by_file["17"], *by_file["18"]]).values()) == [True, True, True]
    assert final([*by_file["17"], *by_file["20"]])["2e45fab719d41ee4"] is False
    assert set(final([*by_file["17"], *by_file["20"], *by_file["22"]]).values()) == {False}
    assert set(final(list(by_file["22"])).values()) == {False}
