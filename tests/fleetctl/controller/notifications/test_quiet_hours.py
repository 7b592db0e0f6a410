"""Quiet hours in the receiver's own time: over midnight, by weekday, when clocks are changed."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.controller.notifications.quiet_hours import quiet_until
from fleetctl.settings.notifications import WEEKDAYS, QuietHours

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def at(text: str, zone: zoneinfo.ZoneInfo = BERLIN) -> float:
    return dt.datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def hours(**changes: Any) -> QuietHours:
    return QuietHours(**{"start": "22:00", "end": "07:00", "time_zone": "Europe/Berlin", **changes})


@pytest.mark.parametrize(
    ("now", "until"),
    [
        ("2026-11-23T21:59:59", None),
        ("2026-11-23T22:00:00", "2026-11-24T07:00:00"),
        ("2026-11-24T06:59:59", "2026-11-24T07:00:00"),
        ("2026-11-24T07:00:00", None),
        ("2026-03-29T01:00:00", "2026-03-29T07:00:00"),  # clocks go forward at 02:00
        ("2026-10-25T01:00:00", "2026-10-25T07:00:00"),  # and back at 03:00
    ],
)
def test_a_night_is_from_its_start_to_its_end_by_the_clock_on_the_wall(now: str, until: str | None) -> None:
    assert quiet_until(hours(), "page", at(now)) == (until and at(until))


def test_a_night_without_an_hour_is_that_much_shorter() -> None:
    usual = at("2026-11-24T07:00") - at("2026-11-23T22:00")
    assert at("2026-03-29T07:00") - at("2026-03-28T22:00") == usual - 3600


def test_only_the_days_on_which_it_begins_count_and_what_is_grave_is_never_held() -> None:
    weekend = hours(days=("fri",), start="18:00", end="08:00")
    assert quiet_until(weekend, "page", at("2026-11-28T07:00")) == at("2026-11-28T08:00"), "Saturday: since Friday"
    assert quiet_until(weekend, "page", at("2026-11-29T07:00")) is None
    assert quiet_until(weekend, "critical", at("2026-11-28T07:00")) is None
    assert quiet_until(hours(unless="page"), "page", at("2026-11-23T23:00")) is None
    assert quiet_until(None, "ticket", at("2026-11-23T23:00")) is None


@pytest.mark.parametrize(
    "wrong", [{"time_zone": "Europe/Berlyn"}, {"time_zone": "../../etc/passwd"}, {"start": "25:00"}, {"end": "22:00"}]
)
def test_hours_that_can_not_be_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        hours(**wrong)


CLOCKS = st.times().map(lambda time: time.strftime("%H:%M"))


@given(
    st.tuples(CLOCKS, CLOCKS).filter(lambda pair: pair[0] != pair[1]),
    st.sets(st.sampled_from(WEEKDAYS), min_size=1),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.floats(1.6e9, 1.9e9),
)
def test_quiet_ends_after_now_within_two_days_and_is_quiet_until_then(pair, days, zone, now) -> None:
    quiet = QuietHours(start=pair[0], end=pair[1], days=tuple(sorted(days)), time_zone=zone)
    until = quiet_until(quiet, "page", now)
    if until is None:
        return
    assert now < until <= now + 3 * 86_400
    middle = (now + until) / 2
    assert quiet_until(quiet, "page", middle) == until
    assert quiet_until(quiet, "critical", now) is None
