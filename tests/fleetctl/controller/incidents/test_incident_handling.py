"""What people say about an incident is kept with it, told, and heard by what acts by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from diagnostics.diagnosis import Diagnosis
from diagnostics.handling import Correction, Handling
from diagnostics.incident import FiredAlert, Incident, IncidentStatus, join, open_incident, reopen, resolve
from fleetctl.controller import tables
from fleetctl.controller.alertmanager.local_silences import list_silences
from fleetctl.controller.alertmanager.silence import Silenced, Silencing
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.database import Database, get_meta, put_meta
from fleetctl.controller.incidents.incident_handling import silence_matchers
from fleetctl.controller.incidents.incident_store import StoredIncident, get_incident, save_incident
from fleetctl.controller.incidents.pruning import ids_by_status, prune_files
from fleetctl.controller.incidents.views import incident_summary, incident_view, no_remedy
from fleetctl.controller.notifications.incident_notice import cause_words
from fleetctl.kit.errors import BadInputError, RefusedError
from fleetctl.wire.incident import AssignRequest, IncidentNote, IncidentSilenceRequest, VerdictRequest
from fleetctl.wire.timeline import TimelineEntry
from runbooks.run import RunStatus
from tests.fixtures.controller import make_config, make_provider, stop_all
from tests.fixtures.driven import DrivenClock
from tests.fixtures.runbooks import make_run

pytestmark = pytest.mark.anyio


def fired(name: str = "LLMNodeSlow", node: str = "node-2", severity: str = "ticket") -> FiredAlert:
    labels = {"alertname": name, "node": node, "pool": "chat", "severity": severity}
    return FiredAlert(f"{name}-{node}", name, severity, "firing", labels, active_at=90.0, fired_at=100.0)


def incident(at: float = 100.0, *alerts: FiredAlert) -> Incident:
    first, *others = alerts or (fired(),)
    found = open_incident(first, at)
    for one in others:
        found = join(found, one, at)
    return found


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    try:
        async with open_controller(
            make_config(tmp_path, nodes=0, start_nodes=False), make_provider(tmp_path), DrivenClock()
        ) as opened:
            yield opened
    finally:
        stop_all(tmp_path)


async def held(controller: Controller, found: Incident) -> Incident:
    await controller.book.store_incident(found)
    return found


async def told(controller: Controller, incident_id: str) -> list[tuple[str, str]]:
    return [(entry.kind, entry.text) for entry in await controller.timeline.read_all(incident_id)]


async def test_who_acknowledges_first_has_it_until_it_is_assigned(controller: Controller) -> None:
    found = await held(controller, incident())
    await controller.handling.acknowledge(found.id, IncidentNote(comment="on it"), "ann")
    again = await controller.handling.acknowledge(found.id, IncidentNote(), "bob")
    assert (again.handling.acknowledged_by, again.handling.assignee, again.handling.words) == ("ann", "ann", "ann")
    assigned = await controller.handling.assign(found.id, AssignRequest(to="cem"), "ann")
    assert assigned.handling.words == "cem"
    stored = await controller.database.read(lambda c: get_incident(c, found.id))
    assert stored is not None
    assert stored.incident.handling == assigned.handling
    assert await told(controller, found.id) == [
        ("incident.acknowledged", "ann has seen it: on it"),
        ("incident.acknowledged", "bob has seen it, as ann has before"),
        ("incident.assigned", "ann assigned it to cem"),
    ]


async def test_a_severity_set_by_a_person_stays_when_graver_alerts_join(controller: Controller) -> None:
    found = await held(controller, incident())
    changed = await controller.handling.set_severity(found.id, "sev1", IncidentNote(comment="checkout is down"), "ann")
    assert changed.severity == "critical"
    joined = join(changed, fired("LLMNodeDown", severity="page"), 120.0)
    assert joined.severity == "critical"
    lowered = await controller.handling.set_severity(found.id, "SEV-4", IncidentNote(), "ann")
    assert join(lowered, fired("LLMNodeDown", severity="page"), 130.0).severity == "ticket"
    with pytest.raises(BadInputError, match=r"SEV-1 \(critical\)"):
        await controller.handling.set_severity(found.id, "sev0", IncidentNote(), "ann")


async def test_a_silenced_incident_starts_nothing_without_an_alertmanager_until_the_silence_is_over(
    controller: Controller,
) -> None:
    found = await held(controller, incident())
    automation = controller.alertmanager.automation
    assert automation.may_propose(found)
    assert automation.may_open(fired())
    changed, silence = await controller.handling.silence(found.id, IncidentSilenceRequest(for_s=600), "ann")
    assert changed.handling.silenced_until == silence.ends_at == controller.clock.now() + 600
    assert not automation.may_propose(changed)
    assert not automation.may_diagnose(changed)
    assert not automation.may_open(fired())
    assert automation.may_open(fired(node="node-3"))
    (listed,) = await controller.alertmanager.silences.current()
    assert (listed.id, listed.state, listed.created_by) == (silence.id, "active", "ann")
    controller.clock.move(601)  # type: ignore[attr-defined]
    assert automation.may_open(fired())
    assert [one.state for one in await controller.alertmanager.silences.current()] == ["expired"]


async def test_a_local_silence_outlives_the_controller_and_is_ended_by_its_id(tmp_path: Path) -> None:
    config, clock = make_config(tmp_path, nodes=0, start_nodes=False), DrivenClock()
    async with open_controller(config, make_provider(tmp_path), clock) as first:
        found = await held(first, incident())
        _, silence = await first.handling.silence(found.id, IncidentSilenceRequest(for_s=600), "ann")
    async with open_controller(config, make_provider(tmp_path), clock) as second:
        assert not second.alertmanager.automation.may_open(fired())
        assert second.alertmanager.silences.state().active == 1
        await second.alertmanager.silences.expire(silence.id)
        assert second.alertmanager.automation.may_open(fired())
        with pytest.raises(BadInputError, match="over already"):
            await second.alertmanager.silences.expire(silence.id)


async def test_silencing_what_is_resolved_is_refused(controller: Controller) -> None:
    found = await held(controller, resolve(incident(), controller.clock.now()))
    with pytest.raises(RefusedError, match="resolved"):
        await controller.handling.silence(found.id, IncidentSilenceRequest(for_s=60), "ann")


def test_a_silence_covers_the_alerts_of_the_incident_where_they_are_and_no_others() -> None:
    matchers = silence_matchers(incident(100.0, fired(), fired("LLMNodeDown")))
    assert [(one.name, one.op, one.value) for one in matchers] == [
        ("alertname", "=~", "LLMNodeDown|LLMNodeSlow"),
        ("node", "=", "node-2"),
    ]


async def test_a_corrected_verdict_is_what_stands_is_not_judged_again_and_starts_nothing_unasked(
    controller: Controller,
) -> None:
    verdict = Diagnosis("latency", "overload", "too much work", "confirmed", at=controller.clock.now())
    found = await held(controller, replace(incident(controller.clock.now()), diagnosis=verdict))
    changed = await controller.handling.correct_verdict(
        found.id, VerdictRequest(cause="slow_node", comment="its fan stands"), "ann"
    )
    assert changed.diagnosis is not None
    assert (changed.diagnosis.cause, changed.diagnosis.confidence) == ("slow_node", "likely")
    correction = changed.handling.correction
    assert correction is not None
    assert (correction.was, correction.cause, correction.by) == ("overload", "slow_node", "ann")
    await controller.diagnosing.diagnose_incidents()
    kept = controller.book.get(found.id)
    assert kept is not None
    assert kept.diagnosis == changed.diagnosis
    kind, text = (await told(controller, found.id))[-1]
    assert kind == "diagnosis.corrected"
    assert "overload (confirmed) was wrong, it was slow_node: its fan stands" in text
    again = reopen(resolve(kept, 200.0), fired(), 210.0)
    assert (again.handling.correction, again.handling.assignee) == (None, "")


async def test_a_correction_needs_a_known_cause_or_a_word_what_it_was(controller: Controller) -> None:
    found = await held(controller, incident())
    with pytest.raises(BadInputError, match="slow_nod"):
        await controller.handling.correct_verdict(found.id, VerdictRequest(cause="slow_nod"), "ann")
    with pytest.raises(BadInputError, match="say what it was"):
        await controller.handling.correct_verdict(found.id, VerdictRequest(cause="none"), "ann")
    changed = await controller.handling.correct_verdict(
        found.id, VerdictRequest(cause="none", comment="a cable"), "ann"
    )
    assert changed.diagnosis is not None
    assert (changed.diagnosis.cause, changed.diagnosis.title) == (None, "no known cause, says ann: a cable")


async def test_an_incident_of_long_ago_takes_comments_and_one_that_is_not_there_does_not(
    controller: Controller,
) -> None:
    old = resolve(incident(), 300.0)
    await controller.database.write(lambda c: save_incident(c, old))
    assert controller.book.get(old.id) is None
    await controller.handling.comment(old.id, IncidentNote(comment="the vendor says: fan"), "ann")
    await controller.handling.correct_verdict(old.id, VerdictRequest(cause="slow_node"), "ann")
    assert [kind for kind, _ in await told(controller, old.id)] == ["incident.commented", "diagnosis.corrected"]
    stored = await controller.database.read(lambda c: get_incident(c, old.id))
    assert stored is not None
    assert stored.incident.status is IncidentStatus.RESOLVED
    assert incident_summary(stored).handling.correction is not None
    with pytest.raises(BadInputError, match="no incident inc-0"):
        await controller.handling.comment("inc-0", IncidentNote(comment="x"), "ann")


def test_the_clock_of_what_came_back_as_something_new_begins_with_it() -> None:
    """What came back half an hour after it had been mended was overdue before anybody had been told of it."""
    early = resolve(incident(100.0, fired(severity="critical")), 1500.0)
    late = replace(fired(severity="critical"), active_at=1990.0, fired_at=2000.0)
    assert incident_summary(StoredIncident(early)).due_at == 100.0 + 900.0
    again, on = reopen(early, late, 2000.0), reopen(early, late, 2000.0, goes_on=True)
    assert incident_summary(StoredIncident(again)).due_at == 2000.0 + 900.0
    assert incident_summary(StoredIncident(on)).due_at == 100.0 + 900.0


async def test_an_incident_without_a_remedy_says_what_to_do_by_hand(controller: Controller) -> None:
    content = controller.content.current
    untreated = next(one for one in content.causes.values() if one.no_page)
    named = replace(incident(), diagnosis=Diagnosis("latency", untreated.name, "t", "confirmed"))
    assert no_remedy(named, content, ()) == f"no runbook treats {untreated.name}. By hand: {untreated.no_page}"
    alert = next(iter(content.no_tree))
    unnamed = replace(incident(100.0, fired(alert)), diagnosis=Diagnosis("", None, "No tree explains it"))
    assert content.no_tree[alert] in no_remedy(unnamed, content, ())
    calm = replace(incident(), diagnosis=Diagnosis("latency", None, "Nothing is wrong: it warms up", "confirmed"))
    assert no_remedy(calm, content, ()) == "nothing is proposed: Nothing is wrong: it warms up"
    assert cause_words(calm) == "Nothing is wrong: it warms up", "and not that it is not known"
    failing = replace(fired("LLMReceiverFailing"), labels={"receiver": "night"})
    itself = replace(incident(100.0, failing), diagnosis=Diagnosis("", None, "it says itself what is wrong"))
    said = no_remedy(itself, content, ())
    assert said.startswith("LLMReceiverFailing says itself what is wrong. By hand: `fleetctl notify show night` says")
    assert "no cause" not in said
    assert cause_words(itself) == "it says itself what is wrong", "and not that it is not known"
    treated = replace(incident(), diagnosis=Diagnosis("latency", "slow_node", "t", "confirmed"))
    assert no_remedy(treated, content, ()) == ""
    awaits = "only its scrapes fail"
    awaiting = replace(incident(), diagnosis=Diagnosis("node", "node_down", "t", "confirmed", awaits=awaits))
    assert no_remedy(awaiting, content, ()) == f"nothing is proposed yet: {awaits}"


async def test_what_to_do_by_hand_stays_while_the_same_cause_is_named_more_surely(controller: Controller) -> None:
    def entry(seq: int, kind: str, text: str, **data: str) -> TimelineEntry:
        return TimelineEntry(seq=seq, at=100.0 + 10 * seq, kind=kind, text=text, data=data)

    content = controller.content.current
    confirmed = Diagnosis("capacity", "overload", "t", "confirmed", at=140.0, since=140.0)
    named = replace(incident(), diagnosis=confirmed)
    likely = entry(1, "diagnosis.named", "t", cause="overload", confidence="likely")
    refused = entry(2, "remediation.not_proposed", "shed-load: it would turn nobody away")
    surer = entry(4, "diagnosis.named", "t", cause="overload", confidence="confirmed")
    assert "turn nobody away" in no_remedy(named, content, (), [likely, refused, surer])

    other = entry(3, "diagnosis.replaced", "t", cause="slow_node", confidence="likely")
    assert no_remedy(named, content, (), [likely, refused, other, surer]) == "", "of a verdict before the last but one"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            RunStatus.FAILED,
            "replace-node failed (it did not help), and is not proposed again. By hand: fleetctl runbook",
        ),
        (
            RunStatus.EXPIRED,
            "replace-node expired (it did not help). By hand: fleetctl runbook run replace-node --incident "
            f"{incident().id} node=node-2 replacement=node-2b",
        ),
        (RunStatus.CANCELLED, "nothing is proposed: it would leave too few"),
        (RunStatus.SUCCEEDED, ""),
        (RunStatus.RUNNING, ""),
    ],
)
async def test_what_a_person_does_is_said_once_the_remedy_ended_in_vain(
    controller: Controller, status: RunStatus, said: str
) -> None:
    """ "being done: nothing yet" stood there for an hour after a remedy that failed."""
    named = replace(incident(), diagnosis=Diagnosis("node", "node_down", "t", "confirmed", at=100.0, since=100.0))
    run = make_run(status, error="it did not help")
    refused = TimelineEntry(seq=1, at=110.0, kind="remediation.not_proposed", text="it would leave too few")
    words = no_remedy(named, controller.content.current, [run], [refused])
    assert words.startswith(said)
    assert bool(words) == bool(said)


def test_an_alert_that_fires_is_shown_with_its_value_of_now_and_one_that_is_over_with_its_last() -> None:
    """A node's 88 ms of the first second stood there for an hour, beside 150 ms in the list of alerts."""
    over = replace(fired("LLMTTFTRegression"), state="resolved", value=0.4)
    stored = StoredIncident(incident(100.0, replace(fired(), value=0.088), over))
    values = {one.fingerprint: 0.15 for one in stored.incident.alerts}
    view = incident_view(stored, (), (), lambda _: Silencing(Silenced.NO), values=values)
    assert {one.name: one.value for one in view.alerts} == {"LLMNodeSlow": 0.15, "LLMTTFTRegression": 0.4}


async def test_where_no_cause_is_named_it_is_not_said_a_second_time(controller: Controller) -> None:
    unnamed = replace(incident(), diagnosis=Diagnosis("node", None, "No known cause fits what was measured"))
    words = no_remedy(unnamed, controller.content.current, ())
    assert words == "nothing is proposed: no cause is named, and it is asked again while this is open"


def test_state_of_before_there_were_words_and_silences_is_taken_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'controller.sqlite'}"
    before = incident()
    with Database(url).engine.begin() as connection:
        save_incident(connection, before)
        document = connection.execute(sa.select(tables.incidents.c.document)).scalar_one()
        del document["handling"]
        connection.execute(sa.update(tables.incidents).values(document=document))
        tables.silences.drop(connection)
        connection.exec_driver_sql("ALTER TABLE incidents DROP COLUMN imported")
        put_meta(connection, "schema_version", 10)
    with Database(url).engine.begin() as connection:
        stored = get_incident(connection, before.id)
        assert stored is not None
        assert (stored.incident, stored.imported) == (before, None)
        assert list_silences(connection) == ()
        assert get_meta(connection, "schema_version") == tables.SCHEMA_VERSION


def test_the_file_of_a_corrected_verdict_stays_when_others_go_for_room(tmp_path: Path) -> None:
    plain = resolve(incident(), 300.0)
    corrected = replace(
        resolve(incident(100.0, fired(node="node-3")), 300.0),
        handling=Handling(correction=Correction("slow_node", "ann", 300.0, was="overload")),
    )
    with Database(f"sqlite:///{tmp_path / 'controller.sqlite'}").engine.begin() as connection:
        for one in (plain, corrected):
            save_incident(connection, one)
        known = ids_by_status(connection)
    assert (known.keep, known.open, known.corrected) == ({plain.id, corrected.id}, set(), {corrected.id})
    for one in (plain, corrected):
        folder = tmp_path / "incidents" / one.id
        folder.mkdir(parents=True)
        (folder / "incident.blackbox.jsonl.gz").write_bytes(b"x" * 100)
    _, freed = prune_files(tmp_path / "incidents", known.keep, known.open | known.corrected, 0.0, 10)
    assert freed == [plain.id]
