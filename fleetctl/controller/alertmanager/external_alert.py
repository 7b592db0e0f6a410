"""An alert that Alertmanager told us of, and what a notice changes about it. Pure: the time comes in.

Notices arrive at least once, in any grouping, from several peers, and late. So an alert is known by its label
set alone (by the fingerprint of that), each notice by (groupKey, fingerprint, startsAt, status), and what counts is the
newest episode:

- firing:   a new start is a new episode. The same start again is a repeat. After its end it is a late copy for
            `LATE_COPY_S`, and after that the alert fires again: Alertmanager ends an alert that Prometheus could not
            renew, and Prometheus then sends it again with its old start.
- resolved: ends the episode that began before its end. One for an older episode changes nothing.
- An alert that is not in a notification is not resolved: it may be truncated, silenced or in another group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleetctl.controller.alertmanager.webhook_payload import NS, Notice

LATE_COPY_S = 120.0  # peers of a cluster wait 15 s each for one another


@dataclass(frozen=True, slots=True)
class ExternalAlert:
    """Labels are those in Alertmanager. `*_ns` are Alertmanager's clock, `*_at` ours, in Unix seconds."""

    fingerprint: str
    is_firing: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    starts_ns: int | None = None
    ends_ns: int | None = None  # of the last episode that is over
    generator_url: str = ""
    alertmanager: str = ""
    received_at: float = 0.0  # when this episode became known here
    heard_at: float = 0.0  # the last notice, repeats too
    resolved_at: float | None = None  # when we learned of the end
    was_firing: bool = False  # we saw it fire; false for one that arrived only as resolved
    is_echo: bool = False  # one of our own alerts, come back
    is_listed: bool = False  # one of our Alertmanagers has listed it: that it no longer does means something
    is_again: bool = False  # fires again with the start of an episode that was over
    revision: int = 0

    @property
    def began_at(self) -> float:
        """When this episode began, by Alertmanager's word where that tells it from the one before."""
        if self.starts_ns is None or self.is_again:
            return self.received_at
        return min(self.starts_ns / NS, self.received_at)


def notice_key(group_key: str, notice: Notice) -> str:
    """One notice however often it is sent: SHA-256 of (groupKey, fingerprint, startsAt, status)."""
    status = "firing" if notice.is_firing else "resolved"
    parts = (group_key, notice.fingerprint, str(notice.starts_ns), status)
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()


def apply_notice(
    before: ExternalAlert | None, notice: Notice, now: float, *, alertmanager: str = "", is_echo: bool = False
) -> ExternalAlert:
    """The alert after the notice; `before` itself when it changes nothing worth storing but the time it was heard."""
    if before is None:
        return _begun(notice, now, alertmanager, is_echo, revision=1)
    if notice.is_firing:
        if before.is_firing and not _is_newer(notice, before):
            return replace(before, heard_at=now)
        if not before.is_firing and _is_late_copy(notice, before, now):
            return before
        again = not _is_newer(notice, before)
        return replace(_begun(notice, now, alertmanager, is_echo, revision=before.revision + 1), is_again=again)
    if not before.is_firing or _is_of_older_episode(notice, before):
        return replace(before, heard_at=now) if not before.is_firing else before
    return replace(
        before,
        is_firing=False,
        ends_ns=notice.ends_ns,
        annotations=notice.annotations or before.annotations,
        heard_at=now,
        resolved_at=now,
        revision=before.revision + 1,
    )


def ended(alert: ExternalAlert, now: float) -> ExternalAlert:
    """The alert after Alertmanager has forgotten it without telling us of its end."""
    return replace(alert, is_firing=False, heard_at=now, resolved_at=now, revision=alert.revision + 1)


def _begun(notice: Notice, now: float, alertmanager: str, is_echo: bool, revision: int) -> ExternalAlert:
    return ExternalAlert(
        fingerprint=notice.fingerprint,
        is_firing=notice.is_firing,
        labels=notice.labels,
        annotations=notice.annotations,
        starts_ns=notice.starts_ns,
        ends_ns=notice.ends_ns,
        generator_url=notice.generator_url,
        alertmanager=alertmanager,
        received_at=now,
        heard_at=now,
        resolved_at=None if notice.is_firing else now,
        was_firing=notice.is_firing,
        is_echo=is_echo,
        revision=revision,
    )


def _is_newer(notice: Notice, before: ExternalAlert) -> bool:
    if notice.starts_ns is None or before.starts_ns is None:
        return False
    return notice.starts_ns > before.starts_ns


def _is_late_copy(notice: Notice, before: ExternalAlert, now: float) -> bool:
    """Whether a firing notice tells of an episode whose end we know."""
    if before.resolved_at is not None and now - before.resolved_at > LATE_COPY_S:
        return False
    if notice.starts_ns is None:
        return True
    if before.starts_ns is not None and notice.starts_ns <= before.starts_ns:
        return True
    return before.ends_ns is not None and notice.starts_ns < before.ends_ns


def _is_of_older_episode(notice: Notice, before: ExternalAlert) -> bool:
    if before.starts_ns is None:
        return False
    if notice.ends_ns is not None:
        return notice.ends_ns < before.starts_ns
    return notice.starts_ns is not None and notice.starts_ns < before.starts_ns
