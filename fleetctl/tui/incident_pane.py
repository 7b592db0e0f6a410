"""The Incidents tab: the list, and everything about the chosen one, with the page of its runbook."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import DataTable, Markdown, Static

from fleetctl.tui.incident_view import INCIDENT_COLUMNS, StorySection, incident_rows, incident_view
from fleetctl.tui.keyed_table import KeyedTable
from fleetctl.tui.rich_text import paint_section
from fleetctl.tui.snapshot import Snapshot
from fleetctl.wire import Incident, IncidentStatus

# StorySection of the view, and which of its columns takes the room that is left.
_SECTIONS = (("head", 1), ("ask", 1), ("run", 2), ("diagnosis", 1), ("timeline", 1))


class IncidentPane(Vertical):
    """The list of incidents, and the chosen one with its page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_detail(4)", "Down"),
        Binding("k", "scroll_detail(-4)", "Up"),
    ]

    class Chosen(Message):
        """A person moved to another incident."""

        def __init__(self, incident_id: str) -> None:
            super().__init__()
            self.incident_id = incident_id

    def __init__(self) -> None:
        super().__init__(id="incident")
        self.table = KeyedTable(INCIDENT_COLUMNS, id="incidents", show_header=False)
        self._detail = VerticalScroll(id="detail")
        self._sections = {name: Static(id=name, classes="section") for name, _ in _SECTIONS}
        self._page = Markdown(id="page", open_links=False)
        self._snapshot = Snapshot()
        self._chosen: str | None = None
        self._drawn: dict[str, StorySection | None] = {}
        self._page_drawn = ""

    def compose(self) -> ComposeResult:
        """The list; below it the sections and the page."""
        yield self.table
        with self._detail:
            yield from self._sections.values()
            yield self._page

    @property
    def chosen(self) -> str | None:
        """Id of the incident that is shown; None before there is one."""
        return self._chosen

    @property
    def shown(self) -> Incident | None:
        """The chosen incident with as much as is known of it."""
        focus = self._snapshot.focus
        if focus is not None and focus.id == self._chosen:
            return focus
        return next((one for one in self._snapshot.incidents if one.id == self._chosen), None)

    def show(self, snapshot: Snapshot, now: float) -> None:
        """Draw this snapshot."""
        self._snapshot = snapshot
        self.set_class(snapshot.cut_off_since is not None, "-cut-off")
        width = self.table.size.width or self.app.size.width
        self.table.show(incident_rows(snapshot.incidents, now, width))
        self._follow()
        incident = self.shown
        self.set_class(incident is None, "-empty")
        if incident is None:
            self._draw("head", 0, None)
            known = snapshot.known_at is not None
            text = "No incidents. All quiet." if known else "Nothing is known yet."
            self._sections["head"].update(Text(text, style="dim"))
            self._drawn.clear()
        else:
            view = incident_view(incident, now)
            for name, wide in _SECTIONS:
                self._draw(name, wide, getattr(view, name))
        self._draw_page(incident)

    def action_scroll_detail(self, lines: int) -> None:
        """Scroll the detail by so many lines."""
        self._detail.scroll_relative(y=lines, animate=False)

    def to_page(self) -> None:
        """Scroll to the runbook's page."""
        self._page.scroll_visible(top=True, animate=False)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Tell which incident the cursor moved to."""
        event.stop()
        key = event.row_key.value
        # Rows that come and go move the cursor as well: only a move by hand chooses.
        if key is not None and key != self._chosen and self.table.has_focus:
            self._chosen = key
            self.post_message(self.Chosen(key))

    def _follow(self) -> None:
        """Keep what was chosen while it is open; a new open incident takes the place of a closed one."""
        incidents = self._snapshot.incidents
        current = next((one for one in incidents if one.id == self._chosen), None)
        gravest = incidents[0] if incidents else None
        if gravest is None:
            self._chosen = None
        elif current is None or (_is_closed(current) and not _is_closed(gravest)):
            self._chosen = gravest.id
            self.table.select(gravest.id)

    def _draw(self, name: str, wide: int, section: StorySection | None) -> None:
        if name in self._drawn and self._drawn[name] == section:
            return
        self._drawn[name] = section
        widget = self._sections[name]
        widget.display = section is not None or name == "head"
        if section is not None:
            widget.update(paint_section(section, wide))

    def _draw_page(self, incident: Incident | None) -> None:
        page = self._snapshot.page
        focused = incident is not None and self._snapshot.focus is not None and incident.id == self._snapshot.focus.id
        text = page.body if page is not None and focused else ""
        if text != self._page_drawn:
            self._page_drawn = text
            self._page.update(text)
        self._page.display = bool(text)


def _is_closed(incident: Incident) -> bool:
    return incident.status is IncidentStatus.RESOLVED
