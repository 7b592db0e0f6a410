"""Prometheus' own PromQL tests. What is not supported is listed here with its number, so that it cannot grow unseen."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fixtures import DATA
from tests.fixtures.promqltest import run_file

FILES = DATA / "promqltest"

NATIVE_INPUT = "native histograms: input series"
NATIVE_MADE = "native histograms: made by load_with_nhcb"
NATIVE_RESULT = "native histograms: expected result"

# file: (evaluations that must pass, evaluations that need what we refuse and why)
EXPECTED: dict[str, tuple[int, dict[str, int]]] = {
    "aggregators.test": (
        127,
        {
            NATIVE_INPUT: 31,
            "limitk() is not supported: experimental in Prometheus; use topk()": 1,
            "limit_ratio() is not supported: experimental in Prometheus": 1,
        },
    ),
    "functions.test": (329, {NATIVE_INPUT: 84, NATIVE_RESULT: 18}),
    "operators.test": (143, {NATIVE_INPUT: 64, NATIVE_RESULT: 5, NATIVE_MADE: 2}),
    "selectors.test": (31, {}),
    "staleness.test": (17, {}),
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_gives_the_results_that_prometheus_gives(name: str) -> None:
    outcome = run_file(FILES / name)
    assert outcome.failed == {}
    passed, unsupported = EXPECTED[name]
    assert Counter(outcome.unsupported.values()) == unsupported
    assert len(outcome.passed) == passed


def test_every_promqltest_file_is_expected() -> None:
    assert {path.name for path in FILES.glob("*.test")} == set(EXPECTED)
