"""When an incident is two: its verdict names two causes for a while, and its alerts tell which is whose. Pure.

What began together was taken for one fault (`diagnostics.grouping`). A person who mends one of two faults must not
find the incident open, its title about the other one, and its post-mortem of neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from diagnostics.diagnosis import Diagnosis
from diagnostics.grouping import Explains, Kinds, group_alerts
from diagnostics.incident import FiredAlert, Incident, IncidentStatus, join, open_incident, without_alerts
from diagnostics.scope import Nodes, scope_of

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
    others: Iterable[Incident],
    now: float,
    known: Nodes,
    kinds: Kinds,
    explains: Explains,
) -> tuple[Incident, dict[str, Incident]] | None:
    """The incident about its first cause alone, and by id where the alerts that only the second cause explains are now.

    None: it is one. It has to name the same two causes for `SPLIT_AFTER_S`, an alert that stands has to speak for each
    of them and not for the other, and nothing may be acting on it: where one of the two explains all that fires, the
    other is beside it. The alerts that leave are placed as if they began to fire now, so that
    those of several nodes are one incident, or several, as ever; `others`, `known`: see `group_alerts`.
    """
    if pair is None or now - pair.since < SPLIT_AFTER_S or incident.status is not IncidentStatus.OPEN:
        return None
    of_first, of_second = (explains.get(cause, frozenset()) for cause in (pair.cause, pair.also))
    leaves = of_second - of_first

    def is_of(alert: FiredAlert, trees: frozenset[str]) -> bool:
        kind = kinds.get(alert.name)
        return kind is not None and kind.tree in trees

    leaving = [one for one in incident.alerts if is_of(one, leaves)]
    arrivals = [one for one in leaving if one.state != "resolved"]
    if not arrivals or not any(is_of(one, of_first - of_second) for one in incident.alerts if one.state != "resolved"):
        return None
    taken = {one.id: one for one in others if one.id != incident.id}
    parted = group_alerts(arrivals, taken.values(), now, known, kinds, explains)
    if (same := parted.pop(incident.id, None)) is not None:  # an id is that of the alert that opened it, which leaves
        other = open_incident(same.alerts[0], now, digest_chars=16).id
        parted[other] = replace(same, id=other)
    over = [one for one in leaving if one.state == "resolved"]
    for alert in over:  # what is over goes with its fault, where that has an incident of the same place now
        home = next((one for one in parted.values() if dict(one.scope) == scope_of(alert.labels)), None)
        if home is not None:
            parted[home.id] = join(home, alert, now)
    placed = {one.fingerprint for each in parted.values() for one in each.alerts}
    return without_alerts(incident, frozenset(placed & {one.fingerprint for one in leaving})), parted
