"""Tells people of incidents: what is to be said is stored, then sent, then its end is stored.

Killed at any point, the next controller finds what was not sent and sends it. One that was sent and not noted is sent
again under the same key, which all but webhooks of chats know as a repeat. Longer than others: both loops work on the
rows that they store for each other, and what is said and to whom is elsewhere (`plan.py`, `notice.py`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
import structlog

from diagnostics.incident import Incident
from diagnostics.severity import severity_rank
from fleetctl.controller.database import StorageLostError
from fleetctl.controller.notifications.courier import Courier
from fleetctl.controller.notifications.incident_notice import incident_notice
from fleetctl.controller.notifications.links import dashboard_link
from fleetctl.controller.notifications.news import RESOLVED
from fleetctl.controller.notifications.notice import Notice, NoticeKind
from fleetctl.controller.notifications.notification import Notification, NotificationState, notification_id
from fleetctl.controller.notifications.notification_store import (
    get_notification,
    list_notifications,
    save_notification,
    unfinished_notifications,
)
from fleetctl.controller.notifications.notification_view import notification_view
from fleetctl.controller.notifications.plan import Subject, plan_notifications
from fleetctl.controller.notifications.quiet_hours import quiet_until
from fleetctl.controller.notifications.receiver_words import Delivery
from fleetctl.controller.records import Records
from fleetctl.controller.timeline import insert_event
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.notifications import LinkSettings, NotificationSettings, ReceiverSettings
from fleetctl.wire.notification import Notification as WireNotification
from fleetctl.wire.notification import Receiver
from runbooks.ports import PermanentError, TemporaryError
from runbooks.run import Run

log = structlog.get_logger()

MAX_TRIED = 20  # messages to one receiver in one turn
MAX_IMPACTS = 5  # in one turn: each reads the series
IMPACT_FOR_S, IMPACT_WAIT_S = 5.0, 0.3
IMPACT_SHARE = 0.05  # of a core
MAX_KNOWN_IMPACTS = 100
TOO_MANY = "not looked at: too much happens at once"
_S = NotificationState


@dataclass(frozen=True, slots=True)
class _KnownImpact:
    """What users felt of one incident, and until when nobody looks again."""

    words: str
    until: float


class _Known(NamedTuple):
    """What is looked up for a message about one incident, in words."""

    impact: str
    by_hand: str


@dataclass(frozen=True, slots=True)
class IncidentSource:
    """What notifications ask of the parts that know incidents. All of them answer of now."""

    recent: Callable[[], Sequence[Incident]]  # open ones, and those that ended lately
    stored: Callable[[str], Awaitable[Incident | None]]  # also those that ended long ago
    runs_of: Callable[[str], Awaitable[tuple[Run, ...]]]
    places_of: Callable[[str], Mapping[str, str]]  # of a node
    impact: Callable[[Incident, tuple[Run, ...]], Awaitable[str]]  # in words
    by_hand: Callable[[Incident, tuple[Run, ...]], Awaitable[str]]  # "" where something can be proposed


class Notifications:
    """Owner of notifications: those that judgement needs are in memory, all of them in the database.

    Threading: belongs to one event loop.
    """

    def __init__(
        self,
        records: Records,
        settings: NotificationSettings,
        links: LinkSettings,
        base_url: str,
        courier: Courier,
        source: IncidentSource,
        rows: Iterable[Notification] = (),
    ) -> None:
        """`base_url`: where people reach this controller."""
        self._settings = settings
        self._links = links
        self._base_url = base_url
        self._courier = courier
        self._source = source
        self._database = records.database
        self._timeline = records.timeline
        self._clock = records.clock
        self._lease = records.lease
        self._metrics = records.metrics
        self._rows = {row.id: row for row in rows}
        self._in_flight: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by receiver
        self._unsaved: dict[str, Notification] = {}  # what a full disk did not take
        self._untold: list[dict[str, Any]] = []
        self._runs: dict[str, tuple[Run, ...]] = {}
        self._runs_changed = True
        self._gone: set[str] = set()
        self._failing: dict[str, str] = {}  # receiver to why
        self._delivered_at: dict[str, float] = {}
        self._impacts: dict[str, _KnownImpact] = {}  # by incident
        self._looking: dict[str, asyncio.Task[None]] = {}  # by incident
        records.timeline.listen(self._hear)
        for row in self._rows.values():
            self._note_outcome(row)

    @classmethod
    async def opened(
        cls,
        records: Records,
        settings: NotificationSettings,
        links: LinkSettings,
        base_url: str,
        courier: Courier,
        source: IncidentSource,
    ) -> Notifications:
        """With what the database has."""
        ids = [one.id for one in source.recent()]
        since = records.clock.now() - settings.window_s
        rows = await records.database.read(lambda c: unfinished_notifications(c, ids, since))
        return cls(records, settings, links, base_url, courier, source, rows)

    async def plan(self) -> None:
        """One turn: write down who is to be told what."""
        if not self._settings.receivers and not self._rows:
            return
        now = self._clock.now()
        lost = "the controller ended before it was known whether it was taken"
        self._put(
            [
                row.moved(_S.FAILED, now, lost)
                for row in self._rows.values()
                if row.kind is NoticeKind.TEST and row.state is _S.WAITING and row.id not in self._in_flight
            ]
        )
        subjects = await self._subjects()
        known = await self._known_of(self._to_be_told(subjects))
        now = self._clock.now()
        # No await within: what is sent meanwhile would be taken for not sent.
        compose = self._composer(known)
        self._put(plan_notifications(subjects, self._rows.values(), self._settings, now, compose, self._in_flight))
        await self._store()
        self._forget({one.incident.id for one in subjects}, now)

    async def send(self) -> None:
        """One turn: each receiver is told what is due, beside the others."""
        for name, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[name]
                task.result()  # that another controller leads ends this one
        now = self._clock.now()
        due: dict[str, list[Notification]] = {}
        blocked: set[tuple[str, str]] = set()  # what is new in a thread waits for what was before it
        for row in self._rows.values():
            if row.state is not _S.WAITING or row.kind is NoticeKind.TEST:
                continue
            key = (row.receiver, row.thread)
            if row.id not in self._in_flight and row.next_at <= now and key not in blocked:
                due.setdefault(row.receiver, []).append(row)
            blocked.add(key)
        for name, rows in due.items():
            receiver = self._settings.receiver(name)
            if receiver is not None and name not in self._tasks and self._may_speak():
                gravest_first = sorted(rows, key=lambda row: -severity_rank(row.notice.severity))[:MAX_TRIED]
                self._tasks[name] = asyncio.create_task(
                    self._tell(receiver, [row.id for row in gravest_first]), name=f"notify-{name}"
                )

    async def settle(self) -> None:
        """Wait until what is under way has ended."""
        while self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self.send()

    async def stop(self) -> None:
        """Let go of what is under way: it is sent again by whoever is next."""
        under_way = [*self._tasks.values(), *self._looking.values()]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def test(self, name: str, by: str) -> WireNotification:
        """Tell one receiver that this is a test, once and at once. Raises BadInputError: there is none of this name."""
        receiver = self.required(name)
        now = self._clock.now()
        notice = Notice(
            NoticeKind.TEST,
            f"a test of the receiver {name}, asked for by {by}: nothing is wrong",
            severity="ticket",
            news=("This is what a message looks like. There is nothing to do.",),
            show="fleetctl notify list",
        )
        made = notification_id(name, "test", secrets.token_hex(8))
        row = Notification(made, name, made, notice, now, now, now)
        self._in_flight.add(made)
        try:
            await self._commit([row.attempted(now, self._settings)])
            await self._attempt(receiver, made, may_repeat=False)
        finally:
            self._in_flight.discard(made)
        return notification_view(self._rows[made])

    def required(self, name: str) -> ReceiverSettings:
        """The receiver. Raises BadInputError."""
        receiver = self._settings.receiver(name)
        if receiver is None:
            known = ", ".join(one.name for one in self._settings.receivers) or "none"
            raise BadInputError(
                f"there is no receiver {name[:100]} in notifications.receivers; there are: {known}",
                remedy="fleetctl notify list",
            )
        return receiver

    async def listing(
        self, incident_id: str | None = None, limit: int = 200, before: str | None = None
    ) -> list[WireNotification]:
        """The newest, oldest first; `before`: only those before the one of this id."""
        rows = await self._database.read(lambda c: list_notifications(c, incident_id, limit, before))
        return [notification_view(self._rows.get(row.id, row)) for row in rows]

    async def one(self, notification_id: str) -> WireNotification | None:
        """One of them."""
        row = self._rows.get(notification_id)
        if row is None:
            row = await self._database.read(lambda c: get_notification(c, notification_id))
        return None if row is None else notification_view(row)

    def receivers(self) -> list[Receiver]:
        """Who can be told, and how that goes."""
        now = self._clock.now()
        return [self._receiver_view(one, now) for one in self._settings.receivers]

    def dashboard_of(self, incident: Incident) -> str:
        """A link to our dashboards of its place and time; "" without a Grafana."""
        since = incident.onset_at or incident.opened_at
        return dashboard_link(self._links, incident.scope, since, incident.resolved_at)

    async def impact_of(self, incident: Incident) -> str:
        """What users felt of an open incident so far, in words; "" of one that is over. The series are read for it: who
        asks over and over is told the same for a while, longer where reading takes long; who asks first, of a large
        fleet, is told nothing yet."""
        if incident.resolved_at is not None:
            return ""
        now = self._clock.now()
        known, looking = self._impacts.get(incident.id), self._looking.get(incident.id)
        if looking is None and (known is None or now >= known.until):
            looking = self._looking[incident.id] = asyncio.create_task(self._look(incident), name="impact")
            looking.add_done_callback(lambda done: self._looked(incident.id, done))
        if looking is not None and (known is None or now >= known.until):  # what was so a while ago is not told as now
            await asyncio.wait({looking}, timeout=IMPACT_WAIT_S)
            known = self._impacts.get(incident.id)
        return known.words if known is not None else ""

    def _looked(self, incident_id: str, done: asyncio.Task[None]) -> None:
        del self._looking[incident_id]
        if not done.cancelled() and (error := done.exception()) is not None:  # the next who asks has it looked at anew
            log.warning("impact.unread", incident_id=incident_id, error=repr(error))

    async def _look(self, incident: Incident) -> None:
        runs = await self._source.runs_of(incident.id)
        begun_s = time.thread_time()
        words = await self._source.impact(incident, runs)
        took_s = time.thread_time() - begun_s
        if len(self._impacts) >= MAX_KNOWN_IMPACTS:
            self._impacts.clear()
        until = self._clock.now() + max(IMPACT_FOR_S, took_s / IMPACT_SHARE)
        self._impacts[incident.id] = _KnownImpact(words, until)

    def _receiver_view(self, receiver: ReceiverSettings, now: float) -> Receiver:
        mine = [row for row in self._rows.values() if row.receiver == receiver.name]
        return Receiver(
            name=receiver.name,
            kind=receiver.kind.value,
            waiting=sum(row.state is _S.WAITING for row in mine),
            held=sum(row.state is _S.HELD for row in mine),
            quiet_until=quiet_until(receiver.quiet_hours, "ticket", now),
            delivered_at=self._delivered_at.get(receiver.name),
            last_error=self._failing.get(receiver.name, ""),
            routes=self._routes_to(receiver.name),
        )

    def _routes_to(self, name: str) -> list[str]:
        found = []
        for route in self._settings.routes_in_force:
            if name not in route.receivers and name not in route.escalation.to:
                continue
            words = [f"severity {route.severity} and graver"]
            words += [f"pools {', '.join(route.pools)}"] if route.pools else []
            words += [f"teams {', '.join(route.teams)}"] if route.teams else []
            if name not in route.receivers:
                words.append(f"when nobody acknowledges for {route.escalation.after_s:.0f} s")
            found.append("; ".join(words))
        return found

    def _may_speak(self) -> bool:
        """Not when this one was stopped and is about to learn that another one leads."""
        return self._lease.is_valid or bool(self._database.storage_error)

    def _hear(self, kind: str, at: float, node: str | None, data: Mapping[str, Any]) -> None:
        del at, node, data
        if kind.startswith(("run.", "step.")):
            self._runs_changed = True

    async def _subjects(self) -> list[Subject]:
        incidents = {one.id: one for one in self._source.recent()}
        untold = {row.incident_id for row in self._rows.values() if row.incident_id is not None} - incidents.keys()
        for incident_id in sorted(untold - self._told_over() - self._gone):
            stored = await self._source.stored(incident_id)
            if stored is None:  # removed for its age: nobody can say what became of it
                self._gone.add(incident_id)
            else:
                incidents[incident_id] = stored
        if self._runs_changed:
            self._runs_changed = False
            self._runs.clear()
        for gone in self._runs.keys() - incidents.keys():
            del self._runs[gone]
        for incident_id in incidents.keys() - self._runs.keys():
            self._runs[incident_id] = await self._source.runs_of(incident_id)
        return [self._subject(one) for one in incidents.values()]

    def _told_over(self) -> set[str]:
        """Incidents of which each receiver that was told of them knows that they are over."""
        last: dict[tuple[str, str], Notification] = {}
        for row in self._rows.values():
            if row.incident_id is not None:
                last[row.receiver, row.incident_id] = row
        open_ids = {key[1] for key, row in last.items() if RESOLVED not in row.said}
        return {key[1] for key in last} - open_ids

    def _subject(self, incident: Incident) -> Subject:
        labels = [incident.scope, *(alert.labels for alert in incident.alerts)]
        labels += [self._source.places_of(one["node"]) for one in labels if one.get("node")]
        return Subject(
            incident,
            self._runs.get(incident.id, ()),
            frozenset(one["pool"] for one in labels if one.get("pool")),
            frozenset(one["team"] for one in labels if one.get("team")),
        )

    def _to_be_told(self, subjects: Sequence[Subject]) -> list[Subject]:
        """Those about which a message would be written now, in that order: by the same judgement, kept nowhere."""
        found: dict[str, Subject] = {}

        def note(subject: Subject, kind: NoticeKind, news: tuple[str, ...]) -> Notice:
            found.setdefault(subject.incident.id, subject)
            return self._notice(subject, kind, news, _Known("", ""))

        now = self._clock.now()
        plan_notifications(subjects, self._rows.values(), self._settings, now, note, self._in_flight)
        return list(found.values())

    async def _known_of(self, subjects: Sequence[Subject]) -> dict[str, _Known]:
        """By incident, of the first few: series and timeline are read for each, while nothing is being planned."""
        return {
            one.incident.id: _Known(
                await self._source.impact(one.incident, one.runs), await self._source.by_hand(one.incident, one.runs)
            )
            for one in subjects[:MAX_IMPACTS]
        }

    def _composer(self, known: Mapping[str, _Known]) -> Callable[[Subject, NoticeKind, tuple[str, ...]], Notice]:
        def compose(subject: Subject, kind: NoticeKind, news: tuple[str, ...]) -> Notice:
            return self._notice(subject, kind, news, known.get(subject.incident.id, _Known(TOO_MANY, "")))

        return compose

    def _notice(self, subject: Subject, kind: NoticeKind, news: tuple[str, ...], known: _Known) -> Notice:
        return incident_notice(
            subject,
            kind,
            news,
            impact=known.impact,
            by_hand=known.by_hand,
            links=self._links,
            base_url=self._base_url,
        )

    async def _tell(self, receiver: ReceiverSettings, ids: Sequence[str]) -> None:
        for one in ids:
            row = self._rows.get(one)
            if row is None or row.state is not _S.WAITING or not self._may_speak():
                continue
            self._in_flight.add(one)
            try:
                await self._commit([row.attempted(self._clock.now(), self._settings)])
                await self._attempt(receiver, one)
            finally:
                self._in_flight.discard(one)

    async def _attempt(self, receiver: ReceiverSettings, row_id: str, *, may_repeat: bool = True) -> None:
        """Send what was stored as begun, and store how it went."""
        row = self._rows[row_id]
        try:
            taken = await self._courier.deliver(receiver, self._delivery(row))
        except (TemporaryError, BadInputError) as error:
            now = self._clock.now()
            why = error.message if isinstance(error, BadInputError) else str(error)
            self._note_failing(receiver.name, why)
            retry_after_s = getattr(error, "retry_after_s", 1.0)
            again = row.not_taken(now, why, retry_after_s, self._settings)
            await self._commit([again if may_repeat else row.moved(_S.FAILED, now, why)])
        except PermanentError as error:
            self._note_failing(receiver.name, str(error))
            await self._commit([row.moved(_S.FAILED, self._clock.now(), str(error))])
        else:
            await self._commit([row.moved(_S.DELIVERED, self._clock.now(), taken.words, reference=taken.reference)])

    def _delivery(self, row: Notification) -> Delivery:
        before = [
            one
            for one in self._rows.values()
            if one.receiver == row.receiver and one.thread == row.thread and one.state is _S.DELIVERED
        ]
        reference = next((one.reference for one in before if one.reference), "")
        return Delivery(row.notice, row.id, row.thread, bool(before), reference, row.is_last_of_thread)

    async def _commit(self, changed: Sequence[Notification]) -> None:
        """Hold them and store them, with what the timeline tells of their ends. A full disk keeps nobody from being
        called: what it did not take is stored with the next."""
        self._put(changed)
        await self._store()

    def _put(self, changed: Sequence[Notification]) -> None:
        for row in changed:
            self._rows[row.id] = row
            self._unsaved[row.id] = row
            if row.state.is_terminal:
                self._untold.append(self._entry(row))
                self._metrics.notifications.labels(receiver=row.receiver, outcome=row.state.value).inc()
                self._note_outcome(row)

    async def _store(self) -> None:
        if not self._unsaved:
            return
        rows, entries = list(self._unsaved.values()), self._untold
        self._untold = []

        def work(connection: sa.Connection) -> list[int]:
            for row in rows:
                save_notification(connection, row)
            return [insert_event(connection, entry) for entry in entries]

        try:
            seqs = await self._database.write(work)
        except StorageLostError:  # told by the database
            self._untold = [*entries, *self._untold]
            return
        for row in rows:
            if self._unsaved.get(row.id) is row:
                del self._unsaved[row.id]
        for seq, entry in zip(seqs, entries, strict=True):
            await self._timeline.announce(seq, entry)

    def _entry(self, row: Notification) -> dict[str, Any]:
        words = {
            _S.DELIVERED: _delivered_words(row),
            _S.FAILED: f"{row.receiver} could not be told: {row.why}",
            _S.MERGED: f"{row.receiver} is told by {row.merged_into}: {row.why}",
            _S.DROPPED: f"{row.receiver} is not told: {row.why}",
        }[row.state]
        data = {
            "notification": row.id,
            "receiver": row.receiver,
            "kind": row.kind.value,
            "attempts": row.attempts,
            "thread": row.thread,
        }
        return self._timeline.entry(f"notification.{row.state.value}", words, incident_id=row.incident_id, data=data)

    def _note_outcome(self, row: Notification) -> None:
        if row.state is _S.DELIVERED:
            self._delivered_at[row.receiver] = row.ended_at or row.created_at
            self._failing.pop(row.receiver, None)
            self._metrics.receiver_failing.labels(receiver=row.receiver).set(0)
        elif row.state is _S.FAILED and row.receiver not in self._failing:
            self._note_failing(row.receiver, row.why)

    def _note_failing(self, receiver: str, why: str) -> None:
        if receiver not in self._failing:
            log.error("receiver.failing", receiver=receiver, why=why, remedy=f"fleetctl notify test {receiver}")
        self._failing[receiver] = why
        if self._routes_to(receiver):  # who is told of nothing but tests is missed by nobody: no page for that
            self._metrics.receiver_failing.labels(receiver=receiver).set(1)

    def _forget(self, subject_ids: set[str], now: float) -> None:
        """Let go of what no judgement needs any more; it stays in the database."""
        since = now - self._settings.window_s
        over = self._told_over() | self._gone
        for row in list(self._rows.values()):
            is_needed = (
                not row.state.is_terminal
                or row.due_at > since
                or row.id in self._unsaved
                or row.id in self._in_flight
                or (row.incident_id is not None and (row.incident_id in subject_ids or row.incident_id not in over))
            )
            if not is_needed and not self._names_thread(row):
                del self._rows[row.id]

    def _names_thread(self, row: Notification) -> bool:
        """Whether others of its thread still need its name there."""
        return row.incident_id is None and any(
            one.thread == row.thread and one.id != row.id for one in self._rows.values()
        )


def _delivered_words(row: Notification) -> str:
    """What was told, as the timeline of all incidents has it."""
    if row.kind is NoticeKind.TEST:
        return f"{row.receiver} took a test"
    news = row.notice.news
    # Why somebody is called stands first, what is newest last.
    said = (news[0] if row.kind is NoticeKind.ESCALATED else news[-1]) if news else row.notice.subject
    return (
        f"{row.receiver} was told of {row.incident_id}: {said}"
        if row.incident_id
        else f"{row.receiver} was told: {said}"
    )
