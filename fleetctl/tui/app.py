"""The cockpit: what the person on call looks at. It draws snapshots of the controller's API and sends back decisions.

What `feed.py` reads comes as a message with a snapshot; the screen that is shown draws it. When the controller is
away, the last good data stays on screen, dim, with how long ago contact was lost. Textual looks for what a key or a
message does in the app itself: here each of these is a line or two, and who does it is a file beside this one.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import structlog
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter, NoColor
from textual.widgets import Footer, RichLog
from textual.worker import Worker

from fleetctl.kit.errors import BadInputError
from fleetctl.tui.bookmarks import Bookmark, Bookmarks
from fleetctl.tui.cockpit_client import CockpitClient
from fleetctl.tui.completing import completions, names_of
from fleetctl.tui.deeds import Deeds, target_of
from fleetctl.tui.feed import Feed
from fleetctl.tui.frame_keys import ACTS, KEYS, offers
from fleetctl.tui.guide_bar import GuideBar
from fleetctl.tui.help_screen import HelpScreen
from fleetctl.tui.jump import Jump, Recall
from fleetctl.tui.key_list import keys_of
from fleetctl.tui.log_follower import LogFollower
from fleetctl.tui.messages import SnapshotTaken, StoryTold
from fleetctl.tui.noun import Jump as JumpOrder
from fleetctl.tui.order import Act, Answer, Handle, Order, Simple, Start, Wrong, parse_order
from fleetctl.tui.palette import after, choose, chosen
from fleetctl.tui.pane import Pane
from fleetctl.tui.place import Place, Visit
from fleetctl.tui.prompt_line import PromptLine
from fleetctl.tui.rich_text import line
from fleetctl.tui.shell import Command, Shell
from fleetctl.tui.slider import TimeSlider, slider_cells
from fleetctl.tui.snapshot import Snapshot
from fleetctl.tui.stage import Stage
from fleetctl.tui.status_bar import PlaceBar, StatusBar
from fleetctl.tui.still import Redrawn, Still
from fleetctl.tui.terminal_driver import TerminalDriver
from fleetctl.wire.incident import IncidentStatus
from runbooks.verbs import VERBS

log = structlog.get_logger()

POLL_EVERY_S = 2.0
DRAWN_LATELY_S = 2.5
NAMED_TOKEN = "token"  # noqa: S105 - `CallerInfo.via` of whoever has a token of their own, whose name says who it is


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
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

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
        self._client_factory = client_factory
        self._controller: Closable | None = None
        self._deeds: Deeds | None = None
        self._by = by if by is not None else getpass.getuser()
        self._until = until
        self._on_ready = on_ready
        self._stage = Stage()
        self._slider = slider
        self._bookmarks = Bookmarks(bookmarks)
        self._shell = shell
        self._now = now if slider is None else slider.now
        self._is_polling = poll_every_s is not None
        self._feed = Feed(self._stage.wanted, self._now, poll_every_s or POLL_EVERY_S, is_past=slider is not None)
        self._offered: tuple[object, ...] = ()
        self._drawn_at = 0.0
        self._logs: LogFollower | None = None
        # Held, not looked up: a look-up searches the top screen, which may be a question to the person.
        self._bar = StatusBar(title)
        self._places = PlaceBar()
        self._guide = GuideBar()
        self._slider_bar = Still(id="slider")
        self._slider_bar.display = slider is not None
        self._prompt = PromptLine(self._completions)
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
        yield self._stage.switcher
        with self._story_panel:
            yield self._story_log
        yield self._prompt
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read snapshots."""
        self._controller = self._client_factory()
        self._deeds = Deeds(self, self._controller, self._by, self._feed.look_again, self._commands)
        self._draw()
        self._stage.focus()
        self.set_interval(1.0, self._tick)  # ages grow between snapshots as well
        if self._is_polling:
            self._logs = LogFollower(self._controller, self._stage.node, self._run_log)
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
        return self._stage.run_asking(self.snapshot) is not None

    @property
    def here(self) -> Visit:
        """Which screen is shown, and about what."""
        return self._stage.here

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
        self._stage.be_about(message.subject)
        self._feed.wake()

    def on_pane_moved(self) -> None:
        """Read what is told of it."""
        self._feed.wake()

    def on_pane_asks(self, message: Pane.Asks) -> None:
        """Another screen."""
        self.go(Visit(message.place, message.subject))

    def on_resize(self) -> None:
        """Names of screens have room, or have none any more."""
        self._places.show(self.here, self._stage.pane.words)

    def on_story_told(self, message: StoryTold) -> None:
        """Add a line to the story."""
        self._story_panel.add_class("-told")
        self._story_log.write(message.line)

    # -- where we are -------------------------------------------------------------------------------------------

    def go(self, visit: Visit) -> None:
        """Show a screen, about what it was about before where nothing is named."""
        self._stage.go(visit)
        self._arrive()

    def _arrive(self) -> None:
        self._prompt.close()
        self._draw()
        self._stage.focus()
        self._follow_log()
        self._feed.wake()

    def _follow_log(self) -> None:
        if self._logs is not None:
            self._logs.follow(self._stage.node.subject if self.here.place is Place.NODE else None)

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
        if self._stage.step(steps):
            self._arrive()

    def action_leave(self) -> None:
        """End the filter; else go back."""
        if self._stage.pane.words:
            self._narrow("")
        else:
            self.action_step(-1)

    def action_filter(self) -> None:
        """Type what lines have to fit."""
        self._prompt.open("filter", self._stage.pane.words)

    def action_command(self) -> None:
        """Type a command."""
        self._prompt.open("order")

    def action_help(self) -> None:
        """The keys of this screen, and those of all."""
        acts = [key for key in KEYS if key.show and key.action.partition("(")[0] in ACTS and self._offers(key.action)]
        self.push_screen(HelpScreen(self.here.place.label, keys_of(self._stage.pane, acts)))

    def _narrow(self, words: str) -> None:
        """Filter the screen that is shown."""
        self._stage.pane.narrow(words)
        self._places.show(self.here, words)

    # -- what is typed ------------------------------------------------------------------------------------------

    def on_prompt_line_typed(self, message: PromptLine.Typed) -> None:
        """Filter while it is typed."""
        self._narrow(message.text)

    def on_prompt_line_done(self, message: PromptLine.Done) -> None:
        """Keep the filter, or do what was typed."""
        self._stage.focus()
        if message.purpose == "filter":
            self._stage.pane.narrow(message.text)
        elif message.text:
            self._obey(parse_order(message.text, self._commands), message.text)

    def on_prompt_line_left(self, message: PromptLine.Left) -> None:
        """Nothing was typed."""
        if message.purpose == "filter":
            self._narrow("")
        self._stage.focus()

    def _obey(self, order: Order, typed: str = "") -> None:
        assert self._deeds is not None
        match order:
            case JumpOrder(visit, group, words):
                if group is not None:
                    self._stage.fleet.group = group
                self.go(visit)
                if words:
                    self._narrow(words)
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

    def _completions(self, text: str) -> list[str]:
        kinds = self._shell.kinds if self._shell is not None else ()
        return completions(text, names_of(self.snapshot, self._commands, kinds))

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
        has_shell, is_past = self._shell is not None, self._slider is not None
        return offers(action, self._stage, self.snapshot, has_shell=has_shell, is_past=is_past)

    def action_decide(self, decision: str) -> None:
        """Approve or deny the proposal that is shown, or answer what a run asks."""
        run = self._stage.run_asking(self.snapshot)
        if run is None or self._deeds is None:
            return
        if self.here.place not in (Place.INCIDENT, Place.RUNBOOK):
            self.go(Visit(Place.INCIDENT, run.incident_id))
        self._deeds.decide(run, decision == "approve")

    def action_dry_run(self) -> None:
        """What the proposal would do."""
        run = self._stage.run_asking(self.snapshot)
        if run is not None and self._deeds is not None:
            self._deeds.try_run(run)

    def action_take(self) -> None:
        """This person has it."""
        incident = self._stage.incident.shown
        if incident is not None and self._deeds is not None:
            caller = self.snapshot.caller
            me = caller.name if caller is not None and caller.via == NAMED_TOKEN else self._by
            self._deeds.take(incident, me)

    def action_silence(self) -> None:
        """The alert under the cursor, or those of the incident that is shown."""
        silenceable = self._stage.silenceable()
        if silenceable is not None and self._deeds is not None and self._shell is not None:
            self._deeds.silence(*silenceable, self._shell)

    def action_page(self) -> None:
        """The page of the incident's run."""
        self.go(Visit(Place.RUNBOOK))

    def action_order_run(self, what: Literal["pause", "skip", "cancel"]) -> None:
        """Pause the run or let it go on, skip its step, cancel it."""
        run = self._stage.runbook.run_shown
        if run is not None and self._deeds is not None:
            self._deeds.order_run(run, "resume" if what == "pause" and run.paused_by else what)

    def action_verb(self, name: str, options: str) -> None:
        """Ask whether to do this to the chosen node, or to its pool where the verb takes pools."""
        node = self._stage.chosen_node()
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
        text = self._stage.pane.told()
        if text:
            self.copy_to_clipboard(text)
            first, _, more = text.strip().partition("\n")
            self.notify(f"{first}{' …' if more else ''}", title="Copied", timeout=3, markup=False)

    def action_bookmark(self) -> None:
        """Keep what is shown, or drop it."""
        mark = Bookmark(Visit(self.here.place, self._stage.pane.subject), self._stage.pane.words)
        title = "Bookmarked" if self._bookmarks.toggle(mark) else "No bookmark any more"
        self.notify(mark.label, title=title, timeout=3, markup=False)

    def action_recall(self) -> None:
        """Go to a bookmark."""

        def chosen(mark: Bookmark | None) -> None:
            if mark is not None:
                self.go(mark.visit)
                self._narrow(mark.words)

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
        """Read everything now; a log that had ended is read on."""
        self._follow_log()
        self._feed.look_again()

    # -- how it goes on -----------------------------------------------------------------------------------------

    def _run_log(self, reading: Coroutine[Any, Any, None]) -> Worker[None]:
        return self.run_worker(reading, name="log", exit_on_error=True)

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
        self._stage.pane.show(self.snapshot, now)
        self._places.show(self.here, self._stage.pane.words)
        self._offer_keys()

    def _show_slider(self) -> None:
        if self._slider is not None:
            self._slider_bar.redraw(line(slider_cells(self._slider), "  "))

    def _offer_keys(self) -> None:
        """Redraw the footer when other keys can do something than before; doing it always makes it flicker."""
        offered = (*(self._offers(action) for action in ACTS), self.here.place)
        if offered != self._offered:
            self._offered = offered
            self.refresh_bindings()
