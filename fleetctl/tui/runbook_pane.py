"""The Runbook screen: the run of a page step by step, and the page itself."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Markdown

from fleetctl.tui.cell import StorySection
from fleetctl.tui.pane import Pane
from fleetctl.tui.place import Place
from fleetctl.tui.rich_text import paint, paint_section
from fleetctl.tui.runbook_view import page_head, run_section, shown_run
from fleetctl.tui.snapshot import Part
from fleetctl.tui.still import Redrawn, Still
from fleetctl.wire.run import Run


class RunbookPane(Redrawn, Pane):
    """About the shown incident's run, a run by its id, or a page by its name."""

    PLACE = Place.RUNBOOK
    NEEDS = frozenset({Part.RUNS, Part.PAGE})
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "scroll_page(4)", "Down", show=False),
        Binding("k,up", "scroll_page(-4)", "Up", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._run = Still(id="run-steps", classes="section")
        self._head = Still(id="page-head")
        self._page = Markdown(id="page", open_links=False)
        self._scroll = VerticalScroll(self._run, self._head, self._page, id="runbook-scroll")
        self._drawn: StorySection | None = None
        self._page_drawn = ""

    def compose(self) -> ComposeResult:
        """Steps above, page below."""
        yield self._scroll

    @property
    def main(self) -> Widget:
        """What scrolls."""
        return self._scroll

    @property
    def run_shown(self) -> Run | None:
        """The run whose steps are shown."""
        return shown_run(self.snapshot, self._run_id)

    @property
    def page_wanted(self) -> str | None:
        """The page that was asked for by name, or that the chosen run follows; None: the incident's."""
        if self.subject is None:
            return None
        return self.subject if self._run_id is None else getattr(self.run_shown, "runbook", None)

    @property
    def _run_id(self) -> str | None:
        return self.subject if self.subject is not None and self.subject.startswith("run-") else None

    def told(self) -> str:
        """The commands of the run, as they are typed."""
        run = self.run_shown
        return "\n".join(f"fleetctl {step.command}" for step in run.steps) if run is not None else ""

    def forget_drawn(self) -> None:
        """Draw the steps again."""
        self._drawn = None

    def draw(self) -> None:
        """Steps as they stand; the page when it is another one."""
        run = self.run_shown if self.subject is None or self._run_id is not None else None
        section = run_section(run, self.now)
        if section != self._drawn:
            self._drawn = section
            self._run.redraw(paint_section(section))
        page = self.snapshot.page
        self._head.redraw(paint(page_head(page)))
        text = page.body if page is not None else ""
        if text != self._page_drawn:
            self._page_drawn = text
            self._page.update(text)

    def action_scroll_page(self, lines: int) -> None:
        """Scroll by so many lines."""
        self._scroll.scroll_relative(y=lines, animate=False)
