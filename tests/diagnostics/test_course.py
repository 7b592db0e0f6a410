"""An incident is asked again when it should be, and one verdict stands: what is found again brings it up to date."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnostics.course import Course, Pace
from diagnostics.diagnosis import Diagnosis, Evidence
from diagnostics.handling import Correction
from diagnostics.incident import FiredAlert, Incident, clear, join, mitigate, open_incident, with_diagnosis
from diagnostics.splitting import SPLIT_AFTER_S
from diagnostics.standing import REPLACE_AFTER_S

NOW = 1_700_000_000.0
PACE = Pace(often_s=3.0, often_for_s=60.0, seldom_s=30.0)


def make_alert(name: str = "LLMNodeSlow", node: str = "node-1") -> FiredAlert:
    labels = {"node": node, "pool": "chat"}
    return FiredAlert(f"{name}-{node}", name, "page", "firing", labels, active_at=NOW - 10, fired_at=NOW)


def make_incident() -> Incident:
    return open_incident(make_alert(), NOW)


def found(cause: str | None, at: float, confidence: str = "confirmed", value: float = 3.0, **more: object) -> Diagnosis:
    evidence = (Evidence("slow", "Is it slow?", "yes", value=value),)
    title = f"{cause or 'Nobody knows'}, {value:.0f} times"
    return replace(Diagnosis("gray", cause, title, confidence, evidence, at=at), **more)  # type: ignore[arg-type]


def walked(course: Course, incident: Incident, diagnosis: Diagnosis) -> tuple[Incident, bool]:
    course.note_walk(incident, diagnosis.at)
    return course.consider(incident, diagnosis)


def stands(incident: Incident) -> Diagnosis:
    assert incident.diagnosis is not None
    return incident.diagnosis


# -- which verdict stands ---------------------------------------------------------------------------------------------


def test_an_hour_later_the_standing_verdict_has_the_numbers_of_now_and_is_no_news() -> None:
    course = Course(NOW)
    incident, is_news = walked(course, make_incident(), found("slow_node", NOW))
    assert is_news
    incident, is_news = walked(course, incident, found("slow_node", NOW + 3600, value=7.0))
    assert not is_news
    verdict = stands(incident)
    assert [one.value for one in verdict.evidence] == [7.0]
    assert verdict.title == "slow_node, 7 times"
    assert (verdict.at, verdict.looked_at, verdict.then_found) == (NOW + 3600, NOW + 3600, "")
    assert verdict.said_since == NOW  # it has been said since then, and its remedy waits no longer than that


def test_what_does_not_replace_it_is_told_beside_it_with_its_time() -> None:
    course = Course(NOW)
    incident, _ = walked(course, make_incident(), found("slow_node", NOW))
    incident, is_news = walked(course, incident, found("slow_node", NOW + 90, "likely", value=2.0))
    assert not is_news
    verdict = stands(incident)
    assert (verdict.cause, verdict.confidence) == ("slow_node", "confirmed")
    assert [one.value for one in verdict.evidence] == [3.0]  # of when it was confirmed
    assert (verdict.at, verdict.looked_at, verdict.then_found) == (NOW, NOW + 90, "slow_node (likely)")
    incident, _ = walked(course, incident, found(None, NOW + 120, "unknown"))
    assert stands(incident).then_found == "Nobody knows, 3 times"
    incident, is_news = walked(course, incident, found("slow_node", NOW + 150, value=4.0))
    assert not is_news
    assert (stands(incident).then_found, stands(incident).at, stands(incident).said_since) == ("", NOW + 150, NOW)


def test_a_confirmed_verdict_gives_way_only_to_what_is_confirmed_for_a_while() -> None:
    course = Course(NOW)
    incident, _ = walked(course, make_incident(), found("slow_node", NOW))
    incident, is_news = walked(course, incident, found("gpu_thermal", NOW + 30))
    assert (stands(incident).cause, stands(incident).then_found, is_news) == (
        "slow_node",
        "gpu_thermal (confirmed)",
        False,
    )
    incident, is_news = walked(course, incident, found("gpu_thermal", NOW + 30 + REPLACE_AFTER_S - 1))
    assert (stands(incident).cause, is_news) == ("slow_node", False)
    incident, is_news = walked(course, incident, found("gpu_thermal", NOW + 30 + REPLACE_AFTER_S))
    assert (stands(incident).cause, is_news) == ("gpu_thermal", True)
    assert stands(incident).said_since == NOW + 30 + REPLACE_AFTER_S
    assert (stands(incident).looked_at, stands(incident).then_found) == (None, "")


def test_a_rival_begins_anew_once_the_standing_verdict_was_found_between() -> None:
    course = Course(NOW)
    incident, _ = walked(course, make_incident(), found("slow_node", NOW))
    incident, _ = walked(course, incident, found("gpu_thermal", NOW + 30))
    incident, _ = walked(course, incident, found("slow_node", NOW + 35))
    incident, is_news = walked(course, incident, found("gpu_thermal", NOW + 30 + REPLACE_AFTER_S))
    assert (stands(incident).cause, is_news) == ("slow_node", False)


def test_a_surer_word_for_the_same_cause_is_news_at_once() -> None:
    course = Course(NOW)
    incident, _ = walked(course, make_incident(), found("slow_node", NOW, "likely"))
    incident, is_news = walked(course, incident, found("slow_node", NOW + 3))
    assert (stands(incident).confidence, is_news) == ("confirmed", True)


def test_what_explained_one_node_gives_way_at_once_when_the_incident_became_wider() -> None:
    course = Course(NOW)
    incident, _ = walked(course, make_incident(), found("slow_node", NOW))
    wider = replace(incident, scope={"pool": "chat"}, widened_at=NOW + 20)
    assert course.why_due(wider, NOW + 21, PACE) == "it became wider"
    wider, is_news = walked(course, wider, found("overload", NOW + 21, "likely"))
    assert (stands(wider).cause, is_news) == ("overload", True)
    wider, is_news = walked(course, wider, found("overload", NOW + 60, "likely"))
    assert (stands(wider).said_since, is_news) == (NOW + 21, False)


def test_what_was_said_of_a_node_gives_way_to_any_cause_once_the_node_was_taken_out_and_to_none() -> None:
    """A pool's incident said that node-2 is down, six minutes after it had been replaced."""
    course = Course(NOW)
    incident, _ = walked(course, make_incident(), found("node_down", NOW, its_node="node-2"))
    incident, _ = course.consider(incident, found(None, NOW + 30, "unknown"), is_gone=True)
    assert stands(incident).cause == "node_down", "an incident that ends takes its evidence with it"
    incident, is_news = course.consider(incident, found("seats_full", NOW + 60, "likely"), is_gone=True)
    assert (stands(incident).cause, is_news) == ("seats_full", True)


# -- when it is asked -------------------------------------------------------------------------------------------------


def test_an_incident_is_asked_about_when_it_is_met_and_when_an_alert_joins_it() -> None:
    incident = make_incident()
    course = Course.of(incident, NOW)
    assert course.why_due(incident, NOW, PACE) == "it was taken up"
    incident, _ = walked(course, incident, found("slow_node", NOW))
    assert course.why_due(incident, NOW + 1, PACE) == ""
    incident = join(incident, make_alert("LLMTTFTHurts"), NOW + 2)
    assert course.why_due(incident, NOW + 2, PACE) == "LLMTTFTHurts joined it"


@pytest.mark.parametrize(
    ("cause", "confidence", "due_after_s"),
    [("slow_node", "confirmed", 30.0), ("slow_node", "likely", 3.0), (None, "unknown", 3.0), (None, "confirmed", 3.0)],
)
def test_while_it_is_young_it_is_asked_often_until_a_cause_is_confirmed(
    cause: str | None, confidence: str, due_after_s: float
) -> None:
    course = Course(NOW)
    incident, _ = walked(course, make_incident(), found(cause, NOW, confidence))
    assert course.why_due(incident, NOW + due_after_s - 0.1, PACE) == ""
    assert course.why_due(incident, NOW + due_after_s, PACE) == "asked again while it is open"


def test_after_its_first_minute_it_is_asked_seldom_whatever_stands() -> None:
    course = Course(NOW)
    incident, _ = walked(course, make_incident(), found(None, NOW + 61, "unknown"))
    assert course.why_due(incident, NOW + 61 + 29, PACE) == ""
    assert course.why_due(incident, NOW + 61 + 30, PACE) == "asked again while it is open"


def test_a_rival_or_a_pair_of_causes_is_asked_about_often_again() -> None:
    course = Course(NOW)
    incident, _ = walked(course, make_incident(), found("slow_node", NOW))
    incident, _ = walked(course, incident, found("gpu_thermal", NOW + 90))
    assert course.why_due(incident, NOW + 93, PACE) == "asked again while it is open"
    incident, _ = walked(course, incident, found("slow_node", NOW + 120, also="overload"))
    assert course.why_due(incident, NOW + 123, PACE) == "asked again while it is open"
    incident, _ = walked(course, incident, found("slow_node", NOW + 121 + 2 * SPLIT_AFTER_S, also="overload"))
    assert course.why_due(incident, NOW + 125 + 2 * SPLIT_AFTER_S, PACE) == ""


@pytest.mark.parametrize("state", ["mitigating", "clear", "corrected"])
def test_nothing_is_asked_while_a_run_acts_its_alerts_rest_or_a_person_said_what_it_is(state: str) -> None:
    course = Course(NOW)
    incident, _ = walked(course, make_incident(), found("slow_node", NOW))
    match state:
        case "mitigating":
            incident = mitigate(incident)
        case "clear":
            incident = clear(incident, incident.alerts[0].fingerprint, NOW + 60)
        case _:
            correction = Correction("overload", "ann", NOW + 60)
            incident = replace(incident, handling=replace(incident.handling, correction=correction))
    assert course.why_due(incident, NOW + 3600, PACE) == ""


def test_a_controller_that_takes_up_a_confirmed_incident_asks_again_in_its_turn() -> None:
    confirmed = with_diagnosis(make_incident(), found("slow_node", NOW))
    assert Course.of(confirmed, NOW + 10).why_due(confirmed, NOW + 10, PACE) == ""
    likely = with_diagnosis(make_incident(), found("slow_node", NOW, "likely"))
    assert Course.of(likely, NOW + 10).why_due(likely, NOW + 10, PACE) == "it was taken up"


def test_a_confirmed_verdict_that_waits_for_a_second_witness_is_asked_again_soon() -> None:
    for awaits, is_due in (("only its scrapes fail", True), ("", False)):
        course = Course(NOW)
        incident, _ = walked(course, make_incident(), found("node_down", NOW, awaits=awaits))
        assert bool(course.why_due(incident, NOW + PACE.often_s + 1, PACE)) is is_due
