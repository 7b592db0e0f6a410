from __future__ import annotations

import random

import pytest

from fleetctl.gateway.fates import Fates, Outcome


def test_a_request_is_in_flight_until_it_has_its_one_fate() -> None:
    fates = Fates()
    flight = fates.begin("r1")
    assert fates.get("r1") is flight
    assert flight.as_json()["fate"] == "in_flight"
    fates.end(flight, Outcome.FINISHED, status=200)
    assert flight.as_json()["fate"] == "finished"
    assert fates.counts == {Outcome.FINISHED: 1}
    with pytest.raises(AssertionError, match="already ended"):
        fates.end(flight, Outcome.FAILED)


def test_old_fates_are_forgotten_and_counts_are_not() -> None:
    fates = Fates(max_remembered=3)
    for number in range(10):
        fates.end(fates.begin(f"r{number}"), Outcome.FINISHED)
    assert fates.get("r6") is None
    assert fates.get("r7") is not None
    assert fates.counts[Outcome.FINISHED] == 10
    fates.check_integrity()


def test_an_id_may_come_again_after_its_end() -> None:
    fates = Fates()
    fates.end(fates.begin("same"), Outcome.FAILED)
    fates.end(fates.begin("same"), Outcome.FINISHED)
    again = fates.get("same")
    assert again is not None
    assert again.outcome is Outcome.FINISHED
    fates.check_integrity()


def test_any_order_of_begins_and_ends_adds_up() -> None:
    rng = random.Random(7)
    fates = Fates(max_remembered=20)
    flying = []
    for number in range(500):
        if flying and rng.random() < 0.5:
            fates.end(flying.pop(rng.randrange(len(flying))), rng.choice(list(Outcome)))
        else:
            flying.append(fates.begin(f"r{number}"))
        fates.check_integrity()
    assert fates.in_flight == len(flying)
