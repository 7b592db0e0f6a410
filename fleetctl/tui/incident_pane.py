"""The Incident screen: the list, and everything about the chosen one."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.widget import Widget

from fleetctl.tui.cell import StorySection
from fleetctl.tui.chart_view import chart_section
from fleetctl.tui.incident_view import INCIDENT_COLUMNS, incident_lines, incident_view, no_incident_words
from fleetctl.tui.live_table import LiveTable
from fleetctl.tui.pane import Pane
from fleetctl.tui.place import Place
from fleetctl.tui.rich_text import paint_section
from fleetctl.tui.snapshot import Part, is_closed
from fleetctl.tui.still import Redrawn, Still
from fleetctl.wire.identity import TokenRole
from fleetctl.wire.incident import Incident

# Sections of the view. On a wide screen the second column stands beside the first.
_COLUMNS = (("head", "ask", "run"), ("diagnosis", "charts", "timeline"))


class IncidentPane(Redrawn, Pane):
    """The list of incidents, and the chosen one."""

    PLACE = Place.INCIDENT
    NEEDS = frozenset({Part.CHARTS})
    CAN_FILTER = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_detail(4)", "Down", show=False),
        Binding("k", "scroll_detail(-4)", "Up", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.table = _IncidentTable(INCIDENT_COLUMNS, id="incidents")
        self._detail = VerticalScroll(id="detail", can_focus=False)
        self._sections = {name: Still(id=name, classes="section") for names in _COLUMNS for name in names}
        self._drawn: dict[str, StorySection | None] = {}
        self._past: str | None = None  # id of one that was over when a person chose it

    def compose(self) -> ComposeResult:
        """The list; beside or below it the sections."""
        yield self.table
        with self._detail, Container(id="detail-columns"):
            for names in _COLUMNS:
                with Vertical(classes="detail-column"):
                    for name in names:
                        yield self._sections[name]

    @property
    def main(self) -> Widget:
        """The list."""
        return self.table

    @property
    def shown(self) -> Incident | None:
        """The chosen incident with as much as is known of it."""
        focus = self.snapshot.focus
        wanted = self.subject or (self.snapshot.incidents[0].id if self.snapshot.incidents else None)
        if focus is not None and focus.id == wanted:
            return focus
        return next((one for one in self.snapshot.incidents if one.id == wanted), None)

    def told(self) -> str:
        """Its id, its headline and the verdict."""
        one = self.shown
        if one is None:
            return ""
        cause = f"\n{one.diagnosis.cause}: {one.diagnosis.title}" if one.diagnosis and one.diagnosis.cause else ""
        return f"{one.id}: {one.title}{cause}"

    def forget_drawn(self) -> None:
        """Draw every section again."""
        self._drawn.clear()

    def draw(self) -> None:
        """The list, and the chosen one's sections."""
        self._follow()
        incident = self.shown
        self.table.show(incident_lines(self.snapshot, self.now, self.words))
        if incident is not None:
            self.table.select(incident.id)
        self.set_class(incident is None, "-empty")
        if incident is None:
            self._sections["head"].update(Text(no_incident_words(self.snapshot), style="dim"))
            self._drawn.clear()
            return
        view = incident_view(
            incident,
            self.now,
            may_handle=self.snapshot.may(TokenRole.OPERATOR),
            may_decide=self.snapshot.may(TokenRole.APPROVER),
        )
        is_its = self.snapshot.charts_of == incident.id
        charts = chart_section(self.snapshot.charts if is_its else None, self.snapshot.charts_unknown if is_its else "")
        for name in self._sections:
            self._draw(name, charts if name == "charts" else getattr(view, name))

    def forget_past(self) -> None:
        """A person comes anew: what is open is shown before what they read of the past."""
        if self._past is not None and any(not is_closed(one) for one in self.snapshot.incidents):
            self.subject = self._past = None

    def action_scroll_detail(self, lines: int) -> None:
        """Scroll the detail by so many lines."""
        self._detail.scroll_relative(y=lines, animate=False)

    def on_live_table_moved(self, event: LiveTable.Moved) -> None:
        """Show the incident that the cursor moved to."""
        event.stop()
        self.subject = event.key
        chosen = next((one for one in self.snapshot.incidents if one.id == event.key), None)
        self._past = event.key if chosen is not None and is_closed(chosen) else None
        self.post_message(self.About(event.key))
        self.draw()

    def on_live_table_opened(self, event: LiveTable.Opened) -> None:
        """The page that it is about."""
        event.stop()
        self.post_message(self.Asks(Place.RUNBOOK))

    def _follow(self) -> None:
        """Keep what was chosen while it is open, or was over when it was chosen; else the gravest is shown."""
        incidents = self.snapshot.incidents
        current = next((one for one in incidents if one.id == self.subject), None)
        gravest = incidents[0] if incidents else None
        if self.subject is not None and self.subject == getattr(self.snapshot.focus, "id", None) and current is None:
            return  # an old one that the list has no more
        is_over = current is not None and is_closed(current) and current.id != self._past
        if current is None or (gravest is not None and is_over and not is_closed(gravest)):
            self.subject = None

    def _draw(self, name: str, section: StorySection | None) -> None:
        if name in self._drawn and self._drawn[name] == section:
            return
        self._drawn[name] = section
        widget = self._sections[name]
        widget.display = section is not None
        if section is not None:
            widget.redraw(paint_section(section))


class _IncidentTable(LiveTable, inherit_bindings=False):
    """j and k scroll the detail here: the list is short, the detail is long."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("home", "move(-1000000)", "First", show=False),
        Binding("end,G", "move(1000000)", "Last", show=False),
        Binding("enter", "open", "Open", show=False),
    ]
