"""Columns of what people make and end: rollouts, silences, tokens."""

from __future__ import annotations

from fleetctl.cli.moment import ago, clock
from fleetctl.cli.output import Column
from fleetctl.wire import Rollout, TokenInfo


def rollout_state(rollout: Rollout) -> str:
    """The state, with the share while there is one."""
    words = rollout.state.replace("_", " ")
    return words if rollout.is_ended or rollout.back_to else f"{words} at {rollout.share * 100:.3g}%"


def token_state(token: TokenInfo) -> str:
    """Whether it opens anything, or why not."""
    if token.is_valid:
        return "active"
    return "revoked" if token.revoked_at is not None else "expired"


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
