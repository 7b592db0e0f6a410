"""Cases that nobody has looked at: the same for a seed, others for another, and each with a name that there is."""

from __future__ import annotations

from diagnostics.bench.random_cases import FAULTS, random_cases
from diagnostics.bench.random_health import HEALTHY
from diagnostics.bench.recording import record
from diagnostics.cause import builtin_causes


def test_cases_are_those_of_their_seed() -> None:
    first = [one.model_dump() for one in random_cases(12, 3)]
    assert first == [one.model_dump() for one in random_cases(12, 3)]
    assert first != [one.model_dump() for one in random_cases(12, 4)]


def test_each_fault_comes_once_before_any_comes_twice_and_some_fleets_stay_well() -> None:
    cases = random_cases(len(FAULTS), 5)
    faults = [one.name.split("-", 3)[3].rsplit("-", 1)[0] for one in cases if not one.expect.none]
    assert len(faults) == len(set(faults))
    assert 0.05 < sum(one.expect.none for one in cases) / len(cases) < 0.3


def test_what_is_expected_is_a_cause_that_there_is() -> None:
    named = {cause for one in random_cases(3 * len(FAULTS), 6) for cause in one.expect.causes}
    assert named <= builtin_causes().keys()
    assert len(named) > 35


def test_case_of_each_kind_can_be_recorded() -> None:
    for case in random_cases(len(FAULTS) + len(HEALTHY), 8)[::9]:
        assert record(case.model_copy(update={"before": 120.0, "after": 60.0})).nodes
