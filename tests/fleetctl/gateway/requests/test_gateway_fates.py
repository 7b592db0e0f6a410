from __future__ import annotations

import random

import pytest

from fleetctl.gateway.requests.fates import Fates, Move, Outcome


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


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_fate_tells_all_that_is_known_of_its_request() -> None:
    clock, ended = Clock(), list[str]()
    fates = Fates(now=lambda: 1.5e9, clock=clock, on_end=lambda proxied: ended.append(proxied.request_id))
    proxied = fates.begin("r1")
    assert proxied.as_json() == {
        "request_id": "r1",
        "fate": "in_flight",
        "tenant": None,
        "class": None,
        "queue_wait_s": 0.0,
        "moved": 0,
        "moves": [],
        "retries": 0,
        "nodes": [],
        "node": "",
        "deaths": [],
        "status": None,
        "reason": "",
        "started_at": 1.5e9,
        "duration_s": None,
        "ttft_s": None,
    }
    clock.now += 0.5
    assert fates.mark_first_byte(proxied) == 0.5
    clock.now += 1.5
    proxied.nodes.append("a")
    proxied.moves.append(Move("a", "b", "node_silent", 17, 6.5))
    proxied.retries = 2
    assert ended == []
    fates.end(proxied, Outcome.FAILED, reason="node_lost", status=502)
    assert ended == ["r1"]
    told = proxied.as_json()
    assert (told["fate"], told["reason"], told["status"], told["duration_s"]) == ("failed", "node_lost", 502, 2.0)
    assert (told["moved"], told["retries"], told["nodes"], told["ttft_s"]) == (1, 2, ["a"], 0.5)
    assert told["moves"] == [
        {"from": "a", "to": "b", "reason": "node_silent", "how": "exact", "tokens": 17, "pause_s": 6.5}
    ]


def test_a_status_that_was_sent_stays_when_the_end_brings_none() -> None:
    fates = Fates()
    proxied = fates.begin("r1")
    proxied.status = 200
    fates.end(proxied, Outcome.CLIENT_GONE)
    assert (proxied.status, proxied.reason) == (200, "")


def test_the_one_in_flight_is_told_before_one_of_the_same_id_that_ended() -> None:
    fates = Fates()
    fates.end(fates.begin("same"), Outcome.FINISHED)
    assert not fates.is_in_flight("same")
    again = fates.begin("same")
    assert fates.is_in_flight("same")
    assert fates.get("same") is again
    assert fates.in_flight == 1
    assert fates.get("other") is None


def test_an_id_that_came_again_is_remembered_from_its_last_end() -> None:
    fates = Fates(max_remembered=2)
    for request_id in ("a", "b", "a", "c"):
        fates.end(fates.begin(request_id), Outcome.FINISHED)
    assert fates.get("a") is not None
    assert fates.get("b") is None
    assert fates.get("c") is not None
