"""What was asked about one incident: when to ask again, and which verdict stands. The controller and a replay go by it.

Pure but for the course itself, which belongs to whoever asks; what is stored and told is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from diagnostics.diagnosis import Diagnosis, in_brief
from diagnostics.incident import Incident, IncidentStatus, with_diagnosis
from diagnostics.splitting import SPLIT_AFTER_S, CausePair, note_pair
from diagnostics.standing import is_outgrown, weigh


class Pace(NamedTuple):
    """How often is asked: `often_s` while the answer may get better, for `often_for_s`; then `seldom_s`."""

    often_s: float
    often_for_s: float
    seldom_s: float


class Considered(NamedTuple):
    """The incident with the verdict that stands now, and whether that is news."""

    incident: Incident
    is_news: bool


@dataclass(slots=True)
class Course:
    """Of one incident, since whoever asks met it, or since it was reopened."""

    began_at: float
    walked_at: float | None = None
    alerts: frozenset[str] = frozenset()  # fingerprints of those that it had at the last walk
    rival: Diagnosis | None = field(default=None)  # what would replace the standing diagnosis; `at` is when it began to
    pair: CausePair | None = None  # two causes that it names together

    @classmethod
    def of(cls, incident: Incident, now: float) -> Course:
        """Where to take up an incident; one that a controller before us confirmed is asked again in its turn."""
        if incident.diagnosis is None or incident.diagnosis.confidence != "confirmed":
            return cls(now)
        return cls(now, walked_at=now, alerts=_fingerprints(incident))

    def why_due(self, incident: Incident, now: float, pace: Pace) -> str:
        """Why its trees are to be walked now, in words for the timeline; "" when they are not."""
        if incident.handling.correction is not None:
            return ""  # a person said what it is
        standing = incident.diagnosis
        if standing is not None and is_outgrown(incident, standing):
            return "it became wider"
        if self.walked_at is None:
            return "it was taken up"
        if standing is not None and (incident.status is IncidentStatus.MITIGATING or incident.cleared_at is not None):
            return ""
        if new := _fingerprints(incident) - self.alerts:
            names = sorted({one.name for one in incident.alerts if one.fingerprint in new})
            return f"{', '.join(names)} joined it"
        is_young = now - self.began_at <= pace.often_for_s
        is_settled = (
            standing is not None
            and standing.cause is not None
            and standing.confidence == "confirmed"
            and not standing.awaits
        )
        is_pair = self.pair is not None and now - self.pair.since <= 2 * SPLIT_AFTER_S
        is_soon = self.rival is not None or is_pair or (is_young and not is_settled)
        return (
            "asked again while it is open"
            if now - self.walked_at >= (pace.often_s if is_soon else pace.seldom_s)
            else ""
        )

    def note_walk(self, incident: Incident, now: float) -> None:
        """Its trees are walked now, for the alerts that it has."""
        self.walked_at = now
        self.alerts = _fingerprints(incident)

    def consider(self, incident: Incident, found: Diagnosis, *, is_gone: bool = False) -> Considered:
        """The incident after a walk found this: a verdict gives way to a surer one, a confirmed one to what lasts.

        The same again is no news, and its evidence is that of now: an hour later the present numbers count. `is_gone`:
        the node that the verdict names was taken out; it gives way to any cause, however sure.
        """
        self.pair = note_pair(found, self.pair)
        standing = incident.diagnosis
        is_same = standing is not None and _word(found) == _word(standing)
        if standing is not None and not is_outgrown(incident, standing):
            if is_same:
                found = replace(
                    found, since=standing.said_since, looked_at=found.at
                )  # a remedy waits until it has stood
            elif not (is_gone and found.cause is not None):
                replaces, self.rival = weigh(found, standing, self.rival)
                if not replaces:  # the evidence that is shown stays the one that names what stands
                    stands = replace(standing, looked_at=found.at, then_found=in_brief(found))
                    return Considered(with_diagnosis(incident, stands), False)
        self.rival = None
        return Considered(with_diagnosis(incident, found), not is_same)

    def note_split(self, left: Incident) -> None:
        """It is two incidents now, and this is what is left of it."""
        self.alerts = _fingerprints(left)
        self.pair = None


def _fingerprints(incident: Incident) -> frozenset[str]:
    return frozenset(one.fingerprint for one in incident.alerts)


def _word(diagnosis: Diagnosis) -> tuple[str | None, str]:
    return diagnosis.cause, diagnosis.confidence
