"""What may be started for an incident without a person: diagnosis, a proposal, a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from diagnostics.incident import FiredAlert, Incident
from fleetctl.controller.alertmanager.external_scope import SOURCE, FleetMap, is_known_scope
from fleetctl.controller.alertmanager.silence import Silenced, Silencing
from fleetctl.controller.alertmanager.silences import Silences


class Automation:
    """Alerts from outside are diagnosed where they point at something of ours. Silenced ones start nothing. While
    silences can't be read, diagnosis and proposals go on, and every run waits for a person."""

    def __init__(
        self,
        silences: Silences,
        fleet_map: Callable[[], FleetMap],
        labels_in_alertmanager: Callable[[FiredAlert], Mapping[str, str]],
    ) -> None:
        self._silences = silences
        self._fleet_map = fleet_map
        self._labels = labels_in_alertmanager

    def silencing_of(self, alert: FiredAlert) -> Silencing:
        """Whether the alert is silenced, and by what. One that is over is not."""
        if alert.state in ("resolved", "inactive"):
            return Silencing(Silenced.NO)
        return self._silences.silencing_of(self._labels(alert))

    def may_open(self, alert: FiredAlert) -> bool:
        """Whether the alert may open an incident now."""
        return not self._silences.holds(self._labels(alert))

    def may_diagnose(self, incident: Incident) -> bool:
        """Whether the incident's tree may be walked."""
        if self._silenced(incident) is Silenced.YES:
            return False
        return any(one.source != SOURCE for one in incident.alerts) or is_known_scope(incident, self._fleet_map())

    def may_propose(self, incident: Incident) -> bool:
        """Whether a run may be proposed for the incident."""
        return self._silenced(incident) is not Silenced.YES

    def may_run_unasked(self, incident: Incident) -> bool:
        """Whether a run may start without a person: only while silences are known."""
        return self._silenced(incident) is Silenced.NO

    def _silenced(self, incident: Incident) -> Silenced:
        """Yes when every alert that stands is silenced: one that is not is reason enough to go on."""
        standing = [self.silencing_of(one).silenced for one in incident.alerts if one.state != "resolved"]
        if standing and all(one is Silenced.YES for one in standing):
            return Silenced.YES
        return Silenced.UNKNOWN if Silenced.UNKNOWN in standing else Silenced.NO
