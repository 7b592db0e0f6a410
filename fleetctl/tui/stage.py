"""All screens: which of them is shown, about what, and what is chosen on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from textual.widgets import ContentSwitcher

from fleetctl.tui.alert_view import alert_place
from fleetctl.tui.fleet_pane import FleetPane
from fleetctl.tui.incident_pane import IncidentPane
from fleetctl.tui.list_panes import AlertsPane, AuditPane, EventsPane
from fleetctl.tui.node_pane import NodePane
from fleetctl.tui.pane import Pane
from fleetctl.tui.place import Place, Trail, Visit
from fleetctl.tui.runbook_pane import RunbookPane
from fleetctl.tui.section_panes import AutoscalerPane, NowPane, RolloutPane, TrafficPane
from fleetctl.tui.shell import Command, silence_alert, silence_incident
from fleetctl.tui.snapshot import Snapshot, Wanted, asking, is_closed
from fleetctl.wire.node import Node
from fleetctl.wire.run import Run, RunStatus


class Stage:
    """Held, not looked up: a look-up searches the top screen, which may be a question to the person."""

    def __init__(self) -> None:
        self.fleet = FleetPane()
        self.alerts = AlertsPane()
        self.incident = IncidentPane()
        self.runbook = RunbookPane()
        self.node = NodePane()
        parts: Iterable[Pane] = (
            NowPane(),
            self.fleet,
            self.alerts,
            self.incident,
            self.runbook,
            self.node,
            TrafficPane(),
            EventsPane(),
            AuditPane(),
            RolloutPane(),
            AutoscalerPane(),
        )
        self._panes = {pane.PLACE: pane for pane in parts}
        self._trail = Trail()
        self.switcher = ContentSwitcher(*self._panes.values(), initial=Place.NOW.value, id="panes")

    @property
    def here(self) -> Visit:
        """Which screen is shown, and about what."""
        return self._trail.here

    @property
    def pane(self) -> Pane:
        """The screen that is shown."""
        return self._panes[self.here.place]

    def go(self, visit: Visit) -> None:
        """Show a screen, about what it was about before where nothing is named."""
        if visit.subject is None and visit.place in (Place.NODE, Place.INCIDENT):
            self.incident.forget_past()
            chosen = self.fleet.selected
            node = self.node.subject or (chosen.name if chosen is not None else None)
            visit = Visit(visit.place, node if visit.place is Place.NODE else self.incident.subject)
        self._trail = self._trail.to(visit)
        self._turn()

    def step(self, steps: int) -> bool:
        """Back or forward; False: there is nothing."""
        moved = self._trail.moved(steps)
        if moved.at == self._trail.at:
            return False
        self._trail = moved
        self._turn()
        return True

    def be_about(self, subject: str) -> None:
        """The same screen about something else."""
        self._trail = self._trail.about(subject)

    def _turn(self) -> None:
        self.pane.subject = self.here.subject
        self.switcher.current = self.here.place.value

    def focus(self) -> None:
        """Now: a widget's `focus` comes behind keys that are typed already, and took a prompt's focus in mid-word."""
        main = self.pane.main
        main.screen.set_focus(main)

    def wanted(self) -> Wanted:
        """What is to be read for what is shown."""
        place = self.here.place
        return Wanted(
            self.pane.NEEDS,
            incident=self.incident.subject,
            node=self.node.subject,
            page=self.runbook.page_wanted if place is Place.RUNBOOK else None,
            alert=self.alerts.chosen if place is Place.ALERTS else None,
            group=self.fleet.group_by_others if place is Place.FLEET else None,
        )

    def run_asking(self, snapshot: Snapshot) -> Run | None:
        """The run that waits for a person: on the Runbook screen the one that is shown, else the incident's."""
        if self.here.place is Place.RUNBOOK and self.here.subject is not None:
            run = self.runbook.run_shown
            waits = run is not None and (
                run.status is RunStatus.PROPOSED or (run.question and not run.status.is_terminal)
            )
            return run if waits else None
        return asking(snapshot.focus)

    def chosen_node(self) -> Node | None:
        """What a verb is for."""
        if self.here.place is Place.FLEET:
            return self.fleet.selected
        return self.node.node if self.here.place is Place.NODE else None

    def silenceable(self) -> tuple[str, Callable[[str], Command]] | None:
        """The alert or the incident that is chosen, if nobody silenced it, and what does so for a reason."""
        if self.here.place is Place.ALERTS:
            alert = self.alerts.table.selected
            if alert is None or alert.silenced == "yes":
                return None
            return f"{alert.name} of {alert_place(alert)}", partial(silence_alert, alert.name, alert.labels)
        incident = self.incident.shown if self.here.place is Place.INCIDENT else None
        if incident is None or is_closed(incident):
            return None
        return incident.id, partial(silence_incident, incident.id)
