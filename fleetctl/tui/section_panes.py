"""Screens that are sections under each other: now, traffic, rollout, autoscaler."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widget import Widget

from fleetctl.tui.autoscaler_view import autoscaler_sections
from fleetctl.tui.now_view import now_sections
from fleetctl.tui.pane import Pane, Sections
from fleetctl.tui.place import Place
from fleetctl.tui.rollout_view import rollout_sections
from fleetctl.tui.snapshot import Part
from fleetctl.tui.traffic_view import traffic_sections


class SectionsPane(Pane):
    """Sections that scroll."""

    def __init__(self) -> None:
        super().__init__()
        self._sections = Sections(id=f"{self.PLACE.value}-sections")

    def compose(self) -> ComposeResult:
        """The sections."""
        yield self._sections

    @property
    def main(self) -> Widget:
        """What scrolls."""
        return self._sections

    def told(self) -> str:
        """All sections."""
        return self._sections.told()


class NowPane(SectionsPane):
    """What hurts users, and what is being done."""

    PLACE = Place.NOW
    NEEDS = frozenset({Part.POOLS, Part.ALERTS, Part.RUNS, Part.PAST, Part.BUDGETS})

    def draw(self) -> None:
        """The gravest first."""
        self._sections.show(now_sections(self.snapshot, self.now))


class TrafficPane(SectionsPane):
    """Where requests go."""

    PLACE = Place.TRAFFIC
    NEEDS = frozenset({Part.TRAFFIC, Part.NODES})

    def draw(self) -> None:
        """Rules, rollouts, routes, tenants."""
        self._sections.show(traffic_sections(self.snapshot, self.now))


class RolloutPane(SectionsPane):
    """How pools get from one revision to another."""

    PLACE = Place.ROLLOUT
    NEEDS = frozenset({Part.TRAFFIC})

    def draw(self) -> None:
        """Those under way first."""
        self._sections.show(rollout_sections(self.snapshot, self.now))


class AutoscalerPane(SectionsPane):
    """What the autoscaler says of each pool, and may do."""

    PLACE = Place.AUTOSCALER
    NEEDS = frozenset({Part.AUTOSCALER})

    def draw(self) -> None:
        """Pool by pool."""
        self._sections.show(autoscaler_sections(self.snapshot, self.now))
