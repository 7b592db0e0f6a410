"""The cockpit: what the person on call looks at. It draws snapshots of the controller's API and sends back decisions.

What `feed.py` reads comes as a message with a snapshot; the screen that is shown draws it. When the controller is
away, the last good data stays on screen, dim, with how long ago contact was lost. One class, longer than others:
Textual looks for what a key or a message does in the app itself, and each of these is a line or two.
"""

from __future__ import annotations

import gc
import getpass
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import structlog
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter, NoColor
from textual.widgets import ContentSwitcher, Footer, RichLog
from textual.worker import Worker

from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.tui.alert_view import alert_place
from fleetctl.tui.bookmarks import Bookmark, Bookmarks
from fleetctl.tui.cockpit_client import CockpitClient
from fleetctl.tui.completing import Names, completions
from fleetctl.tui.deeds import Deeds, target_of
from fleetctl.tui.feed import Feed
from fleetctl.tui.fleet_pane import FleetPane
from fleetctl.tui.guide_bar import GuideBar
from fleetctl.tui.held_logs import held_logs
from fleetctl.tui.help_screen import HelpScreen
from fleetctl.tui.incident_pane import IncidentPane
from fleetctl.tui.jump import Jump, Recall
from fleetctl.tui.key_list import keys_of
from fleetctl.tui.list_panes import AlertsPane, AuditPane, EventsPane
from fleetctl.tui.messages import SnapshotTaken, StoryTold
from fleetctl.tui.node_pane import NodePane
from fleetctl.tui.noun import Jump as JumpOrder
from fleetctl.tui.order import Act, Answer, Handle, Order, Simple, Start, Wrong, parse_order
from fleetctl.tui.palette import after, choose, chosen
from fleetctl.tui.pane import Pane
from fleetctl.tui.place import Place, Trail, Visit
from fleetctl.tui.prompt_line import PromptLine
from fleetctl.tui.rich_text import line
from fleetctl.tui.runbook_pane import RunbookPane
from fleetctl.tui.section_panes import AutoscalerPane, NowPane, RolloutPane, TrafficPane
from fleetctl.tui.shell import Command, Shell, silence_alert, silence_incident
from fleetctl.tui.slider import TimeSlider, slider_cells
from fleetctl.tui.snapshot import Snapshot, Wanted, asking, is_closed
from fleetctl.tui.status_bar import PlaceBar, StatusBar
from fleetctl.tui.still import Redrawn, Still
from fleetctl.tui.terminal_driver import TerminalDriver
from fleetctl.wire.identity import TokenRole
from fleetctl.wire.incident import IncidentStatus
from fleetctl.wire.node import Node
from fleetctl.wire.run import Run, RunStatus
from runbooks.verbs import VERBS

log = structlog.get_logger()

POLL_EVERY_S = 2.0
DRAWN_LATELY_S = 2.5
LOG_LINES = 200
NAMED_TOKEN = "token"  # noqa: S105 - `CallerInfo.via` of whoever has a token of their own, whose name says who it is
GC_AFTER = 100_000  # new objects


class Closable(CockpitClient, Protocol):
    """What the cockpit closes at its end."""

    async def close(self) -> None:
        """Give its connections back."""
        ...


ClientFactory = Callable[[], Closable]


class Cockpit(App[None]):
    """The shell: keys, screens, the poller, and what is sent."""

    CSS_PATH = "fleet.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide"), (190, "-huge")]  # noqa: RUF012 - as Textual declares it
    # At once, before the next key is looked at: what is typed fast behind a key (`gf`, `:drain`) must not meet the old
    # screen.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("g", "jump", "Go", priority=True),
        Binding("question_mark", "help", "Help", key_display="?", priority=True),
        Binding("slash", "filter", "Filter", show=False, priority=True),
        Binding("colon", "command", "Command", show=False, priority=True),
        Binding("a", "decide('approve')", "Approve", priority=True),
        Binding("d", "decide('deny')", "Deny", priority=True),
        Binding("x", "dry_run", "Dry-run", priority=True),
        Binding("T", "take", "Take over", priority=True),
        Binding("Z", "silence", "Silence", priority=True),
        Binding("p", "page", "Page", priority=True),
        Binding("P", "order_run('pause')", "Pause", priority=True),
        Binding("S", "order_run('skip')", "Skip", priority=True),
        Binding("X", "order_run('cancel')", "Cancel", priority=True),
        *(
            Binding(shortcut.key, f"verb('{verb.name}', '{shortcut.options}')", shortcut.label, priority=True)
            for verb in VERBS.values()
            for shortcut in verb.shortcuts
        ),
        *(
            Binding(str(number), f"go('{place.value}')", place.label, show=False, priority=True)
            for number, place in enumerate(list(Place)[:9], 1)
        ),
        Binding("left_square_bracket,alt+left", "step(-1)", "Back", show=False, priority=True),
        Binding("right_square_bracket,alt+right", "step(1)", "Forward", show=False, priority=True),
        Binding("escape", "leave", "Back", show=False, priority=True),
        Binding("r", "refresh_now", "Refresh", show=False, priority=True),
        Binding("comma", "slide(-5)", "Earlier", key_display=",", priority=True),
        Binding("full_stop", "slide(5)", "Later", key_display=".", priority=True),
        Binding("less_than_sign", "slide(-60)", "1 min earlier", show=False, priority=True),
        Binding("greater_than_sign", "slide(60)", "1 min later", show=False, priority=True),
        Binding("space", "play", "Play", priority=True),
        Binding("y", "copy", "Copy", show=False, priority=True),
        Binding("m", "bookmark", "Bookmark", show=False, priority=True),
        Binding("apostrophe", "recall", "Bookmarks", show=False, priority=True),
        Binding("t", "theme", "Theme", show=False, priority=True),
        Binding("q", "quit", "Quit", priority=True),
        Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True),
    ]

    def __init__(
        self,
        client_factory: ClientFactory,
        *,
        title: str = "fleetctl",
        by: str | None = None,
        until: Awaitable[object] | None = None,
        on_ready: Callable[[Cockpit], None] | None = None,
        now: Callable[[], float] = time.time,
        poll_every_s: float | None = POLL_EVERY_S,
        theme: str = "dark",
        slider: TimeSlider | None = None,
        bookmarks: Path | None = None,
        shell: Shell | None = None,
    ) -> None:
        """`by` is who decides (default: the user's name). `poll_every_s` None: no poller, snapshots are posted.
        `slider`: of a recording, which is shown in place of the present. `bookmarks`: their file. `shell`: what runs
        commands that are no verbs."""
        super().__init__()
        self.title = title
        self.theme = choose(theme).base
        self.animation_level = "none"  # a screen to act on, often over a slow line
        self.snapshot = Snapshot()
        self.failure: Exception | None = None  # what `until` raised
        self.trail = Trail()
        self._client_factory = client_factory
        self._controller: Closable | None = None
        self._deeds: Deeds | None = None
        self._by = by if by is not None else getpass.getuser()
        self._until = until
        self._on_ready = on_ready
        self._slider = slider
        self._bookmarks = Bookmarks(bookmarks)
        self._shell = shell
        self._now = now if slider is None else slider.now
        self._is_polling = poll_every_s is not None
        self._feed = Feed(self._wanted, self._now, poll_every_s or POLL_EVERY_S, is_past=slider is not None)
        self._offered: tuple[object, ...] = ()
        self._drawn_at = 0.0
        self._log_worker: Worker[None] | None = None
        self._log_of: str | None = None
        # Held, not looked up: a look-up searches the top screen, which may be a question to the person.
        self._bar = StatusBar(title)
        self._places = PlaceBar()
        self._guide = GuideBar()
        self._slider_bar = Still(id="slider")
        self._slider_bar.display = slider is not None
        self._fleet = FleetPane()
        self._alerts = AlertsPane()
        self._incident = IncidentPane()
        self._runbook = RunbookPane()
        self._node = NodePane()
        parts: Iterable[Pane] = (
            NowPane(),
            self._fleet,
            self._alerts,
            self._incident,
            self._runbook,
            self._node,
            TrafficPane(),
            EventsPane(),
            AuditPane(),
            RolloutPane(),
            AutoscalerPane(),
        )
        self._panes = {pane.PLACE: pane for pane in parts}
        self._switcher = ContentSwitcher(*self._panes.values(), initial=Place.NOW.value, id="panes")
        self._prompt = PromptLine(lambda text: completions(text, self._names()))
        self._story_panel = Vertical(id="story-panel")
        self._story_log = RichLog(id="story", wrap=True, min_width=0, max_lines=500, auto_scroll=True)
        self._story: list[str] = []  # told before the screen was there

    def get_driver_class(self) -> type[Driver]:
        """Ours in place of Textual's for a terminal; a browser and tests have their own."""
        found = super().get_driver_class()
        return TerminalDriver if found is LinuxDriver else found

    def compose(self) -> ComposeResult:
        """Status, screens, story, prompt and footer."""
        yield self._bar
        yield self._places
        yield self._guide
        yield self._slider_bar
        yield self._switcher
        with self._story_panel:
            yield self._story_log
        yield self._prompt
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read snapshots."""
        self._controller = self._client_factory()
        self._deeds = Deeds(self, self._controller, self._by, self._feed.look_again, self._commands)
        self._draw()
        self._focus_pane()
        self.set_interval(1.0, self._tick)  # ages grow between snapshots as well
        if self._is_polling:
            for name, loop in self._feed.loops(self._controller, lambda one: self.post_message(SnapshotTaken(one))):
                self.run_worker(loop, name=name, exit_on_error=True)
        if self._until is not None:
            self.run_worker(self._leave_when_done(self._until), name="until", exit_on_error=True)
        for told in self._story:
            self.post_message(StoryTold(told))
        self._story.clear()
        if self._on_ready is not None:
            self._on_ready(self)

    async def on_unmount(self) -> None:
        """Close the client."""
        if self._controller is not None:
            await self._controller.close()

    def post_story(self, line: str) -> None:
        """Show a line in the story panel, which appears with the first one. Safe from any task or thread."""
        if self.is_running:
            self.post_message(StoryTold(line))
        else:
            self._story.append(line)

    def say(self, title: str, sees: str, do: str = "") -> None:
        """What a guide says above the screen. Only once `on_ready` was called."""
        self._guide.say(title, sees, do)

    @property
    def takes_answers(self) -> bool:
        """Whether the screen that is shown has a run that a person's key answers."""
        return self._asking() is not None

    @property
    def _pane(self) -> Pane:
        """The screen that is shown."""
        return self._panes[self.trail.here.place]

    # -- what comes in ------------------------------------------------------------------------------------------

    def on_snapshot_taken(self, message: SnapshotTaken) -> None:
        """Draw the newest state."""
        known = {one.id for one in self.snapshot.incidents if one.status is not IncidentStatus.RESOLVED}
        first = self.snapshot.known_at is None
        self.snapshot = message.snapshot
        for incident in self.snapshot.incidents:
            if incident.status is not IncidentStatus.RESOLVED and incident.id not in known and not first:
                self.notify(f"{incident.title}  (g i opens it)", title="Incident", severity="error", markup=False)
        self._draw()

    def on_pane_about(self, message: Pane.About) -> None:
        """Read what was chosen in full."""
        self.trail = self.trail.about(message.subject)
        self._feed.wake()

    def on_pane_moved(self) -> None:
        """Read what is told of it."""
        self._feed.wake()

    def on_pane_asks(self, message: Pane.Asks) -> None:
        """Another screen."""
        self.go(Visit(message.place, message.subject))

    def on_resize(self) -> None:
        """Names of screens have room, or have none any more."""
        self._places.show(self.trail.here, self._pane.words)

    def on_story_told(self, message: StoryTold) -> None:
        """Add a line to the story."""
        self._story_panel.add_class("-told")
        self._story_log.write(message.line)

    # -- where we are -------------------------------------------------------------------------------------------

    def go(self, visit: Visit) -> None:
        """Show a screen, about what it was about before where nothing is named."""
        if visit.subject is None and visit.place in (Place.NODE, Place.INCIDENT):
            self._incident.forget_past()
            chosen = self._fleet.selected
            node = self._node.subject or (chosen.name if chosen is not None else None)
            visit = Visit(visit.place, node if visit.place is Place.NODE else self._incident.subject)
        self.trail = self.trail.to(visit)
        self._arrive()

    def _arrive(self) -> None:
        here, pane = self.trail.here, self._pane
        pane.subject = here.subject
        self._prompt.close()
        self._switcher.current = here.place.value
        self._draw()
        self._focus_pane()
        self._follow_log()
        self._feed.wake()

    def _focus_pane(self) -> None:
        """Now: `focus` comes behind keys that are typed already, and took a prompt's focus from it in mid-word."""
        main = self._pane.main
        main.screen.set_focus(main)

    async def on_event(self, event: events.Event) -> None:
        """A key that follows `g` is taken here, in the order in which keys come."""
        if isinstance(event, events.Key):
            screens = self.screen_stack
            if not screens:
                return  # typed while it ends
            if isinstance(screens[-1], Jump):
                screens[-1].take(event.key)
                return
        await super().on_event(event)

    def action_jump(self) -> None:
        """The next key names a screen."""
        self.push_screen(Jump(lambda place: self.go(Visit(place))))

    def action_go(self, place: str) -> None:
        """Show a screen."""
        self.go(Visit(Place(place)))

    def action_step(self, steps: int) -> None:
        """Back or forward."""
        moved = self.trail.moved(steps)
        if moved.at != self.trail.at:
            self.trail = moved
            self._arrive()

    def action_leave(self) -> None:
        """End the filter; else go back."""
        if self._pane.words:
            self._pane.narrow("")
            self._places.show(self.trail.here, "")
        else:
            self.action_step(-1)

    def action_filter(self) -> None:
        """Type what lines have to fit."""
        self._prompt.open("filter", self._pane.words)

    def action_command(self) -> None:
        """Type a command."""
        self._prompt.open("order")

    def action_help(self) -> None:
        """The keys of this screen, and those of all."""
        acts = [
            one
            for one in self.BINDINGS
            if isinstance(one, Binding)
            and one.show
            and one.action.partition("(")[0] in ACTS
            and self._offers(one.action)
        ]
        self.push_screen(HelpScreen(self._pane.PLACE.label, keys_of(self._pane, acts)))

    # -- what is typed ------------------------------------------------------------------------------------------

    def on_prompt_line_typed(self, message: PromptLine.Typed) -> None:
        """Filter while it is typed."""
        self._pane.narrow(message.text)
        self._places.show(self.trail.here, message.text)

    def on_prompt_line_done(self, message: PromptLine.Done) -> None:
        """Keep the filter, or do what was typed."""
        self._focus_pane()
        if message.purpose == "filter":
            self._pane.narrow(message.text)
        elif message.text:
            self._obey(parse_order(message.text, self._commands), message.text)

    def on_prompt_line_left(self, message: PromptLine.Left) -> None:
        """Nothing was typed."""
        if message.purpose == "filter":
            self._pane.narrow("")
            self._places.show(self.trail.here, "")
        self._focus_pane()

    def _obey(self, order: Order, typed: str = "") -> None:
        assert self._deeds is not None
        match order:
            case JumpOrder(visit, group, words):
                if group is not None:
                    self._fleet.group = group
                self.go(visit)
                if words:
                    self._pane.narrow(words)
                    self._places.show(self.trail.here, words)
            case Act():
                self._deeds.act(order, self.snapshot.nodes)
            case Start():
                self._deeds.start(order, self.snapshot.nodes)
            case Answer():
                self._answer(order)
            case Handle(what, incident_id, to):
                self._deeds.handle(incident_id, None if what == "ack" else to)
            case Command():
                assert self._shell is not None  # it told which commands there are
                self._deeds.run(order, self._shell)
            case Simple("quit"):
                self.exit()
            case Simple("help"):
                self.action_help()
            case Simple():
                self.action_refresh_now()
            case Wrong(why, remedy):
                self._deeds.tell(BadInputError(why, remedy=remedy), typed)

    def _answer(self, order: Answer) -> None:
        """A run that was named: the question shows it as it was last read."""
        assert self._deeds is not None
        focus = self.snapshot.focus
        known = [*(focus.runs if focus is not None else ()), *self.snapshot.runs]
        run = next((one for one in known if one.id == order.run_id), None)
        if run is None:
            self._obey(Wrong(f"no run {order.run_id} is known here", f"look for it with :run {order.run_id}, or :runs"))
        else:
            self._deeds.decide(run, order.approve, order.comment, order.override)

    @property
    def _commands(self) -> Collection[str]:
        """Those that are no verbs and can be run from here."""
        return self._shell.commands if self._shell is not None else ()

    def _names(self) -> Names:
        snapshot = self.snapshot
        return Names(
            nodes=[node.name for node in snapshot.nodes],
            pools=[pool.name for pool in snapshot.pools],
            incidents=[one.id for one in snapshot.incidents],
            runs=[run.id for run in snapshot.runs],
            runbooks=sorted({run.runbook for run in snapshot.runs} - {"action"}),
            alerts=sorted({alert.name for alert in snapshot.alerts}),
            commands=tuple(self._commands),
            kinds=self._shell.kinds if self._shell is not None else (),
        )

    # -- keys that do something ---------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only the keys that can do something now are shown and work."""
        if action == "interrupt":
            return True
        if action == "pop_screen":
            return len(self.screen_stack) > 1
        if len(self.screen_stack) > 1 and action != "focus_next":
            return False  # the question on screen comes first
        if self._prompt.is_open:
            return False  # what is typed is text
        return self._offers(action)

    def _offers(self, action: str) -> bool:
        """Whether this action can do something now."""
        name = action.partition("(")[0]
        place = self.trail.here.place
        run = self._runbook.run_shown if place is Place.RUNBOOK else None
        match name:
            case "decide":
                return self._asking() is not None and self.snapshot.may(TokenRole.APPROVER)
            case "dry_run":
                asked = self._asking()
                return (
                    asked is not None and asked.status is RunStatus.PROPOSED and self.snapshot.may(TokenRole.OPERATOR)
                )
            case "take":
                return (
                    place is Place.INCIDENT
                    and self._incident.shown is not None
                    and not is_closed(self._incident.shown)
                    and self.snapshot.may(TokenRole.OPERATOR)
                )
            case "silence":
                return self._shell is not None and self._silenceable() and self.snapshot.may(TokenRole.OPERATOR)
            case "page":
                return place is Place.INCIDENT and self.snapshot.page is not None
            case "order_run":
                live = run is not None and not run.status.is_terminal and run.status is not RunStatus.PROPOSED
                return live and self.snapshot.may(TokenRole.OPERATOR)
            case "verb":
                return self._chosen_node() is not None and self.snapshot.may(TokenRole.OPERATOR)
            case "slide" | "play":
                return self._slider is not None
            case "filter":
                return self._pane.CAN_FILTER
        return True

    def _asking(self) -> Run | None:
        """The run that waits for a person: on the Runbook screen the one that is shown, else the incident's."""
        if self.trail.here.place is Place.RUNBOOK and self.trail.here.subject is not None:
            run = self._runbook.run_shown
            waits = run is not None and (
                run.status is RunStatus.PROPOSED or (run.question and not run.status.is_terminal)
            )
            return run if waits else None
        return asking(self._incident_shown())

    def _incident_shown(self) -> Any:
        return self.snapshot.focus

    def _chosen_node(self) -> Node | None:
        if self.trail.here.place is Place.FLEET:
            return self._fleet.selected
        return self._node.node if self.trail.here.place is Place.NODE else None

    def action_decide(self, decision: str) -> None:
        """Approve or deny the proposal that is shown, or answer what a run asks."""
        run = self._asking()
        if run is None or self._deeds is None:
            return
        if self.trail.here.place not in (Place.INCIDENT, Place.RUNBOOK):
            self.go(Visit(Place.INCIDENT, run.incident_id))
        self._deeds.decide(run, decision == "approve")

    def action_dry_run(self) -> None:
        """What the proposal would do."""
        run = self._asking()
        if run is not None and self._deeds is not None:
            self._deeds.try_run(run)

    def action_take(self) -> None:
        """This person has it."""
        incident = self._incident.shown
        if incident is not None and self._deeds is not None:
            caller = self.snapshot.caller
            me = caller.name if caller is not None and caller.via == NAMED_TOKEN else self._by
            self._deeds.take(incident, me)

    def _silenceable(self) -> bool:
        """Whether what is chosen is an alert, or an incident, that nobody silenced."""
        if self.trail.here.place is Place.ALERTS:
            alert = self._alerts.table.selected
            return alert is not None and alert.silenced != "yes"
        incident = self._incident.shown if self.trail.here.place is Place.INCIDENT else None
        return incident is not None and not is_closed(incident)

    def action_silence(self) -> None:
        """The alert under the cursor, or those of the incident that is shown."""
        assert self._deeds is not None
        assert self._shell is not None  # else it is not offered
        if self.trail.here.place is Place.ALERTS:
            alert = self._alerts.table.selected
            where = f"{alert.name} of {alert_place(alert)}"
            self._deeds.silence(where, partial(silence_alert, alert.name, alert.labels), self._shell)
        elif (incident := self._incident.shown) is not None:
            self._deeds.silence(incident.id, partial(silence_incident, incident.id), self._shell)

    def action_page(self) -> None:
        """The page of the incident's run."""
        self.go(Visit(Place.RUNBOOK))

    def action_order_run(self, what: Literal["pause", "skip", "cancel"]) -> None:
        """Pause the run or let it go on, skip its step, cancel it."""
        run = self._runbook.run_shown
        if run is not None and self._deeds is not None:
            self._deeds.order_run(run, "resume" if what == "pause" and run.paused_by else what)

    def action_verb(self, name: str, options: str) -> None:
        """Ask whether to do this to the chosen node, or to its pool where the verb takes pools."""
        node = self._chosen_node()
        if node is not None:
            self._obey(parse_order(f"{name} {target_of(VERBS[name], node)} {options}".rstrip()))

    def action_slide(self, seconds: float) -> None:
        """Another moment of the recording."""
        if self._slider is not None:
            self._slider.move(seconds)
            self._feed.look_again()

    def action_play(self) -> None:
        """The recording goes on by itself, faster with each press, then stands."""
        if self._slider is not None:
            self._slider.play()
            self._feed.look_again()

    def action_copy(self) -> None:
        """What is chosen, to the clipboard of the terminal (OSC 52), over ssh too."""
        text = self._pane.told()
        if text:
            self.copy_to_clipboard(text)
            first, _, more = text.strip().partition("\n")
            self.notify(f"{first}{' …' if more else ''}", title="Copied", timeout=3, markup=False)

    def action_bookmark(self) -> None:
        """Keep what is shown, or drop it."""
        mark = Bookmark(Visit(self.trail.here.place, self._pane.subject), self._pane.words)
        title = "Bookmarked" if self._bookmarks.toggle(mark) else "No bookmark any more"
        self.notify(mark.label, title=title, timeout=3, markup=False)

    def action_recall(self) -> None:
        """Go to a bookmark."""

        def chosen(mark: Bookmark | None) -> None:
            if mark is not None:
                self.go(mark.visit)
                self._pane.narrow(mark.words)
                self._places.show(self.trail.here, mark.words)

        self.push_screen(Recall(self._bookmarks.kept), chosen)

    def action_interrupt(self) -> None:
        """Ctrl-C ends it at any moment, as it ends every command."""
        self.exit()

    def action_theme(self) -> None:
        """The next palette."""
        self._use_palette(after(chosen().name))
        self.notify(f"{chosen().name}  (t: the next)", title="Theme", timeout=3, markup=False)

    def _use_palette(self, name: str) -> None:
        self.theme = choose(name).base
        self.refresh_css(animate=False)
        for widget in self.screen_stack[0].walk_children() if self.screen_stack else ():
            if isinstance(widget, Redrawn):
                widget.forget_drawn()
        self._draw()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """What takes colours out, while the palette has none."""
        filters = super().get_line_filters()
        return filters if chosen().has_colour else [*filters, NoColor()]

    def action_refresh_now(self) -> None:
        """Read everything now."""
        self._feed.look_again()

    # -- what it needs ------------------------------------------------------------------------------------------

    def _wanted(self) -> Wanted:
        here = self.trail.here
        return Wanted(
            self._pane.NEEDS,
            incident=self._incident.subject,
            node=self._node.subject,
            page=self._runbook.page_wanted if here.place is Place.RUNBOOK else None,
            alert=self._alerts.chosen if here.place is Place.ALERTS else None,
            group=self._fleet.group_by_others if here.place is Place.FLEET else None,
        )

    def _follow_log(self) -> None:
        """Follow the shown node's log, and nobody else's."""
        name = self._node.subject if self.trail.here.place is Place.NODE else None
        if name == self._log_of:
            return
        self._log_of = name
        if self._log_worker is not None:
            self._log_worker.cancel()
            self._log_worker = None
        if name is not None and self._controller is not None and self._is_polling:
            self._log_worker = self.run_worker(self._show_log(self._controller, name), name="log", exit_on_error=True)

    async def _show_log(self, controller: CockpitClient, name: str) -> None:
        self._node.begin_log(name)
        try:
            async for line in controller.follow_node_logs(name, LOG_LINES):
                self._node.add_log(line)
        except FleetctlError as error:
            self._node.end_log(error.message)
        else:
            self._node.end_log("the controller ended it; r reads on")
            self._log_of = None

    async def _leave_when_done(self, until: Awaitable[object]) -> None:
        try:
            await until
        except Exception as error:  # noqa: BLE001 - it belongs to whoever gave us `until`: kept, and raised there
            log.warning("cockpit.story_failed", error=repr(error))
            self.failure = error
        self.exit()

    def _tick(self) -> None:
        """The clocks of the header each second; the screen too, where no snapshot has drawn it lately."""
        if time.monotonic() - self._drawn_at > DRAWN_LATELY_S:
            self._draw()
        elif self.screen_stack:
            self._bar.show(self.snapshot, self._now())
            self._show_slider()

    def _draw(self) -> None:
        if not self.screen_stack:
            return  # the last snapshot came while the cockpit was closing
        now = self._now()
        self._drawn_at = time.monotonic()
        self._bar.show(self.snapshot, now)
        self._show_slider()
        self._pane.show(self.snapshot, now)
        self._places.show(self.trail.here, self._pane.words)
        self._offer_keys()

    def _show_slider(self) -> None:
        if self._slider is not None:
            self._slider_bar.redraw(line(slider_cells(self._slider), "  "))

    def _offer_keys(self) -> None:
        """Redraw the footer when other keys can do something than before; doing it always makes it flicker."""
        offered = (*(self._offers(action) for action in ACTS), self.trail.here.place)
        if offered != self._offered:
            self._offered = offered
            self.refresh_bindings()


ACTS = ("slide", "decide", "dry_run", "take", "silence", "page", "order_run", "verb", "filter")


async def run_cockpit(
    client_factory: ClientFactory,
    *,
    title: str = "fleetctl",
    until: Awaitable[object] | None = None,
    by: str | None = None,
    on_ready: Callable[[Cockpit], None] | None = None,
    theme: str = "dark",
    slider: TimeSlider | None = None,
    bookmarks: Path | None = None,
    shell: Shell | None = None,
) -> None:
    """Show the cockpit until a person quits or `until` is done.

    `on_ready` gets the running app, e.g. to tell it a story with `post_story`. What `until` raises is raised here.
    Log lines are held meanwhile: stderr is the same terminal.
    """
    cockpit = Cockpit(
        client_factory,
        title=title,
        by=by,
        until=until,
        on_ready=on_ready,
        theme=theme,
        slider=slider,
        bookmarks=bookmarks,
        shell=shell,
    )
    # Modules and classes live as long as we do, and a reading of 1,000 nodes is 60,000 objects that no cycle holds: to
    # look through them again and again took longer than to read them.
    gc.freeze()
    gc.set_threshold(GC_AFTER, 10, 10)
    with held_logs():
        await cockpit.run_async()
    if cockpit.failure is not None:
        raise cockpit.failure
