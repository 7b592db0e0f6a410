"""Who was told of what, and how that went."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from fleetctl.wire.base import Body, Wire
from fleetctl.wire.identity import NO_CLAIM


class NotificationState(StrEnum):
    """Where a notification stands. The last four are ends."""

    WAITING = "waiting"  # is to be sent, or sent again
    HELD = "held"  # quiet hours, or too many at once: it comes in a digest
    DELIVERED = "delivered"  # the receiver took it
    FAILED = "failed"  # the receiver refused it, or did not take it for too long
    MERGED = "merged"  # what it says is in `merged_into`
    DROPPED = "dropped"  # it is not to be sent any more


class Notification(Wire):
    """One message to one receiver."""

    id: str  # the same for the same news to the same receiver
    receiver: str  # its name in the settings
    kind: str  # opened, update, acknowledged, resolved, escalated, digest, test
    state: NotificationState  # where it stands
    incident_id: str | None = None  # that it tells of
    subject: str  # its first line
    text: str  # all that is said
    thread: str  # what messages that belong together have in common
    created_at: float  # when it was written
    next_at: float | None = None  # the next attempt, or the end of being held
    ended_at: float | None = None  # when it came to its end
    attempts: int = 0  # begun ones
    held_by: str = ""  # quiet_hours, too_many
    why: str = ""  # what the receiver said, or why it was not told
    merged_into: str = ""  # id of the message that says it
    escalation: int = 0  # the how-manieth message because nobody acknowledged; 0: none


class Receiver(Wire):
    """Somebody who can be told, and how that goes."""

    name: str
    kind: str
    waiting: int  # messages that are to be sent
    held: int
    quiet_until: float | None = None  # it is left alone until then; None: it is not
    delivered_at: float | None = None  # when it last took one; None: not lately
    last_error: str = ""  # of the last attempt; empty: it was taken
    routes: list[str] = Field(default_factory=list)  # which incidents it is told of, in words


class ReceiverTest(Body):
    """Tell a receiver that this is a test."""

    by: str = Field(default=NO_CLAIM, min_length=1, max_length=200)
