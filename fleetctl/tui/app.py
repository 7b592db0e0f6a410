"""The cockpit: what the person on call looks at. It draws snapshots of the controller's API and sends back decisions.

One worker reads, and posts each snapshot as a message; the panes draw it. When the controller is away, the last good
data stays on screen, dim, with how long ago contact was lost.
"""

from __future__ import annotations

import asyncio
import getpass
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Protocol

import structlog
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Footer, RichLog, TabbedContent, TabPane

from fleetctl.kit.errors import FleetctlError
from fleetctl.tui.confirm import Confirm
from fleetctl.tui.fleet_pane import FleetPane
from fleetctl.tui.held_logs import held_logs
from fleetctl.tui.incident_pane import IncidentPane
from fleetctl.tui.incident_view import plan_of
from fleetctl.tui.messages import SnapshotTaken, StoryTold
from fleetctl.tui.snapshot import CockpitClient, Snapshot, SnapshotReader, asking
from fleetctl.tui.status_bar import StatusBar
from fleetctl.wire import ActionRequest, ApprovalRequest, IncidentStatus, Node, NodePhase, Run, RunStatus
from runbooks.target import Target, TargetKind, node_target
from runbooks.verb import Verb
from runbooks.verbs import VERBS

log = structlog.get_logger()

POLL_EVERY_S = 1.0


class Closable(CockpitClient, Protocol):
    """What the cockpit closes at its end."""

    async def close(self) -> None:
        """Give its connections back."""
        ...


ClientFactory = Callable[[], Closable]


class Cockpit(App[None]):
    """The shell: keys, tabs, the poller, and the calls that change something."""

    CSS_PATH = "fleet.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]  # noqa: RUF012 - as Textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "tab('fleet-tab')", "Fleet", show=False),
        Binding("2", "tab('incident-tab')", "Incidents", show=False),
        Binding("a", "decide('approve')", "Approve"),
        Binding("d", "decide('deny')", "Deny"),
        Binding("p", "page", "Page"),
        *(
            Binding(shortcut.key, f"verb('{verb.name}', '{shortcut.options}')", shortcut.label)
            for verb in VERBS.values()
            for shortcut in verb.shortcuts
        ),
        Binding("r", "refresh_now", "Refresh", show=False),
        Binding("q", "quit", "Quit"),
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
    ) -> None:
        """`by` is who decides (default: the user's name). `poll_every_s` None: no poller, snapshots are posted."""
        super().__init__()
        self.title = title
        self.animation_level = "none"  # a screen to act on, often over a slow line
        self.snapshot = Snapshot()
        self.failure: Exception | None = None  # what `until` raised
        self._client_factory = client_factory
        self._controller: Closable | None = None
        self._by = by if by is not None else getpass.getuser()
        self._until = until
        self._on_ready = on_ready
        self._now = now
        self._poll_every_s = poll_every_s
        self._wake = asyncio.Event()
        self._offered: tuple[bool | None, ...] = ()
        # Held, not looked up: a look-up searches the top screen, which may be a question to the person.
        self._bar = StatusBar(title)
        self._tabs = TabbedContent(id="tabs")
        self._fleet = FleetPane()
        self._pane = IncidentPane()
        self._story_panel = Vertical(id="story-panel")
        self._story_log = RichLog(id="story", wrap=True, min_width=0, max_lines=500, auto_scroll=True)
        self._story: list[str] = []  # told before the screen was there

    def compose(self) -> ComposeResult:
        """Status bar, tabs, story and footer."""
        yield self._bar
        with self._tabs:
            with TabPane("1 Fleet", id="fleet-tab"):
                yield self._fleet
            with TabPane("2 Incidents", id="incident-tab"):
                yield self._pane
        with self._story_panel:
            yield self._story_log
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read snapshots."""
        self._controller = self._client_factory()
        self._draw()
        self._fleet.table.focus()
        self.set_interval(1.0, self._draw)  # ages grow between snapshots as well
        if self._poll_every_s is not None:
            self.run_worker(self._poll(self._controller, self._poll_every_s), name="poller", exit_on_error=True)
        if self._until is not None:
            self.run_worker(self._leave_when_done(self._until), name="until", exit_on_error=True)
        for line in self._story:
            self.post_message(StoryTold(line))
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

    # -- what comes in ------------------------------------------------------------------------------------------

    def on_snapshot_taken(self, message: SnapshotTaken) -> None:
        """Draw the newest state."""
        known = {one.id for one in self.snapshot.incidents if one.status is not IncidentStatus.RESOLVED}
        first = self.snapshot.known_at is None
        self.snapshot = message.snapshot
        for incident in self.snapshot.incidents:
            if incident.status is not IncidentStatus.RESOLVED and incident.id not in known and not first:
                self.notify(f"{incident.title}  (2 opens it)", title="Incident", severity="error", markup=False)
        self._draw()

    def on_incident_pane_chosen(self) -> None:
        """Read the chosen incident in full."""
        self._wake.set()  # fetch the chosen one in full now

    def on_story_told(self, message: StoryTold) -> None:
        """Add a line to the story."""
        self._story_panel.add_class("-told")
        self._story_log.write(message.line)

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Focus the table of the tab that came to the front, and offer its keys."""
        (self._fleet.table if event.pane.id == "fleet-tab" else self._pane.table).focus()
        self._offer_keys()

    # -- keys ---------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only the keys that can do something now are shown and work."""
        if len(self.screen_stack) > 1 and action != "focus_next":
            return False  # the question on screen comes first
        active = self._tabs.active if self._tabs.is_mounted else ""
        if action == "decide":
            return asking(self._pane.shown) is not None
        if action == "page":
            return active == "incident-tab" and self.snapshot.page is not None
        if action == "verb":
            return active == "fleet-tab" and bool(self.snapshot.nodes)
        return True

    def action_tab(self, tab: str) -> None:
        """Bring a tab to the front."""
        self._tabs.active = tab

    def action_page(self) -> None:
        """Bring the runbook's page into view."""
        self._pane.to_page()

    def action_refresh_now(self) -> None:
        """Read a snapshot now."""
        self._wake.set()

    def action_decide(self, decision: str) -> None:
        """Approve or deny the proposal that is shown, or answer what a run asks."""
        run = asking(self._pane.shown)
        if run is None:
            return
        self.action_tab("incident-tab")
        approve = decision == "approve"
        if run.question:
            question = f"Yes to {run.runbook}?" if approve else f"No to {run.runbook}? What it did is undone."
            details: tuple[str, ...] = (run.question, *(plan_of(run) if approve else ()))
        elif approve:
            question = f"Run {run.runbook}?"
            details = (*plan_of(run), "", run.reason, run.prediction, run.approval, run.held)
        else:
            question = f"Deny {run.runbook}? Nothing will be done."
            details = (run.title, run.reason)
        words = ("Yes", "No") if run.question else ("Approve", "Deny")

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._decide(run, approve), name="decide", exit_on_error=True)

        self.push_screen(Confirm(question, details, words[0] if approve else words[1]), answered)

    def action_verb(self, name: str, options: str) -> None:
        """Ask whether to do this to the chosen node, or to its pool where the verb takes pools."""
        node = self._fleet.selected
        if node is None:
            return
        verb = VERBS[name]
        target = target_of(verb, node)
        command = f"{name} {target} {options}".rstrip()

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._act(command), name="act", exit_on_error=True)

        details = (f"fleetctl {command}", *standing_of(target, self.snapshot.nodes))
        self.push_screen(Confirm(f"{name} {target}?", details, name.capitalize()), answered)

    # -- calls --------------------------------------------------------------------------------------------------

    async def _decide(self, run: Run, approve: bool) -> None:
        assert self._controller is not None
        try:
            request = ApprovalRequest(decision="approve" if approve else "deny", by=self._by)
            answer = await self._controller.decide(run.id, request)
        except FleetctlError as error:
            self._tell(error)
        else:
            log.info("run.decided", run_id=run.id, runbook=run.runbook, decision=request.decision, by=self._by)
            self.notify(f"{answer.title or answer.runbook}: {_status_words(answer)}", markup=False)
        self._wake.set()

    async def _act(self, command: str) -> None:
        assert self._controller is not None
        try:
            request = ActionRequest(command=command, requested_by=self._by, reason="from the cockpit")
            answer = await self._controller.act(request)
        except FleetctlError as error:
            self._tell(error)
        else:
            log.info("action.requested", run_id=answer.id, command=command, by=self._by)
            self.notify(f"{command}: {_status_words(answer)}", markup=False)
        self._wake.set()

    def _tell(self, error: FleetctlError) -> None:
        """An error is news for a person: it stays until the next one would have gone."""
        text = f"{error.message}\n{error.remedy}" if error.remedy else error.message
        log.warning("request.failed", error=error.message)
        self.notify(text, title="Not done", severity="error", timeout=15, markup=False)

    # -- loops --------------------------------------------------------------------------------------------------

    async def _poll(self, controller: CockpitClient, every_s: float) -> None:
        reader = SnapshotReader(controller, self._now)
        while True:
            self._wake.clear()
            self.post_message(SnapshotTaken(await reader.read(self._pane.chosen)))
            try:
                await asyncio.wait_for(self._wake.wait(), every_s)
            except TimeoutError:
                continue

    async def _leave_when_done(self, until: Awaitable[object]) -> None:
        try:
            await until
        except Exception as error:  # noqa: BLE001 - it belongs to whoever gave us `until`: kept, and raised there
            log.warning("cockpit.story_failed", error=repr(error))
            self.failure = error
        self.exit()

    def _draw(self) -> None:
        if not self.screen_stack:
            return  # the last snapshot came while the cockpit was closing
        now = self._now()
        self._bar.show(self.snapshot, now)
        self._fleet.show(self.snapshot, now)
        self._pane.show(self.snapshot, now)
        self._offer_keys()

    def _offer_keys(self) -> None:
        """Redraw the footer when other keys can do something than before; doing it always makes it flicker."""
        offered = tuple(self.check_action(action, ()) for action in ("decide", "page", "verb"))
        if offered != self._offered:
            self._offered = offered
            self.refresh_bindings()


def target_of(verb: Verb, node: Node) -> Target:
    """What a key acts on while `node` is chosen."""
    if TargetKind.NODE in verb.kinds:
        return node_target(node.name)
    return Target(TargetKind.POOL, node.pool)


def standing_of(target: Target, nodes: Sequence[Node]) -> tuple[str, ...]:
    """How what is acted on stands now, in a line."""
    if target.kind is TargetKind.NODE:
        return tuple(f"{one.name} is {one.phase.value.replace('_', ' ')}" for one in nodes if one.name == target.name)
    pool = [one for one in nodes if one.pool == target.name and one.phase is not NodePhase.STOPPED]
    return (f"{target.words}: {len(pool)} nodes, {sum(one.phase is NodePhase.READY for one in pool)} ready",)


async def run_cockpit(
    client_factory: ClientFactory,
    *,
    title: str = "fleetctl",
    until: Awaitable[object] | None = None,
    by: str | None = None,
    on_ready: Callable[[Cockpit], None] | None = None,
) -> None:
    """Show the cockpit until a person quits or `until` is done.

    `on_ready` gets the running app, e.g. to tell it a story with `post_story`. What `until` raises is raised here.
    Log lines are held meanwhile: stderr is the same terminal.
    """
    cockpit = Cockpit(client_factory, title=title, by=by, until=until, on_ready=on_ready)
    with held_logs():
        await cockpit.run_async()
    if cockpit.failure is not None:
        raise cockpit.failure


def _status_words(run: Run) -> str:
    """A run's status; of a proposal that needs several persons, who said yes and how many more it needs."""
    waits = run.approval if run.status is RunStatus.PROPOSED else ""
    return f"{run.status.value}, {waits}" if waits else run.status.value
