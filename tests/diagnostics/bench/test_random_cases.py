"""Cases that nobody has looked at: the same for a seed, others for another, and each with a name that there is."""

from __future__ import annotations

import random

from diagnostics.bench.random_cases import FAULTS, random_cases
from diagnostics.bench.random_circumstances import CIRCUMSTANCES, nothing_told
from diagnostics.bench.random_course import CAN_DRIFT, CAN_TURN
from diagnostics.bench.random_fleet import random_fleet
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
    named = {cause for one in random_cases(2 * len(FAULTS), 6) for cause in one.expect.causes}
    assert named <= builtin_causes().keys()
    assert len(named) > 65


def test_case_of_each_kind_can_be_recorded() -> None:
    for case in random_cases(len(FAULTS) + len(HEALTHY), 8)[::9]:
        assert record(case.model_copy(update={"before": 120.0, "after": 60.0})).nodes


def test_fault_that_can_drift_or_turn_is_one_that_there_is() -> None:
    assert {one.__name__ for one in FAULTS} >= CAN_DRIFT | CAN_TURN


def test_cases_come_in_each_circumstance_and_course() -> None:
    titles = " ".join(one.title for one in random_cases(6 * len(FAULTS), 9))
    words = [one.__name__.replace("_", " ") for one in CIRCUMSTANCES]
    assert [word for word in (*words, "slowly", "to and fro") if word not in titles] == []


def test_two_faults_at_once_want_a_name_of_each() -> None:
    twos = [one for one in random_cases(6 * len(FAULTS), 9) if one.expect.both]
    assert twos
    assert all(len(one.expect.both) == 2 for one in twos)
    assert all(one.expect.causes == {name for names in one.expect.both for name in names} for one in twos)


def test_fleet_that_nobody_tells_of_has_neither_gateway_nor_controller_nor_cards() -> None:
    fleet = random_fleet(random.Random(1))
    assert nothing_told(fleet)
    assert (fleet.gateway, fleet.controller, fleet.gpu) == (False, False, False)


def test_what_happens_to_all_spares_the_other_pool() -> None:
    beside = [one for one in random_cases(4 * len(FAULTS), 9) if len({node.pool for node in one.nodes}) == 2]
    assert beside
    assert all("all" not in change.on for one in beside for change in one.changes)


def test_node_that_was_ill_before_may_be_replaced() -> None:
    ill = [one for one in random_cases(4 * len(FAULTS), 9) if "an older card" in one.title]
    assert ill
    assert not any(one.expect.not_remedies for one in ill)
