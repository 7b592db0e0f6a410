"""Columns of what people make and end, and of what they are told: rollouts, silences, tokens, notifications."""

from __future__ import annotations

from fleetctl.cli.moment import ago, clock
from fleetctl.cli.output import Column
from fleetctl.wire.identity import TokenInfo
from fleetctl.wire.notification import Notification, Receiver
from fleetctl.wire.rollout import Rollout


def rollout_state(rollout: Rollout) -> str:
    """The state, with the share while there is one."""
    words = rollout.state.replace("_", " ")
    return words if rollout.is_ended or rollout.back_to else f"{words} at {rollout.share * 100:.3g}%"


def token_state(token: TokenInfo) -> str:
    """Whether it opens anything, or why not."""
    if token.is_valid:
        return "active"
    return "revoked" if token.revoked_at is not None else "expired"


def notification_state(one: Notification) -> str:
    """The state, with what it waits for."""
    if one.held_by:
        return f"{one.state.value} ({one.held_by.replace('_', ' ')})"
    return f"{one.state.value}, try {one.attempts + 1}" if one.next_at is not None and one.attempts else one.state.value


def receiver_state(one: Receiver) -> str:
    """Whether it takes what it is told."""
    if one.last_error:
        return "failing"
    return f"quiet until {clock(one.quiet_until)}" if one.quiet_until is not None else "ok"


ROLLOUT_COLUMNS = [
    Column("id", lambda r: r.id),
    Column("pool", lambda r: r.pool),
    Column("started", lambda r: ago(r.started_at), right=True, sort_key=lambda r: -r.started_at, is_volatile=True),
    Column("to", lambda r: r.to_revision),
    Column("result", rollout_state),
    Column("from", lambda r: r.from_revision, wide=True),
    Column("by", lambda r: r.started_by, wide=True),
    Column("why", lambda r: r.why, wide=True),
]

SILENCE_COLUMNS = [
    Column("id", lambda s: s.id),
    Column("state", lambda s: s.state),
    Column("matchers", lambda s: " ".join(f'{m.name}{m.op}"{m.value}"' for m in s.matchers)),
    Column("ends", lambda s: clock(s.ends_at)),
    Column("by", lambda s: s.created_by),
    Column("comment", lambda s: s.comment),
    Column("starts", lambda s: clock(s.starts_at), wide=True),
]

TOKEN_COLUMNS = [
    Column("name", lambda t: t.name),
    Column("role", lambda t: t.role.value),
    Column("state", lambda t: token_state(t)),
    Column("expires", lambda t: clock(t.expires_at) or "never", sort_key=lambda t: t.expires_at),
    Column("used", lambda t: "never" if t.last_used_at is None else ago(t.last_used_at), is_volatile=True),
    Column("id", lambda t: t.id, wide=True),
    Column("made", lambda t: clock(t.created_at), wide=True),
    Column("by", lambda t: t.created_by, wide=True),
    Column("revoked by", lambda t: t.revoked_by or "-", wide=True),
]

NOTIFICATION_COLUMNS = [
    Column("receiver", lambda n: n.receiver),
    Column(
        "age",
        lambda n: ago(n.created_at).removesuffix(" ago"),
        right=True,
        sort_key=lambda n: -n.created_at,
        is_volatile=True,
    ),
    Column("kind", lambda n: n.kind),
    Column("incident", lambda n: n.incident_id or "-"),
    Column("state", notification_state),
    Column("id", lambda n: n.id, wide=True),
    Column("tries", lambda n: str(n.attempts), right=True, wide=True),
    Column("in", lambda n: n.merged_into or "-", wide=True),
    Column("why", lambda n: n.why or "-", wide=True),
    Column("subject", lambda n: n.subject, wide=True),
]

RECEIVER_COLUMNS = [
    Column("name", lambda r: r.name),
    Column("kind", lambda r: r.kind),
    Column("state", receiver_state),
    Column("waiting", lambda r: str(r.waiting), right=True),
    Column("held", lambda r: str(r.held), right=True),
    Column("last took one", lambda r: "-" if r.delivered_at is None else ago(r.delivered_at), is_volatile=True),
    Column("routes", lambda r: " | ".join(r.routes) or "none", wide=True),
    Column("last error", lambda r: r.last_error or "-"),
]
