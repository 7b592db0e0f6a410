from __future__ import annotations

import asyncio
import math

import pytest

from alerts.series.store import SeriesStore
from diagnostics.postmortem import PostmortemInput, render
from diagnostics.record import AlertRecord, IncidentRecord
from fleetctl.controller.incidents.counter_growth import increase
from fleetctl.controller.incidents.impact import impact_in_parts, impact_of, slo_minutes
from fleetctl.controller.notifications.incident_notice import impact_words

OPENED_AT = 1000
OPENED = float(OPENED_AT)
INCIDENT = IncidentRecord(id="inc-1", title="t", status="resolved", opened_at=OPENED)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(900, 5.0), (1000, 7.0), (1010, 9.0)], 4.0),
        ([(900, 5.0)], 0.0),
        ([(1005, 3.0), (1010, 4.0)], 4.0),
        ([(900, 50.0), (1005, 2.0), (1010, 3.0)], 3.0),
        ([(900, 5.0), (1005, math.nan), (1010, 6.0)], 1.0),
        ([], 0.0),
    ],
    ids=["grows", "stands", "begins later", "reset", "gap", "empty"],
)
def test_growth_of_a_counter_since_the_incident_began(points: list[tuple[float, float]], expected: float) -> None:
    assert increase(points, OPENED) == expected


def make_store(*, watched_before: bool) -> SeriesStore:
    store = SeriesStore()
    for at in range(900 if watched_before else 1001, 1050, 5):
        store.append({"__name__": "up", "job": "llm-gateway"}, at, 1.0)
        store.append({"__name__": "gateway_requests_total", "outcome": "finished", "node": "a"}, at, float(at))
        if at >= 1020:
            store.append({"__name__": "gateway_requests_total", "outcome": "failed", "node": "a"}, at, 2.0)
        store.append({"__name__": "gateway_handoffs_total", "result": "moved"}, at, 3.0 if at >= 1010 else 0.0)
        slow = 0.5 if 1000 <= at < 1040 else 0.1
        store.append({"__name__": "llm:ttft_seconds:p99", "node": "a"}, at, slow)
    return store


def test_impact_counts_what_the_gateway_saw() -> None:
    impact = impact_of(INCIDENT, make_store(watched_before=True), 0, 2000)
    assert (impact.finished, impact.lost, impact.requests, impact.moved) == (50, 2, 52, 3)
    assert (impact.p99_ttft_before_s, impact.p99_ttft_worst_s, impact.p99_ttft_after_s) == (0.1, 0.5, 0.1)
    assert impact.duplicated is None


def test_of_one_node_requests_are_the_fleets_by_word_and_other_pools_first_tokens_are_not_its_users() -> None:
    """A core that died within a second was told with "p99 TTFT up to 2.4 s", of a slow node beside it; a pool of long
    prompts takes 60 s as ever."""
    store = make_store(watched_before=True)
    for at in range(900, 1050, 5):
        store.append({"__name__": "llm:ttft_seconds:p99", "node": "b", "pool": "chat"}, at, 0.7)
        store.append({"__name__": "llm:ttft_seconds:p99", "node": "z", "pool": "batch"}, at, 60.0)
    of_node = INCIDENT.model_copy(update={"scope": {"node": "a", "pool": "chat"}})
    impact = impact_of(of_node, store, 0, 2000)
    assert impact.p99_ttft_worst_s == 0.7
    assert impact_words(impact).startswith("2 of the fleet's 52 requests lost, p99 TTFT up to 700 ms")
    page = render(PostmortemInput(of_node, 1100.0, impact))
    assert "Requests are counted of the whole fleet" in page
    of_fleet = impact_of(INCIDENT, store, 0, 2000)
    assert impact_words(of_fleet).startswith("2 of 52 requests lost, p99 TTFT up to about 60 s")
    assert "of the whole fleet" not in render(PostmortemInput(INCIDENT, 1100.0, of_fleet))


def test_who_was_turned_away_is_impact_too_and_in_no_other_number() -> None:
    store = make_store(watched_before=True)
    for at in range(900, 1050, 5):
        refused = 10.0 if at < 1000 else 10.0 + 3 * (at - 995) / 5
        store.append({"__name__": "gateway_requests_total", "outcome": "refused"}, at, refused)
    impact = impact_of(INCIDENT, store, 0, 2000)
    assert (impact.requests, impact.lost, impact.refused) == (52, 2, 30)
    assert impact_words(impact).startswith("2 of 52 requests lost, 30 turned away, 37% of all who came, ")
    assert "| turned away before they began | 30 |" in render(PostmortemInput(INCIDENT, 1100.0, impact))
    assert impact_of(INCIDENT, make_store(watched_before=False), 0, 2000).refused is None
    few = impact.model_copy(update={"requests": 4882, "refused": 2})
    assert few.refused_words == "2 turned away, less than 1% of all who came"


def test_who_hung_up_unanswered_is_impact_too_and_a_few_who_do_always_are_not() -> None:
    """A queue of minutes: nobody is lost by the gateway's word, and four of five have left."""
    store = make_store(watched_before=True)
    for at in range(900, 1050, 5):
        gone = 10.0 if at < 1000 else 10.0 + 20 * (at - 995) / 5
        store.append({"__name__": "gateway_requests_total", "outcome": "client_gone", "node": "a"}, at, gone)
    impact = impact_of(INCIDENT, store, 0, 2000)
    assert (impact.requests, impact.left) == (252, 200)
    assert impact_words(impact).startswith("2 of 252 requests lost, 200 left before the end of their answer (79%), ")
    assert "| left before the end of their answer | 200 |" in render(PostmortemInput(INCIDENT, 1100.0, impact))
    assert "left" not in impact_words(impact.model_copy(update={"left": 3}))


def test_the_minute_for_which_a_silent_node_was_only_looked_at_is_in_its_impact() -> None:
    silent = INCIDENT.model_copy(update={"onset_at": OPENED - 60})
    store = make_store(watched_before=True)
    for at in range(900, 1050, 5):
        lost = 4.0 if at > OPENED - 50 else 0.0
        store.append({"__name__": "gateway_requests_total", "outcome": "gave_up", "node": "a"}, at, lost)
    assert impact_of(silent, store, 0, 2000).lost == 4 + 2
    assert "| first bad sample | incident opened | 60 s |" in render(PostmortemInput(silent, 1100.0))


def test_streams_that_move_as_their_node_dies_count_though_the_first_bad_scrape_came_later() -> None:
    store = make_store(watched_before=True)
    for at, value in ((980.0, 0.0), (OPENED - 1.0, 2.0), (1020.0, 2.0)):
        store.append({"__name__": "gateway_stream_moves_total", "reason": "cut", "result": "moved"}, at, value)
    assert impact_of(INCIDENT, store, 0, 2000).moved == 3 + 2


def test_impact_is_unknown_when_nobody_watched_from_the_beginning() -> None:
    impact = impact_of(INCIDENT, make_store(watched_before=False), 0, 2000)
    assert (impact.finished, impact.lost, impact.requests, impact.moved) == (None, None, None, None)


def test_impact_of_an_empty_store_is_unknown() -> None:
    impact = impact_of(INCIDENT, SeriesStore(), 0, 2000)
    assert {impact.requests, impact.lost, impact.moved, impact.p99_ttft_worst_s} == {None}


def make_incident(active_at: float, node: str = "a") -> IncidentRecord:
    alert = {"fingerprint": "f", "name": "LLMNodeDown", "state": "resolved", "active_at": active_at}
    return INCIDENT.model_copy(update={"alerts": [AlertRecord.model_validate({**alert, "labels": {"node": node}})]})


def test_what_was_lost_while_the_alert_waited_for_its_time_counts() -> None:
    store = SeriesStore()
    for at in range(900, 1100, 5):
        store.append({"__name__": "up", "job": "llm-gateway"}, at, 1.0)
        store.append({"__name__": "up", "job": "llm-node", "node": "a"}, at, 1.0 if at < 940 else 0.0)
        store.append({"__name__": "gateway_inflight_requests", "node": "a"}, at, 2.0)
        for outcome, count in (("finished", at / 5), ("failed", 4.0 if at >= 930 else 0.0), ("client_gone", 1.0)):
            store.append({"__name__": "gateway_requests_total", "outcome": outcome, "node": "a"}, at, count)
        gave_up = 17.0 if at >= 990 else 0.0
        store.append({"__name__": "gateway_requests_total", "outcome": "gave_up", "node": "a"}, at, gave_up)
        store.append({"__name__": "gateway_lost_requests_total", "reason": "node_silent"}, at, gave_up)

    impact = impact_of(make_incident(active_at=940.0), store, 0, 2000)

    # Opened at 1000; four failed in the seconds before the first bad sample, and the hung ones were given up later.
    assert (impact.lost, impact.lost_by_reason, impact.still_held) == (21, {"node_silent": 17}, 2)
    assert impact.finished == 32


@pytest.mark.parametrize("is_back", [True, False])
def test_a_gateway_that_died_meanwhile_counted_nothing(is_back: bool) -> None:
    store = SeriesStore()
    for at in range(900, 1050, 5):
        gone = 1000 <= at < (1020 if is_back else 2000)
        store.append({"__name__": "up", "job": "llm-gateway"}, at, 0.0 if gone else 1.0)
        if not gone:
            started = 800.0 if at < 1000 else 1019.0
            store.append({"__name__": "process_start_time_seconds", "job": "llm-gateway"}, at, started)
            store.append({"__name__": "gateway_requests_total", "outcome": "finished", "node": "a"}, at, 1.0)

    impact = impact_of(INCIDENT, store, 0, 2000)

    assert (impact.requests, impact.lost, impact.moved) == (None, None, None)
    page = render(PostmortemInput(INCIDENT, 2000.0, impact))
    assert f"Whether requests were lost: {impact.why_not_counted}." in page
    assert "gateway" in impact.why_not_counted


@pytest.mark.parametrize(("gateways", "told"), [(1, "those that found no gateway"), (2, "")])
def test_who_found_no_gateway_is_told_as_an_estimate_and_is_in_no_count(gateways: int, told: str) -> None:
    store = SeriesStore()
    for at in range(900, 1050, 5):
        is_down = 1000 <= at < 1020
        for number in range(gateways):
            up = 0.0 if number == 0 and is_down else 1.0
            store.append({"__name__": "up", "job": "llm-gateway", "instance": f"gateway-{number}"}, at, up)
        if gateways == 1 and is_down:
            continue
        served = at if at < 1000 else at - 20  # of its state it knows what it had counted
        store.append({"__name__": "gateway_requests_total", "outcome": "finished", "node": "a"}, at, served / 5)
        store.append({"__name__": "gateway_requests_total", "outcome": "refused"}, at, served / 10)
        store.append({"__name__": "gateway_requests_total", "outcome": "failed", "node": "a"}, at, 2.0 * (at > 1020))

    impact = impact_of(INCIDENT, store, 0, 2000)

    assert (impact.lost, impact.no_gateway_s) == (2, 20.0 if told else 0.0)
    page = render(PostmortemInput(INCIDENT, 2000.0, impact))
    assert f"| lost | 2{', and ' + told if told else ''} |" in page
    words = "about 6 more found no gateway that answered (0.3/s came before, for 20 s; counted by nobody)"
    assert impact.found_no_gateway == (6 if told else 0)
    assert (f"| found no gateway, in no number here | {words} |" in page) == bool(told)
    assert (f"- How many requests found no gateway: {words}." in page) == bool(told)
    assert (words in impact_words(impact)) == bool(told)


@pytest.mark.parametrize(("away_s", "told"), [(40, True), (5, False)], ids=["hung", "looked at late"])
def test_that_one_of_two_gateways_answered_nobody_is_told_although_the_other_served(away_s: int, told: bool) -> None:
    """Half of the users waited for 45 s, and the page had "0 lost" alone."""
    store = SeriesStore()
    for at in range(900, 1100, 5):
        for number in range(2):
            of, is_away = (
                {"job": "llm-gateway", "instance": f"gateway-{number}"},
                number == 1 and 1000 <= at < 1000 + away_s,
            )
            store.append({"__name__": "up", **of}, at, 0.0 if is_away else 1.0)
            if not is_away:
                store.append(
                    {"__name__": "gateway_requests_total", "outcome": "finished", "node": "a", **of}, at, 1.0 * at
                )
    impact = impact_of(INCIDENT, store, 0, 2000)
    words = "1 of 2 gateways did not answer for 40 s (who asked there waited, or asked another)"
    assert (words in impact_words(impact)) == told
    assert (f"| gateways | {words} |" in render(PostmortemInput(INCIDENT, 2000.0, impact))) == told
    assert (impact.silent_words == "") != told


def test_two_gateways_are_not_one_that_was_started_anew() -> None:
    """Of a fleet with two gateways nothing was ever counted: each of them had started at another time."""
    store = SeriesStore()
    for at in range(900, 1050, 5):
        for number in range(2):
            of = {"job": "llm-gateway", "instance": f"gateway-{number}"}
            store.append({"__name__": "up", **of}, at, 1.0)
            store.append({"__name__": "process_start_time_seconds", **of}, at, 800.0 + number)
            counts = {"__name__": "gateway_requests_total", "outcome": "finished", "node": "a", **of}
            store.append(counts, at, float(at))
    impact = impact_of(INCIDENT, store, 0, 2000)
    assert (impact.why_not_counted, impact.lost) == ("", 0)
    assert impact.finished is not None
    assert impact.finished > 0


def test_of_each_outage_what_came_before_it_counts() -> None:
    """A gateway ended again after the traffic had: "about 35 found no gateway", of whom there were 20."""
    store = SeriesStore()
    for at in range(900, 1200, 5):
        if 1000 <= at < 1020 or 1100 <= at < 1120:
            store.append({"__name__": "up", "job": "llm-gateway"}, at, 0.0)
            continue
        store.append({"__name__": "up", "job": "llm-gateway"}, at, 1.0)
        served = at if at < 1000 else at - 20 if at < 1040 else 1020  # nobody comes any more
        store.append({"__name__": "gateway_requests_total", "outcome": "finished", "node": "a"}, at, float(served))
    impact = impact_of(INCIDENT, store, 0, 2000)
    assert (impact.no_gateway_s, impact.found_no_gateway) == (40.0, 20)


def test_of_a_gateway_that_was_too_busy_to_be_looked_at_nobody_is_said_to_have_found_none() -> None:
    """A machine stood still: looks failed for 20 s, and what came meanwhile was served by the same gateway."""
    store = SeriesStore()
    for at in range(900, 1050, 5):
        is_late = 1000 <= at < 1020
        store.append({"__name__": "up", "job": "llm-gateway"}, at, 0.0 if is_late else 1.0)
        if not is_late:
            store.append({"__name__": "gateway_requests_total", "outcome": "finished", "node": "a"}, at, float(at))
    impact = impact_of(INCIDENT, store, 0, 2000)
    assert (impact.no_gateway_s, impact.found_no_gateway) == (20.0, 0)
    assert "those that found no gateway" not in render(PostmortemInput(INCIDENT, 2000.0, impact))
    assert "no gateway answered its controller for 20 s (but requests ended there as before)" in impact_words(impact)


@pytest.mark.parametrize("is_same", [True, False], ids=["hung", "started anew"])
def test_who_waited_at_a_gateway_that_hung_and_was_served_once_it_went_on_did_not_find_none(is_same: bool) -> None:
    """SIGSTOP for 20 s, SIGCONT: all were served, up to 20 s late, and "about 20 found no gateway"."""
    store = SeriesStore()
    for at in range(900, 1050, 5):
        is_away = 1000 <= at < 1020
        store.append({"__name__": "up", "job": "llm-gateway"}, at, 0.0 if is_away else 1.0)
        if is_away:
            continue
        started = 800.0 if at < 1000 or is_same else 1019.0
        store.append({"__name__": "process_start_time_seconds", "job": "llm-gateway"}, at, started)
        served = at if at < 1000 else at - 25 if at == 1020 else at - 5  # most of what waited ended within 5 s
        store.append({"__name__": "gateway_requests_total", "outcome": "finished", "node": "a"}, at, float(served))
        store.append({"__name__": "gateway_inflight_requests", "node": "a"}, at, 0.0 if at < 1000 else 5.0)
    impact = impact_of(INCIDENT, store, 0, 2000)
    waited = "no gateway answered for 20 s (about 25 waited until it went on)"
    assert impact.found_no_gateway == (0 if is_same else 25)
    assert (waited in impact_words(impact)) == is_same
    assert ("found no gateway that answered" in impact_words(impact)) != is_same


@pytest.mark.parametrize("watched_from", [985, None], ids=["for fifteen seconds", "never"])
def test_how_many_found_no_gateway_is_unknown_where_what_came_before_is(watched_from: int | None) -> None:
    store = SeriesStore()
    for at in range(watched_from or OPENED_AT, 1050, 5):
        store.append({"__name__": "up", "job": "llm-gateway"}, at, 0.0 if 1000 <= at < 1020 else 1.0)
        store.append({"__name__": "gateway_requests_total", "outcome": "finished", "node": "a"}, at, float(at))
    impact = impact_of(INCIDENT, store, 0, 2000)
    assert (impact.no_gateway_s, impact.found_no_gateway) == (20.0, None)
    page = render(PostmortemInput(INCIDENT, 2000.0, impact))
    assert (
        "- How many requests found no gateway: no gateway answered for 20 s (how many came then is not known)" in page
    )


@pytest.mark.anyio
async def test_read_in_parts_it_comes_to_the_same_and_others_have_their_turn() -> None:
    store = make_store(watched_before=True)
    for node in range(200):
        for at in range(0, 120, 10):
            labels = {"__name__": "llm:ttft_seconds:p99", "node": f"node-{node}", "pool": "default"}
            store.append(labels, OPENED + at, 0.1 + at / 1000)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    found = await impact_in_parts(INCIDENT, store, 0, 2000)
    beside.cancel()
    assert found == impact_of(INCIDENT, store, 0, 2000)
    assert found.p99_ttft_worst_s is not None
    assert turns >= 4


@pytest.mark.parametrize("is_counted", [True, False], ids=["by the gateway", "by the node itself"])
def test_answers_since_the_last_right_one_of_a_lying_node_may_be_wrong_and_every_reader_is_told(
    is_counted: bool,
) -> None:
    store = SeriesStore()
    for at in range(900, 1100, 5):
        store.append({"__name__": "llm:output_ok", "node": "a"}, at, 1.0 if at < 1000 or at >= 1060 else 0.0)
        store.append({"__name__": "llm:output_ok", "node": "b"}, at, 1.0)
        store.append({"__name__": "llm:served:rate", "node": "a"}, at, 0.5)
        store.append({"__name__": "up", "job": "llm-gateway"}, at, 1.0)
        for node in ("a", "b") if is_counted else ():
            store.append({"__name__": "gateway_requests_total", "outcome": "finished", "node": node}, at, at / 5)

    impact = impact_of(make_incident(active_at=1000.0), store, 0, 2000)

    # From a minute before the first wrong answer to the known prompt until it is right again.
    count = 25 if is_counted else 60
    assert impact.maybe_wrong == {"a": count}
    assert f"up to {count} answers of a may be wrong" in impact_words(impact)
    page = render(PostmortemInput(INCIDENT, 2000.0, impact))
    assert f"| answers that may be wrong | a: {count} |" in page
    assert f"up to {count} answers of a may be wrong: tell those who got them" in page


def test_of_nodes_that_answer_right_nothing_is_said_of_wrong_answers() -> None:
    store = make_store(watched_before=True)
    store.append({"__name__": "llm:output_ok", "node": "a"}, 1000.0, 1.0)
    impact = impact_of(make_incident(active_at=1000.0), store, 0, 2000)
    assert impact.maybe_wrong is None
    assert "wrong" not in impact_words(impact)


@pytest.mark.parametrize("scope", [{}, {"pool": "chat"}], ids=["fleet", "one pool"])
def test_what_users_waited_at_the_gateway_is_held_to_the_promise_too(scope: dict[str, str]) -> None:
    store = SeriesStore()
    for at in range(900, 1060, 5):
        store.append({"__name__": "llm:ttft_seconds:p99", "node": "a", "pool": "chat"}, at, 0.2)
        store.append({"__name__": "llm:objective_ttft_seconds", "node": "a", "pool": "chat"}, at, 1.0)
        store.append({"__name__": "gateway_worker_deaths_total", "job": "llm-gateway"}, at, float(at >= 1000))
        for bound, share in (("0.5", 1.0 if at < 1000 else 0.0), ("4.0", 1.0), ("+Inf", 1.0)):
            counted = (at - 900) * share if bound != "0.5" else min(at, 1000) - 900
            store.append({"__name__": "gateway_ttft_seconds_bucket", "le": bound}, at, float(counted))

    impact = impact_of(INCIDENT.model_copy(update={"scope": scope}), store, 0, 2000)

    said = impact_words(impact)
    assert "ended once: who connected then waited at its door" in said
    if scope:  # the gateway does not say which pool it waited for
        assert impact.p99_at_gateway_worst_s is None
        assert "within the promised" in said
    else:
        assert impact.p99_at_gateway_worst_s == pytest.approx(3.96, abs=0.05)
        assert "beyond the promised 1.0 s (at the gateway)" in said


def test_nobody_is_said_to_have_waited_longer_than_since_it_began_beyond_what_they_waited_before() -> None:
    """Within a bucket of 40 to 80 s, 79 s were told of an incident 30 s old."""
    store = SeriesStore()
    for at in range(900, 1035, 5):
        store.append({"__name__": "llm:ttft_seconds:p99", "node": "a"}, at, 0.5 if at < 1005 else 79.0)
        for bound in ("1.0", "40.0", "80.0", "+Inf"):
            counted = min(at, 1000) if float(bound) < 80 else at
            store.append({"__name__": "gateway_ttft_seconds_bucket", "le": bound}, at, float(counted))
    impact = impact_of(make_incident(active_at=1000.0), store, 0, 2000)
    assert impact.p99_ttft_worst_s == impact.p99_ttft_after_s == 30 + 15 + 0.5
    assert impact.p99_at_gateway_worst_s == pytest.approx(3 * 20 + 1, abs=0.1), "of windows of 20 s"
    assert "/ about 46 s / about 46 s |" in render(PostmortemInput(INCIDENT, 2000.0, impact))


def test_of_a_wait_that_was_there_before_the_record_nobody_knows_how_long_it_can_be() -> None:
    store = SeriesStore()
    for at in (1000.0, 1005.0):
        store.append({"__name__": "llm:ttft_seconds:p99", "node": "a"}, at, 79.0)
    assert impact_of(make_incident(active_at=1000.0), store, 0, 2000).p99_ttft_worst_s == 79.0


def test_time_out_of_objective_is_a_length_of_time_and_not_the_minutes_that_it_touches() -> None:
    bad = [(at, 9.0 if 55 <= at < 67 else 0.1) for at in range(0, 200, 1)]
    assert slo_minutes([(float(at), value) for at, value in bad], 2.5, 0.0) == pytest.approx(12 / 60)
    two_nodes = [(0.0, 9.0), (0.0, 0.1), (30.0, 0.1), (30.0, 9.0), (60.0, 0.1), (60.0, 0.1)]
    assert slo_minutes(two_nodes, 2.5, 0.0) == pytest.approx(1.0)
    assert slo_minutes([(0.0, 9.0), (600.0, 0.1)], 2.5, 0.0) == pytest.approx(1.0), "nothing is known in between"
    assert slo_minutes([(0.0, 9.0)], 2.5, 10.0) is None
