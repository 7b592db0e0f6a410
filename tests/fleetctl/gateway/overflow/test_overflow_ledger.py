"""Budgets of overflow: never exceeded, remembered over restarts, shared by processes, unknown when unreadable."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.gateway.overflow.ledger import DAY_S, FILE_NAME, HOUR_S, Amount, Exhausted, Ledger, Reservation, micros_of
from fleetctl.gateway.overflow.overflow import find_exit
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.overflow import OverflowEndpoint, OverflowModel

MODEL = OverflowModel(model="demo", outside_model="big", input_cost=1.0, output_cost=2.0)
NOW = 1_763_800_000.0


def endpoint(**changes: Any) -> OverflowEndpoint:
    given = {"name": "far", "url": "http://far", "models": (MODEL,), "tenants": ("*",)}
    given |= {"daily_max_tokens": 1000, "daily_max_cost": 1.0}
    return OverflowEndpoint(**(given | changes))


def test_what_does_not_fit_is_refused_with_the_limits_name(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    made = ledger.reserve(endpoint(), Amount(900, 0), NOW)
    assert isinstance(made, Reservation)
    assert ledger.reserve(endpoint(), Amount(101, 0), NOW) == Exhausted("daily_max_tokens")
    assert ledger.reserve(endpoint(), Amount(1, 1_000_001), NOW) == Exhausted("daily_max_cost")
    assert ledger.reserve(endpoint(hourly_max_tokens=950), Amount(60, 0), NOW) == Exhausted("hourly_max_tokens")
    ledger.settle(made, Amount(100, 0), NOW)
    assert isinstance(Ledger(tmp_path).reserve(endpoint(), Amount(900, 0), NOW), Reservation)


def test_a_restart_remembers_and_a_reservation_that_nobody_settled_stays_spent(tmp_path: Path) -> None:
    Ledger(tmp_path).reserve(endpoint(), Amount(600, 500_000), NOW)
    again = Ledger(tmp_path)
    assert isinstance(again.reserve(endpoint(), Amount(500, 0), NOW), Exhausted)
    assert again.left_ratios(endpoint(), NOW) == {"hour": 1.0, "day": 0.4}
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_hours_and_days_begin_anew_and_a_clock_that_goes_back_opens_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    one = endpoint(hourly_max_tokens=600, daily_max_tokens=1000)
    made = ledger.reserve(one, Amount(600, 0), NOW)
    assert isinstance(made, Reservation)
    assert isinstance(ledger.reserve(one, Amount(1, 0), NOW - DAY_S), Exhausted)
    assert isinstance(ledger.reserve(one, Amount(400, 0), NOW + HOUR_S), Reservation)
    ledger.settle(made, Amount(0, 0), NOW + HOUR_S)  # its hour is over, its day is not
    assert isinstance(ledger.reserve(one, Amount(300, 0), NOW + HOUR_S), Exhausted)
    assert isinstance(ledger.reserve(one, Amount(200, 0), NOW + HOUR_S), Reservation)
    assert isinstance(ledger.reserve(one, Amount(600, 0), NOW + DAY_S), Reservation)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2}', '{"endpoints": {"far": {}}}', '{"endpoints": {"far": 1}}']
)
def test_a_file_that_cannot_be_read_opens_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    ledger = Ledger(tmp_path)
    with pytest.raises(BadInputError, match=FILE_NAME):
        ledger.reserve(endpoint(), Amount(1, 0), NOW)
    assert (tmp_path / FILE_NAME).read_text() == text


def test_processes_that_share_the_file_never_spend_it_twice(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda i: ledgers[i % 4].reserve(endpoint(), Amount(100, 0), NOW), range(16)))
    assert sum(isinstance(one, Reservation) for one in made) == 10


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 400_000), st.floats(0, 1), st.integers(0, 3 * HOUR_S)),
        max_size=12,
    )
)
def test_whatever_happens_no_window_holds_more_than_its_limit(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[int, int, float, int]]
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger"))
    one = endpoint(hourly_max_tokens=700, daily_max_tokens=1000, daily_max_cost=0.9)
    now = NOW
    for tokens, micros, share, later in calls:
        made = ledger.reserve(one, Amount(tokens, micros), now)
        now += later
        if isinstance(made, Reservation) and share < 0.8:
            ledger.settle(made, Amount(int(tokens * share), int(micros * share)), now)
        spent = json.loads(ledger.path.read_text())["endpoints"]["far"] if ledger.path.exists() else None
        if spent:
            assert spent["hour"]["tokens"] <= 700
            assert spent["day"]["tokens"] <= 1000
            assert spent["day"]["micros"] <= 900_000


def test_prices_are_of_a_million_tokens_and_rounded_up() -> None:
    assert micros_of(1_000_000, 2.5) == 2_500_000
    assert micros_of(1, 0.1) == 1


@pytest.mark.parametrize(
    ("rule", "request_", "goes"),
    [
        ({"tenants": ()}, {}, False),
        ({"tenants": ("b",)}, {}, False),
        ({"tenants": ("a",)}, {}, True),
        ({"tenants": ("*",)}, {"model": "other"}, False),
        ({"when": ("overloaded",)}, {}, False),
        ({"classes": ("critical",)}, {"priority": "batch"}, False),
        ({"classes": ("critical",)}, {"priority": "critical"}, True),
        ({"when": ("queue_wait",)}, {"reason": "queue_wait", "wait_s": 9.0}, False),
        ({"when": ("queue_wait",)}, {"reason": "queue_wait", "wait_s": 11.0}, True),
        ({"when": ("queue_wait",)}, {"reason": "queue_wait", "wait_s": None}, False),
    ],
    ids=[
        "off by default",
        "another tenant",
        "its tenant",
        "another model",
        "another reason",
        "another class",
        "its class",
        "a short wait",
        "a long wait",
        "an unknown wait",
    ],
)
def test_a_request_leaves_only_by_a_rule_that_fits(rule: Any, request_: Any, goes: bool) -> None:
    asked = {"reason": "no_node", "model": "demo", "tenant": "a", **request_}
    assert (find_exit([endpoint(**rule)], **asked) is not None) is goes
