"""What nodes hold for us, and which of them failed a moment ago."""

from __future__ import annotations

import pytest

from fleetctl.gateway.nodes.loads import RECENT_HALF_LIFE_S, SUSPECT_S, Loads


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_suspect_is_probed_by_one_request_and_cleared_by_its_success() -> None:
    clock = Clock()
    loads = Loads(clock=clock)
    loads.suspect("a")
    assert (loads.is_suspect("a"), loads.is_suspect("b")) == (True, False)
    clock.now += SUSPECT_S
    assert not loads.is_suspect("a")
    loads.begin("a", 10)  # the probe
    assert loads.is_suspect("a"), "others keep away while one request probes"
    loads.trust("a")
    assert not loads.is_suspect("a")


def test_a_prompts_tokens_stand_before_others_until_its_first_token_and_its_seat_is_taken_until_its_end() -> None:
    loads = Loads()
    one, other = loads.begin("a", 10, 3), loads.begin("a", 5)
    assert (loads.of("a").prefill_tokens, loads.of("a").requests, loads.of("a").kv_tokens) == (15, 2, 18)
    one.end_prefill()
    one.end_prefill()
    assert (loads.of("a").prefill_tokens, loads.of("a").requests, loads.of("a").kv_tokens) == (5, 2, 18)
    one.end()
    one.end()
    assert (loads.of("a").prefill_tokens, loads.of("a").requests, loads.of("a").kv_tokens) == (5, 1, 5)
    other.end()
    assert loads.inflight_requests() == {}
    assert (loads.of("a").prefill_tokens, loads.of("a").kv_tokens) == (0, 0)
    loads.check_integrity()


def test_long_requests_are_counted_apart() -> None:
    loads = Loads()
    loads.begin("a", 10)
    long = loads.begin("a", 10_000, is_long=True)
    assert loads.of("a").num_long == 1
    long.end()
    assert loads.of("a").num_long == 0


def test_recent_work_fades_and_is_no_load() -> None:
    clock = Clock()
    loads = Loads(clock=clock)
    loads.begin("a", 1000, 200).end()
    assert loads.of("a").recent_tokens(clock.now) == 1200
    assert loads.of("a").recent_tokens(clock.now + RECENT_HALF_LIFE_S) == pytest.approx(600)
    assert loads.of("b").recent_tokens(clock.now) == 0
    loads.keep_only(["b"])
    assert loads.of("a").recent_tokens(clock.now) == 0


def test_the_prefill_rate_is_what_streams_saw_and_not_known_before() -> None:
    clock = Clock()
    loads = Loads(clock=clock)
    assert loads.prefill_rate() is None
    short, plain, stream = loads.begin("a", 10), loads.begin("a", 4000), loads.begin("b", 1000)
    clock.now += 2.0
    short.end_prefill()
    plain.end()
    assert loads.prefill_rate() is None, "neither a short prompt nor an answer as a whole tells of prefill"
    stream.end_prefill()
    assert loads.prefill_rate() == pytest.approx(500)


@pytest.mark.parametrize("gone", ["a", "b"])
def test_suspicions_of_nodes_that_left_are_forgotten(gone: str) -> None:
    loads = Loads()
    loads.suspect(gone)
    loads.keep_only([])
    assert not loads.is_suspect(gone)


def test_a_suspicion_lasts_as_long_as_was_said() -> None:
    clock = Clock()
    loads = Loads(clock=clock)
    loads.suspect("a", 1.0)
    loads.suspect("b")
    clock.now += 0.5
    assert (loads.is_suspect("a"), loads.is_suspect("b")) == (True, True)
    clock.now += 0.5
    assert (loads.is_suspect("a"), loads.is_suspect("b")) == (False, True)
    clock.now += SUSPECT_S - 1.0
    assert not loads.is_suspect("b")


def test_a_probe_makes_a_node_suspect_for_a_whole_time_again_and_no_other_request_does() -> None:
    clock = Clock()
    loads = Loads(clock=clock)
    loads.suspect("a", 1.0)
    loads.begin("a", 1)  # it was tried though it is suspect: no probe, the time runs on
    clock.now += 1.0
    assert not loads.is_suspect("a")
    loads.begin("a", 1)
    clock.now += SUSPECT_S - 0.25
    assert loads.is_suspect("a")
    clock.now += 0.25
    assert not loads.is_suspect("a")


def test_a_node_that_was_never_suspect_is_none_after_a_request() -> None:
    loads = Loads()
    loads.trust("a")
    loads.begin("a", 1)
    loads.suspect("b")
    loads.trust("a")
    assert (loads.is_suspect("a"), loads.is_suspect("b")) == (False, True)


def test_in_flight_counts_are_a_copy() -> None:
    loads = Loads()
    loads.begin("a", 1)
    loads.begin("b", 1)
    loads.inflight_requests().clear()
    assert loads.inflight_requests() == {"a": 1, "b": 1}


def test_suspicions_of_nodes_that_stay_are_kept() -> None:
    loads = Loads()
    loads.suspect("a")
    loads.suspect("b")
    loads.keep_only(iter(["a", "c"]))
    assert (loads.is_suspect("a"), loads.is_suspect("b")) == (True, False)
