"""What the cockpit sends: each change after one question that says what will happen, and how it ended.

A dry run is asked for without a question, and its answer says first that nothing was done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Literal

import structlog
from textual.app import App

from fleetctl.kit.errors import FleetctlError
from fleetctl.tui.cockpit_client import CockpitClient
from fleetctl.tui.command_screen import CommandScreen
from fleetctl.tui.confirm import Confirm, Told
from fleetctl.tui.incident_view import plan_of
from fleetctl.tui.next_step import with_next_step
from fleetctl.tui.order import Act, Start, is_dangerous
from fleetctl.tui.shell import SILENCED_FOR, Command, Shell
from fleetctl.wire.incident import AssignRequest, Incident, IncidentNote
from fleetctl.wire.node import Node, NodePhase
from fleetctl.wire.run import ActionRequest, ApprovalRequest, Run, RunOrder, RunRequest, RunStatus
from runbooks.target import Target, TargetKind, node_target
from runbooks.verb import Verb

log = structlog.get_logger()

FROM_HERE = "from the cockpit"
ORDERS: dict[str, tuple[str, str]] = {
    "pause": ("Pause", "It begins no other step until it is told to go on."),
    "resume": ("Resume", "It goes on with its next step."),
    "skip": ("Skip", "The step that comes next, or that waits, is left out."),
    "cancel": ("Cancel", "It stops before its next step; what it did is undone where it can be."),
}


class Deeds:
    """The calls that change something. `wake`: look again now."""

    def __init__(
        self,
        app: App[None],
        controller: CockpitClient,
        by: str,
        wake: Callable[[], None],
        commands: Collection[str] = (),
    ) -> None:
        """`commands`: those that are no verbs and can be run from here."""
        self._commands = commands
        self._app = app
        self._controller = controller
        self._by = by
        self._wake = wake

    def decide(self, run: Run, approve: bool, comment: str = "", override: str = "") -> None:
        """Approve or deny a proposal, or answer what a run asks. `override`: why, although something is frozen."""
        if run.question:
            question = f"Yes to {run.runbook}?" if approve else f"No to {run.runbook}? What it did is undone."
            details: tuple[str, ...] = (run.question, *(plan_of(run) if approve else ()))
        elif approve:
            question = f"Run {run.runbook}?"
            details = (*plan_of(run), " ", run.reason, run.prediction, run.approval, run.held, _overrides(override))
        else:
            question = f"Deny {run.runbook}? Nothing will be done."
            details = (run.title, run.reason)
        words = ("Yes", "No") if run.question else ("Approve", "Deny")
        decision: Literal["approve", "deny"] = "approve" if approve else "deny"

        async def send(_: str) -> None:
            request = ApprovalRequest(decision=decision, by=self._by, comment=comment, override=override)
            answer = await self._controller.decide(run.id, request)
            log.info("run.decided", run_id=run.id, runbook=run.runbook, decision=decision, by=self._by)
            self._notify(f"{answer.title or answer.runbook}: {status_words(answer)}")

        self._ask(Confirm(question, details, words[0] if approve else words[1]), send)

    def act(self, order: Act, nodes: Sequence[Node]) -> None:
        """Carry out a command, or tell what it would do."""
        request = ActionRequest(
            command=order.command,
            requested_by=self._by,
            reason=order.said.reason or FROM_HERE,
            override=order.said.override,
            dry_run=order.said.dry_run,
        )
        if order.said.dry_run:
            self._dry(f"fleetctl {order.command}", lambda: self._controller.act(request), order.command)
            return

        async def send(_: str) -> None:
            answer = await self._controller.act(request)
            log.info("action.requested", run_id=answer.id, command=order.command, by=self._by)
            self._notify(f"{order.command}: {status_words(answer)}")

        name = order.target.rpartition("/")[2]
        details = (
            f"fleetctl {order.command}",
            *standing_of(order.target, nodes),
            _overrides(order.said.override),
        )
        needs_name = name if is_dangerous(order.verb, order.command) else ""
        question = Confirm(f"{order.verb.name} {order.target}?", details, order.verb.name.capitalize(), name=needs_name)
        self._ask(question, send, order.command)

    def start(self, order: Start, nodes: Sequence[Node]) -> None:
        """Run a page, or tell what it would do."""
        page = RunRequest(
            runbook=order.runbook,
            inputs=dict(order.inputs),
            reason=order.said.reason or FROM_HERE,
            requested_by=self._by,
            dry_run=order.said.dry_run,
            approve=not order.said.dry_run,
            override=order.said.override,
        )
        words = " ".join((order.runbook, *(f"{key}={value}" for key, value in order.inputs.items())))
        if order.said.dry_run:
            self._dry(f"fleetctl runbook run {words}", lambda: self._controller.start_run(page))
            return

        async def send(_: str) -> None:
            answer = await self._controller.start_run(page)
            log.info("run.requested", run_id=answer.id, runbook=order.runbook, by=self._by)
            self._notify(f"{answer.title or words}: {status_words(answer)}")

        details = (
            f"fleetctl runbook run {words}",
            *standing_of(order.target, nodes),
            _overrides(order.said.override),
        )
        self._ask(Confirm(f"Run {words}?", details, "Run", name=order.target), send)

    def try_run(self, run: Run) -> None:
        """What a proposal would do, by a dry run of the same page."""
        if run.runbook == "action" and run.steps:
            request = ActionRequest(command=run.steps[0].command, requested_by=self._by, reason=FROM_HERE, dry_run=True)
            self._dry(run.title, lambda: self._controller.act(request))
            return
        page = RunRequest(
            runbook=run.runbook,
            inputs=run.inputs,
            incident_id=run.incident_id,
            reason=FROM_HERE,
            requested_by=self._by,
            dry_run=True,
        )
        self._dry(run.title or run.runbook, lambda: self._controller.start_run(page))

    def order_run(self, run: Run, what: Literal["pause", "resume", "skip", "cancel"]) -> None:
        """Pause a run, let it go on, skip a step, or cancel it."""
        word, says = ORDERS[what]

        async def send(reason: str) -> None:
            if what == "cancel":
                answer = await self._controller.cancel(run.id, self._by)
            else:
                answer = await self._controller.order_run(run.id, what, RunOrder(by=self._by, comment=reason))
            log.info("run.ordered", run_id=run.id, what=what, by=self._by)
            self._notify(f"{run.title or run.runbook}: {word.lower()}, {status_words(answer)}")

        ask = "" if what in ("resume", "cancel") else "why (kept in the timeline)"
        self._ask(Confirm(f"{word} {run.title or run.runbook}?", (says,), word, ask=ask), send)

    def take(self, incident: Incident, to: str) -> None:
        """Say that this person has it. `to`: whose it is then."""

        async def send(_: str) -> None:
            await self._controller.acknowledge_incident(incident.id, IncidentNote(by=self._by))
            await self._controller.assign_incident(incident.id, AssignRequest(by=self._by, to=to))
            self._notify(f"{incident.id} is yours")

        self._ask(Confirm(f"Take over {incident.id}?", (incident.title, f"It is told as {to}'s."), "Take"), send)

    def handle(self, incident_id: str, to: str | None) -> None:
        """Acknowledge an incident, or say whose it is."""

        async def send() -> None:
            if to is None:
                await self._controller.acknowledge_incident(incident_id, IncidentNote(by=self._by))
            else:
                await self._controller.assign_incident(incident_id, AssignRequest(by=self._by, to=to))
            self._notify(f"{incident_id}: {'seen' if to is None else f'assigned to {to or chr(45)}'}")

        self._send(send())

    def run(self, command: Command, shell: Shell) -> None:
        """A command of fleetctl as it stands: what only looks is run at once, all else after one question."""

        def show() -> None:
            self._app.push_screen(CommandScreen(shell, command, self._wake))

        def answered(text: str | None) -> None:
            if text is not None:
                log.info("command.run", command=command.name, by=self._by)
                show()

        if command.only_looks:
            show()
        else:
            self._app.push_screen(Confirm(f"Run {command.name}?", (command.line,), "Run"), answered)

    def silence(self, what: str, command: Callable[[str], Command], shell: Shell) -> None:
        """Mute an alert, or those of an incident, for a while. `command`: made of why."""
        says = (
            command("WHY").line,
            "What is silenced opens no incident, starts nothing and calls nobody. It is told as silenced here.",
        )

        def answered(why: str | None) -> None:
            if why is not None:
                self._app.push_screen(CommandScreen(shell, command(why or FROM_HERE), self._wake))

        question = Confirm(f"Silence {what} for {SILENCED_FOR}?", says, "Silence", ask="why (others will read it)")
        self._app.push_screen(question, answered)

    # -- how a call goes ----------------------------------------------------------------------------------------

    def _ask(self, question: Confirm, send: Callable[[str], Coroutine[Any, Any, None]], typed: str = "") -> None:
        def answered(text: str | None) -> None:
            if text is not None:
                self._send(send(text), typed)

        self._app.push_screen(question, answered)

    def _dry(self, what: str, call: Callable[[], Coroutine[Any, Any, Run]], typed: str = "") -> None:
        async def send() -> None:
            self._app.push_screen(Told("DRY RUN: nothing was done", dry_run_lines(what, await call())))

        self._send(send(), typed)

    def _send(self, work: Coroutine[Any, Any, None], typed: str = "") -> None:
        self._app.run_worker(self._told(work, typed), name="deed", exit_on_error=True)

    async def _told(self, work: Coroutine[Any, Any, None], typed: str) -> None:
        try:
            await work
        except FleetctlError as error:
            log.warning("request.failed", error=error.message)
            self.tell(error, typed)
        self._wake()

    def tell(self, error: FleetctlError, typed: str = "") -> None:
        """An error is news for a person: it stays until the next one would have gone, and ends with what to type."""
        step = with_next_step(error.message, error.remedy or "", error.exit_code, typed, self._commands)
        self._app.notify(f"{error.message}\n{step}", title="Not done", severity="error", timeout=15, markup=False)

    def _notify(self, text: str) -> None:
        self._app.notify(text, markup=False)


def _overrides(why: str) -> str:
    return f"Although something may be frozen: {why}" if why else ""


def target_of(verb: Verb, node: Node) -> Target:
    """What a key acts on while `node` is chosen."""
    if TargetKind.NODE in verb.kinds:
        return node_target(node.name)
    return Target(TargetKind.POOL, node.pool)


def standing_of(target: str, nodes: Sequence[Node]) -> tuple[str, ...]:
    """How what is acted on stands now, in a line."""
    kind, slash, name = target.partition("/")
    if not slash:
        return tuple(f"{one.name} is {one.phase.value.replace('_', ' ')}" for one in nodes if one.name == target)
    if kind != TargetKind.POOL:
        return ()
    pool = [one for one in nodes if one.pool == name and one.phase is not NodePhase.STOPPED]
    return (f"pool {name}: {len(pool)} nodes, {sum(one.phase is NodePhase.READY for one in pool)} ready",)


def status_words(run: Run) -> str:
    """A run's status; of a proposal that needs several persons, who said yes and how many more it needs."""
    waits = run.approval if run.status is RunStatus.PROPOSED else ""
    return f"{run.status.value}, {waits}" if waits else run.status.value


def dry_run_lines(what: str, run: Run) -> list[str]:
    """What it would do, what is predicted, and what guards would say."""
    lines = [what, ""]
    for step in run.steps:
        lines.append(f"{step.index + 1}. would run: fleetctl {step.command}")
        if step.error:
            lines.append(f"   refused: {step.error}")
    if run.status in (RunStatus.REFUSED, RunStatus.FAILED):
        lines += ["", "It would be refused."]
    told = (("forecast", run.prediction), ("approvals", run.approval), ("held", run.held), ("error", run.error))
    return [*lines, "", *(f"{name}: {text}" for name, text in told if text)]
