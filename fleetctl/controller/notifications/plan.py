"""Who is to be told what now, given what they were told before: the judgement behind notifications. Pure.

Level, not edge: what is said follows from incidents as they are, so that a crash at any point loses nothing. A message
that was not sent yet goes into the next one of its thread, which says all that is true by then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from diagnostics.incident import Incident, IncidentStatus
from diagnostics.severity import severity_rank
from fleetctl.controller.notifications.news import ACKNOWLEDGED, RESOLVED, SEVERITY, news_of, values_of
from fleetctl.controller.notifications.notice import Notice, NoticeKind
from fleetctl.controller.notifications.notification import (
    HeldBy,
    Notification,
    NotificationState,
    notification_id,
    thread_name,
    told,
)
from fleetctl.controller.notifications.quiet_hours import quiet_until
from fleetctl.settings.notifications import NotificationRoute, NotificationSettings, ReceiverSettings
from runbooks.run import Run

_S = NotificationState
OVER = "it was over before it was told"
OTHERS_STAND = "its alert is that of a digest, which ends with the last of its incidents"


@dataclass(frozen=True, slots=True)
class Subject:
    """An incident with its runs, and what routes ask of it."""

    incident: Incident
    runs: tuple[Run, ...] = ()
    pools: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()

    @property
    def is_over(self) -> bool:
        """Whether it is resolved."""
        return self.incident.status is IncidentStatus.RESOLVED


Compose = Callable[[Subject, NoticeKind, tuple[str, ...]], Notice]
"""Makes the message about an incident, with what is new first."""


def plan_notifications(
    subjects: Sequence[Subject],
    rows: Iterable[Notification],
    settings: NotificationSettings,
    now: float,
    compose: Compose,
    in_flight: Collection[str] = (),
) -> list[Notification]:
    """New notifications and changed ones, in the order in which they are to be stored.

    `rows`: what is known, in the order in which it was made; `in_flight`: those that are being sent at this moment.
    """
    planner = _Planner(subjects, rows, settings, now, compose, in_flight)
    for row in planner.rows():
        if settings.receiver(row.receiver) is None and not row.state.is_terminal and row.id not in in_flight:
            planner.put(row.moved(_S.DROPPED, now, "the settings have no such receiver any more"))
    gravest_first = sorted(
        subjects, key=lambda one: (-severity_rank(one.incident.severity), one.incident.opened_at, one.incident.id)
    )
    for subject in gravest_first:
        planner.tell(subject)
        planner.escalate(subject)
    for receiver in settings.receivers:
        planner.release_held(receiver)
    return planner.changed()


def routes_of(subject: Subject, settings: NotificationSettings) -> list[NotificationRoute]:
    """The routes that decide: the first that fits, and those after it as long as they say `more`."""
    found: list[NotificationRoute] = []
    for route in settings.routes_in_force:
        if _fits(route, subject):
            found.append(route)
            if not route.more:
                break
    return found


def _fits(route: NotificationRoute, subject: Subject) -> bool:
    return (
        severity_rank(subject.incident.severity) >= severity_rank(route.severity)
        and (not route.pools or not subject.pools.isdisjoint(route.pools))
        and (not route.teams or not subject.teams.isdisjoint(route.teams))
    )


def is_muted(subject: Subject, now: float) -> bool:
    """Whether a person silenced it: nobody is told until that is over."""
    until = subject.incident.handling.silenced_until
    return until is not None and until > now


class _Planner:
    """One look. Rows are changed in memory alone."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        rows: Iterable[Notification],
        settings: NotificationSettings,
        now: float,
        compose: Compose,
        in_flight: Collection[str],
    ) -> None:
        self._subjects = {one.incident.id: one for one in subjects}
        self._settings = settings
        self._now = now
        self._keeps_state = {one.name: one.kind.keeps_state for one in settings.receivers}
        self._rows: dict[str, Notification] = {}
        # Kept with each change: in a storm of a thousand incidents nobody may look at all rows for each.
        self._of: dict[tuple[str, str], list[str]] = {}  # by receiver and incident, the ids in order
        self._standing: dict[tuple[str, str], set[str]] = {}  # by receiver and thread: not told as resolved yet
        self._num_sent: dict[str, int] = {}  # to a receiver, within the window
        self._held: dict[str, dict[str, float]] = {}  # of a receiver: ids that are held, and until when
        for row in rows:
            self._note(row)
        self._compose = compose
        self._in_flight = in_flight
        self._changed: dict[str, None] = {}

    def rows(self) -> list[Notification]:
        return list(self._rows.values())

    def changed(self) -> list[Notification]:
        return [self._rows[key] for key in self._changed]

    def put(self, row: Notification) -> None:
        self._note(row)
        self._changed[row.id] = None

    def _note(self, row: Notification) -> None:
        before = self._rows.get(row.id)
        if row.incident_id is not None and before is None:
            self._of.setdefault((row.receiver, row.incident_id), []).append(row.id)
        if row.incident_id is not None and (before is None or before.thread != row.thread or before.said != row.said):
            standing = self._standing.setdefault((row.receiver, row.thread), set())
            if RESOLVED in row.said:
                standing.discard(row.incident_id)
            else:
                standing.add(row.incident_id)
        more = self._counts(row) - (before is not None and self._counts(before))
        self._num_sent[row.receiver] = self._num_sent.get(row.receiver, 0) + more
        held = self._held.setdefault(row.receiver, {})
        held.pop(row.id, None)
        if row.state is _S.HELD:
            held[row.id] = row.next_at
        self._rows[row.id] = row

    def _counts(self, row: Notification) -> bool:
        """Whether it is one of those that may come within a window."""
        return (
            row.due_at > self._now - self._settings.window_s
            and row.state in (_S.WAITING, _S.DELIVERED, _S.FAILED)
            and (row.kind.calls or not self._keeps_state.get(row.receiver, False))
        )

    def _mine(self, receiver: str, incident_id: str) -> tuple[list[Notification], int]:
        """What the receiver was told since the incident was last told as resolved, and how often it was."""
        every = [self._rows[key] for key in self._of.get((receiver, incident_id), ())]
        ends = [index for index, row in enumerate(every) if RESOLVED in row.said]
        return every[ends[-1] + 1 if ends else 0 :], len(ends)

    def tell(self, subject: Subject) -> None:
        """Tell those whom routes name, and those who were told of it before. That one is over is told in silence too:
        nothing stays open at a pager."""
        if is_muted(subject, self._now) and not subject.is_over:
            return
        routed = {name for route in routes_of(subject, self._settings) for name in route.receivers}
        for receiver in self._settings.receivers:
            mine, times_over = self._mine(receiver.name, subject.incident.id)
            if mine or (receiver.name in routed and self._may_begin(subject)):
                self._tell_one(subject, receiver, mine, times_over)

    def _may_begin(self, subject: Subject) -> bool:
        """Whether somebody who knows nothing of it is to be told: not of what is over, or explained by a wider one, and
        not before there was time to find the cause."""
        incident = subject.incident
        wider = self._subjects.get(incident.part_of or "")
        if subject.is_over or (wider is not None and not wider.is_over):
            return False
        if incident.diagnosis is not None and incident.diagnosis.cause is not None:
            return True
        fired = [one.fired_at for one in incident.alerts if one.state != "resolved" and one.fired_at is not None]
        began = min(fired, default=incident.opened_at) if incident.reopened else incident.opened_at
        return self._now - began >= self._settings.wait_for_cause_s

    def _tell_one(
        self, subject: Subject, receiver: ReceiverSettings, mine: list[Notification], times_over: int
    ) -> None:
        incident = subject.incident
        if not news_of(incident, subject.runs, told(mine)):
            return
        pending = [row for row in mine if not row.state.is_terminal and row.id not in self._in_flight]
        own = {row.id for row in mine}
        # What was merged into a later one of its own is said by that; what has failed nobody was told.
        out = [
            row
            for row in mine
            if row.id in self._in_flight
            or row.state is _S.DELIVERED
            or (row.state is _S.MERGED and row.merged_into not in own)
        ]
        if subject.is_over and receiver.kind.keeps_state and not out and not any(row.attempts for row in mine):
            for row in pending:  # its page would open what nobody closes
                said = {**row.said, RESOLVED: str(incident.reopened)}
                self.put(row.moved(_S.DROPPED, self._now, OVER, said=said))
            return
        news = news_of(incident, subject.runs, told(out))
        said = values_of(incident, subject.runs)
        has_own_alert = not mine or mine[-1].thread == thread_name(incident.id, times_over)
        is_graver = any(one.subject == SEVERITY for one in news)
        if receiver.kind.keeps_state and not (has_own_alert or subject.is_over or is_graver):
            return  # a hundred incidents have one alert there: that is no place for what is new about each
        if subject.is_over:
            kind = NoticeKind.RESOLVED
        elif any(row.kind is NoticeKind.ESCALATED for row in pending):
            kind = NoticeKind.ESCALATED
        elif not out:
            kind = NoticeKind.OPENED
        else:
            is_seen = any(one.subject == ACKNOWLEDGED for one in news)
            kind = NoticeKind.ACKNOWLEDGED if is_seen else NoticeKind.UPDATE
        self._write(subject, receiver, kind, tuple(one.text for one in news), said, mine, times_over, pending)

    def _write(
        self,
        subject: Subject,
        receiver: ReceiverSettings,
        kind: NoticeKind,
        texts: tuple[str, ...],
        said: dict[str, str],
        mine: list[Notification],
        times_over: int,
        pending: Sequence[Notification],
        escalation: int = 0,
    ) -> None:
        incident_id = subject.incident.id
        thread = mine[-1].thread if mine else thread_name(incident_id, times_over)
        made = Notification(
            id=notification_id(receiver.name, thread_name(incident_id, times_over), str(len(mine))),
            receiver=receiver.name,
            thread=thread,
            notice=self._compose(subject, kind, texts),
            created_at=self._now,
            due_at=self._now,
            next_at=self._now,
            incident_id=incident_id,
            said=said,
            escalation=escalation,
            is_last_of_thread=subject.is_over
            and not self._standing.get((receiver.name, thread), set()) - {incident_id},
        )
        for row in pending:
            self.put(row.moved(_S.MERGED, self._now, "a later one says it", merged_into=made.id))
        if receiver.kind.keeps_state and subject.is_over and not made.is_last_of_thread:
            self.put(made.moved(_S.DROPPED, self._now, OTHERS_STAND))
        else:
            self.put(self._held_back(made, receiver, subject.incident.severity))

    def _held_back(self, made: Notification, receiver: ReceiverSettings, severity: str) -> Notification:
        """The notification, held where the receiver is to be left alone or gets too many."""
        if receiver.kind.keeps_state and not made.kind.calls:
            return made
        until = quiet_until(receiver.quiet_hours, severity, self._now)
        if until is not None:
            return replace(made, state=_S.HELD, held_by=HeldBy.QUIET, due_at=until, next_at=until)
        at = next(
            (at for key, at in self._held.get(receiver.name, {}).items() if self._rows[key].held_by is HeldBy.MANY),
            None,
        )
        if at is None and self._num_sent.get(receiver.name, 0) < self._settings.max_messages:
            return made
        if at is None:
            at = self._now + self._settings.window_s
        return replace(made, state=_S.HELD, held_by=HeldBy.MANY, due_at=at, next_at=at)

    def escalate(self, subject: Subject) -> None:
        """Tell the next of the chain, where nobody acknowledged the incident in time."""
        incident = subject.incident
        if subject.is_over or incident.handling.acknowledged_at is not None or is_muted(subject, self._now):
            return
        routes = routes_of(subject, self._settings)
        escalation = next((route.escalation for route in routes if route.escalation.limit), None)
        if escalation is None:
            return
        rows = [row for one in self._settings.receivers for row in self._mine(one.name, incident.id)[0]]
        due = [row.due_at for row in rows if row.state not in (_S.HELD, _S.DROPPED) and row.due_at <= self._now]
        if not due:
            return  # nobody knows of it
        done = max(row.escalation for row in rows)
        last = max([min(due), *(row.created_at for row in rows if row.escalation)])
        if done >= escalation.limit or self._now - last < escalation.after_s:
            return
        receiver = self._settings.receiver(escalation.to[done % len(escalation.to)])
        assert receiver is not None  # the settings were checked
        mine, times_over = self._mine(receiver.name, incident.id)
        pending = [row for row in mine if not row.state.is_terminal and row.id not in self._in_flight]
        news = news_of(incident, subject.runs, {})
        why = f"nobody has acknowledged it for {(self._now - min(due)) / 60:.0f} min; {self._told_words(rows)}"
        texts = (why, *(one.text for one in news))
        said = values_of(incident, subject.runs)
        self._write(subject, receiver, NoticeKind.ESCALATED, texts, said, mine, times_over, pending, done + 1)

    def _told_words(self, rows: Sequence[Notification]) -> str:
        """Whom a message reached, and whom none did yet: the next in the chain may be the first to hear of it."""
        names = dict.fromkeys(row.receiver for row in rows)
        reached = {row.receiver for row in rows if self._is_delivered(row)}
        told = [name for name in names if name in reached]
        asleep = {row.receiver for row in rows if row.state is _S.HELD and row.held_by is HeldBy.QUIET} - reached
        missed = [name for name in names if name not in reached | asleep]
        words = [f"told: {', '.join(told) or 'nobody'}"]
        words += [f"held back in quiet hours: {', '.join(sorted(asleep))}"] if asleep else []
        words += [f"not reached: {', '.join(missed)}"] if missed else []
        return "; ".join(words)

    def _is_delivered(self, row: Notification) -> bool:
        into = self._rows.get(row.merged_into)
        return row.state is _S.DELIVERED or (into is not None and self._is_delivered(into))

    def release_held(self, receiver: ReceiverSettings) -> None:
        """What was held back and need not be any more is sent: one as it is, several as one digest."""
        held = [self._rows[key] for key in self._held.get(receiver.name, {})]
        if not any(row.next_at <= self._now for row in held):
            return
        ready: list[Notification] = []
        for row in held:
            until = quiet_until(receiver.quiet_hours, row.notice.severity, self._now)
            if until is None:
                ready.append(row)
            elif row.next_at <= self._now:
                self.put(replace(row, held_by=HeldBy.QUIET, due_at=until, next_at=until))
        if len(ready) == 1:
            row = ready[0]
            self.put(row.moved(_S.WAITING, self._now, due_at=self._now, next_at=self._now, held_by=HeldBy.NOTHING))
        elif ready:
            self._digest(receiver, ready)

    def _digest(self, receiver: ReceiverSettings, ready: Sequence[Notification]) -> None:
        made_id = notification_id(receiver.name, "digest", ",".join(row.id for row in ready))
        worst = max(ready, key=lambda row: severity_rank(row.notice.severity)).notice
        why = "in quiet hours" if any(row.held_by is HeldBy.QUIET for row in ready) else "at once"
        incidents = len({row.incident_id for row in ready})
        notice = Notice(
            NoticeKind.DIGEST,
            f"{incidents} incidents {why}, e.g. {worst.headline}",
            severity=worst.severity,
            sev=worst.sev,
            lines=tuple(line_of(row) for row in sorted(ready, key=lambda row: -severity_rank(row.notice.severity))),
            show="fleetctl incident list",
        )
        begun = {
            one.thread
            for one in self._rows.values()
            if one.receiver == receiver.name and one.state in (_S.DELIVERED, _S.WAITING)
        }
        for row in ready:
            thread = row.thread if row.thread in begun else made_id
            merged = row.moved(_S.MERGED, self._now, "part of a digest", merged_into=made_id, due_at=self._now)
            self.put(replace(merged, thread=thread))
        self.put(
            Notification(
                id=made_id,
                receiver=receiver.name,
                thread=made_id,
                notice=notice,
                created_at=self._now,
                due_at=self._now,
                next_at=self._now,
            )
        )


def line_of(row: Notification) -> str:
    """One line of a digest."""
    notice = row.notice
    cause = f"; cause: {notice.cause}" if notice.cause else ""
    over = "; resolved" if notice.kind is NoticeKind.RESOLVED else ""
    return f"{notice.sev} {notice.headline}{cause}{over}: {notice.show}".strip()
