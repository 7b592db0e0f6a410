"""When an incident is two: its verdict names two causes for a while, and its alerts tell which is whose. Pure.

What began together was taken for one fault (`diagnostics.grouping`). A person who mends one of two faults must not
find the incident open, its title about the other one, and its post-mortem of neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diagnostics.diagnosis import Diagnosis
from diagnostics.grouping import Explains, Kinds
from diagnostics.incident import (
    FiredAlert,
    Incident,
    IncidentStatus,
    join,
    onset_of,
    open_incident,
    without_alerts,
)

SPLIT_AFTER_S = 10.0  # as long as another cause must stand before it replaces a confirmed one


@dataclass(frozen=True, slots=True)
class CausePair:
    """Two causes that the verdicts about one incident name together, the surer one first, and since when."""

    cause: str
    also: str
    since: float

    def is_of(self, found: Diagnosis) -> bool:
        """Whether a verdict names these two, in either order."""
        return {found.cause, found.also} == {self.cause, self.also}


def note_pair(found: Diagnosis, before: CausePair | None) -> CausePair | None:
    """The two causes that `found` names, since when they are named without a break; None: it does not name two."""
    if found.cause is None or found.also is None:
        return None
    return before if before is not None and before.is_of(found) else CausePair(found.cause, found.also, found.at)


def split_incident(
    incident: Incident,
    pair: CausePair | None,
    kinds: Kinds,
    explains: Explains,
    now: float,
    others: Mapping[str, Incident],
) -> tuple[Incident, Incident] | None:
    """The incident about its first cause alone, and a new one with the alerts that only the second cause explains.

    None: it is one. It has to name the same two causes for `SPLIT_AFTER_S`, an alert that stands has to speak for each
    of them, and nothing may be acting on it. `others`: the incidents whose ids are taken.
    """
    if pair is None or now - pair.since < SPLIT_AFTER_S or incident.status is not IncidentStatus.OPEN:
        return None
    stays = explains.get(pair.cause, frozenset())
    leaves = explains.get(pair.also, frozenset()) - stays

    def is_of(alert: FiredAlert, trees: frozenset[str]) -> bool:
        kind = kinds.get(alert.name)
        return kind is not None and kind.tree in trees

    leaving = sorted(
        (one for one in incident.alerts if is_of(one, leaves)), key=lambda one: (onset_of(one) or now, one.fingerprint)
    )
    standing = [one for one in incident.alerts if one.state != "resolved"]
    if not any(is_of(one, stays) for one in standing) or not any(one in leaving for one in standing):
        return None
    parted = open_incident(leaving[0], now)
    if parted.id in others:
        parted = open_incident(leaving[0], now, digest_chars=16)
    for alert in leaving[1:]:
        parted = join(parted, alert, now)
    return without_alerts(incident, frozenset(one.fingerprint for one in leaving)), parted
