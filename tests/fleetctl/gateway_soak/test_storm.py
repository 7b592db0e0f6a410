"""The storm's accounting: waits as a multiple of the normal ones, and long requests that are counted, not forgotten."""

from __future__ import annotations

from fleetctl.gateway_soak.storm import NORMAL, REROUTED, STORM, StormPhase, StormResult
from fleetctl.gateway_soak.tally import Answer


def make_phase(name: str, ttft_s: float, *, long: int = 0) -> StormPhase:
    phase = StormPhase(name)
    for number in range(10):
        phase.note_short(Answer(f"s{number}", "{}", ttft_s=ttft_s))
    for number in range(long):
        phase.note_long(Answer(f"l{number}", "{}", duration_s=2.0 + number), "node-3")
    return phase


def test_waits_are_told_as_a_multiple_of_the_normal_ones() -> None:
    phases = [make_phase(NORMAL, 0.1), make_phase(STORM, 0.8, long=4), make_phase(REROUTED, 0.12, long=3)]
    result = StormResult(phases)
    told = result.to_json()
    assert told["served"]
    assert [phase["times_normal"] for phase in told["phases"]] == [1.0, 8.0, 1.2]
    assert (told["phases"][1]["long_served"], told["phases"][1]["long_longest_s"]) == (4, 5.0)
    assert (
        "| storm, rerouted | 10 of 10 | 0.120 s | 0.120 s | 1.20 | 3 | 0 | 3.0 s | 4.0 s | node-3: 3 |"
        in result.table()
    )


def test_a_storm_whose_long_requests_are_lost_or_missing_is_not_served() -> None:
    normal, rerouted = make_phase(NORMAL, 0.1), make_phase(REROUTED, 0.1, long=3)
    assert not StormResult([normal, make_phase(STORM, 0.1), rerouted]).is_served, "no long request came through"
    lost = make_phase(STORM, 0.1, long=3)
    assert StormResult([normal, lost, rerouted]).is_served
    lost.note_long(Answer("l9", None, "refused for two minutes"), "unknown")
    assert not StormResult([normal, lost, rerouted]).is_served
    assert lost.to_json()["lost_reasons"] == {"refused for two minutes": 1}


def test_an_answer_without_a_first_token_is_no_sample() -> None:
    phase = StormPhase(NORMAL)
    phase.note_short(Answer("s1", None, "500"))
    phase.note_short(Answer("s2", "{}"))
    assert (phase.ttfts.percentiles().count, len(phase.short_lost)) == (0, 2)
    assert StormResult([phase]).times_normal(phase) is None
