"""One message to one receiver, and how it gets to its one end. Pure.

WAITING -> DELIVERED | FAILED | MERGED | DROPPED
HELD    -> WAITING | MERGED | DROPPED
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fleetctl.controller.notifications.notice import Notice, NoticeKind
from fleetctl.settings.notifications import NotificationSettings

MAX_WHY_CHARS = 500


class NotificationState(StrEnum):
    """Where a notification stands; `TRANSITIONS` has the moves that are allowed."""

    WAITING = "waiting"  # is to be sent, or sent again, at `next_at`
    HELD = "held"  # quiet hours, or too many at once: part of a digest at `next_at`
    DELIVERED = "delivered"  # the receiver took it
    FAILED = "failed"  # the receiver refused it, or did not take it for too long
    MERGED = "merged"  # what it says is in `merged_into`
    DROPPED = "dropped"  # it is not to be sent any more: `why`

    @property
    def is_terminal(self) -> bool:
        """At its one end."""
        return not TRANSITIONS[self]


_S = NotificationState
TRANSITIONS: Mapping[NotificationState, frozenset[NotificationState]] = {
    _S.WAITING: frozenset({_S.DELIVERED, _S.FAILED, _S.MERGED, _S.DROPPED}),
    _S.HELD: frozenset({_S.WAITING, _S.MERGED, _S.DROPPED}),
    _S.DELIVERED: frozenset(),
    _S.FAILED: frozenset(),
    _S.MERGED: frozenset(),
    _S.DROPPED: frozenset(),
}


class HeldBy(StrEnum):
    """Why a notification is held back."""

    NOTHING = ""
    QUIET = "quiet_hours"
    MANY = "too_many"


@dataclass(frozen=True, slots=True)
class Notification:
    """Times are Unix seconds."""

    id: str
    receiver: str
    thread: str  # what those that belong together have in common: dedup_key, alias, first message
    notice: Notice
    created_at: float
    due_at: float  # since when it is to be sent
    next_at: float  # the next attempt, or the end of being held
    state: NotificationState = NotificationState.WAITING
    incident_id: str | None = None
    said: Mapping[str, str] = field(default_factory=dict)  # news by subject: what is told is not news again
    attempts: int = 0  # begun ones; stored before each, so that one more than were taken may have been sent
    ended_at: float | None = None
    why: str = ""
    held_by: HeldBy = HeldBy.NOTHING
    merged_into: str = ""
    reference: str = ""  # the receiver's name for it: Slack's `ts`
    escalation: int = 0  # the how-manieth of its incident; 0: none
    is_last_of_thread: bool = False  # a resolution after which nothing of its thread stands

    @property
    def kind(self) -> NoticeKind:
        """What it is for."""
        return self.notice.kind

    def moved(self, state: NotificationState, now: float, why: str = "", **changes: object) -> Notification:
        """In another state."""
        assert state in TRANSITIONS[self.state], f"{self.id}: {self.state} -> {state}"
        ended_at = now if state.is_terminal else None
        return replace(self, state=state, ended_at=ended_at, why=why[:MAX_WHY_CHARS], **changes)  # type: ignore[arg-type]

    def attempted(self, now: float, settings: NotificationSettings) -> Notification:
        """With one more attempt begun. What is stored before it is sent is sent again after a crash, at `next_at`."""
        pause_s = min(settings.retry_s * 2.0 ** min(self.attempts, 30), settings.max_retry_s)
        return replace(self, attempts=self.attempts + 1, next_at=now + pause_s)

    def not_taken(self, now: float, why: str, retry_after_s: float, settings: NotificationSettings) -> Notification:
        """After an attempt that may be repeated: it waits, or has failed where it has waited too long."""
        if now - self.due_at >= settings.give_up_after_s:
            return self.moved(NotificationState.FAILED, now, f"given up after {self.attempts} attempts: {why}")
        next_at = max(self.next_at, now + min(retry_after_s, settings.max_retry_s))
        return replace(self, why=why[:MAX_WHY_CHARS], next_at=next_at)


def notification_id(receiver: str, subject: str, what: str) -> str:
    """The same for the same news to the same receiver: written twice, it is one."""
    return "ntf-" + hashlib.sha256("\0".join((receiver, subject, what)).encode()).hexdigest()[:16]


def thread_name(incident_id: str, times_over: int) -> str:
    """The thread of an incident; one that came back after it was told as resolved begins a new one."""
    return f"{incident_id}.{times_over}" if times_over else incident_id


def told(rows: Iterable[Notification]) -> dict[str, str]:
    """What was said last of each subject; `rows` in the order in which they were made."""
    return {subject: value for row in rows for subject, value in row.said.items()}
