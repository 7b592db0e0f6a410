"""Verbs that change something: each is a journaled run, guarded by the controller, watched here to its end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli.context import call, whoami
from fleetctl.cli.output import Output, OutputOption, print_data, stderr, stdout, styled
from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError, UnreachableError
from fleetctl.wire import ActionRequest, Run, RunRequest, RunStatus, StepRecord

if TYPE_CHECKING:
    from fleetctl.client import ControllerClient

NodeName = Annotated[str, typer.Argument(help="Name of the node; `fleetctl get nodes` lists them.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and what guards say; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")]
Wait = Annotated[str, typer.Option("--wait", help="How long to wait until it is ready, e.g. 120s.")]
Deadline = Annotated[str, typer.Option("--deadline", help="Let requests finish this long, then move the rest.")]

POLL_S = 0.25


def register(app: typer.Typer) -> None:
    @app.command()
    def cordon(node: NodeName, dry_run: DryRun = False, yes: Yes = False, output: OutputOption = Output.table) -> None:
        """Send no new requests to a node; what runs there goes on."""
        perform(f"cordon {node}", dry_run=dry_run, yes=yes, output=output)

    @app.command()
    def uncordon(
        node: NodeName, dry_run: DryRun = False, yes: Yes = False, output: OutputOption = Output.table
    ) -> None:
        """Let a cordoned or drained node take requests again."""
        perform(f"uncordon {node}", dry_run=dry_run, yes=yes, output=output)

    @app.command()
    def drain(
        node: NodeName,
        deadline: Deadline = "30s",
        dry_run: DryRun = False,
        yes: Yes = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Cordon a node, let its requests finish or move, and show the receipt."""
        perform(f"drain {node} --deadline {deadline}", dry_run=dry_run, yes=yes, output=output)

    @app.command()
    def restart(
        node: NodeName,
        wait: Wait = "120s",
        dry_run: DryRun = False,
        yes: Yes = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Stop and start a drained node under its own name."""
        perform(f"restart {node} --wait {wait}", dry_run=dry_run, yes=yes, output=output)

    @app.command()
    def replace(
        node: NodeName,
        deadline: Deadline = "2s",
        dry_run: DryRun = False,
        yes: Yes = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Start a replacement, wait until it is ready, then drain and stop the node (runbook replace-node)."""
        confirm(f"replace {node}", yes=yes or dry_run)
        request = RunRequest(
            runbook="replace-node",
            inputs={"node": node, "deadline": deadline},
            reason="asked for on the command line",
            requested_by=whoami(),
            dry_run=dry_run,
            approve=True,
        )
        show_run(call(lambda client: start_and_follow(client, request, output)), output)


def perform(command: str, *, dry_run: bool, yes: bool, output: Output) -> None:
    """Carry out one command through the controller and exit with its outcome."""
    confirm(command, yes=yes or dry_run)
    request = ActionRequest(
        command=command, reason="asked for on the command line", requested_by=whoami(), dry_run=dry_run
    )

    async def act(client: ControllerClient) -> Run:
        return await follow(client, await client.act(request), output)

    show_run(call(act), output)


async def start_and_follow(client: ControllerClient, request: RunRequest, output: Output) -> Run:
    """Start a runbook and wait for its end, as `follow`."""
    return await follow(client, await client.start_run(request), output)


def confirm(what: str, *, yes: bool) -> None:
    """Ask on a terminal; refuse to guess anywhere else."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInputError(f"{what}: needs confirmation, and there is no terminal to ask on", remedy="add --yes")
    typer.confirm(f"{what}?", abort=True, err=True)


async def follow(client: ControllerClient, run: Run, output: Output) -> Run:
    """Wait for the run's end, telling on stderr what happens. Ctrl-C leaves the run going: it is the controller's."""
    import asyncio

    told: dict[tuple[str, int], str] = {}
    console = stderr()
    try:
        while True:
            for step in run.steps:
                key = (step.phase, step.index)
                if output is Output.table and step.status != "pending" and told.get(key) != step.status:
                    told[key] = step.status
                    console.print(_step_line(step))
            if run.status.is_terminal or run.status is RunStatus.PROPOSED:
                return run
            await asyncio.sleep(POLL_S)
            run = await client.run(run.id)
    except asyncio.CancelledError:
        console.print(f"run {run.id} goes on without you: fleetctl describe run {run.id}")
        raise


def show_run(run: Run, output: Output) -> None:
    """Print the run's end and raise its exit code."""
    if output in (Output.json, Output.yaml):
        print_data(run.model_dump(mode="json"), output)
    else:
        if run.dry_run:
            for step in run.steps:
                stdout().print(f"  would: fleetctl {step.command}", style="dim" if sys.stdout.isatty() else "")
                for key, value in step.receipt.items():
                    stdout().print(f"         {key}: {value}")
        for step in run.steps:
            counts = {k: v for k, v in step.receipt.items() if isinstance(v, int) and not isinstance(v, bool)}
            if counts and not run.dry_run:
                stdout().print(f"  {step.title}: " + ", ".join(f"{k} {v}" for k, v in counts.items()))
        stdout().print(f"run {run.id} ", styled(run.status.value), f"  {run.error}" if run.error else "", sep="")
    if run.status is RunStatus.REFUSED:
        raise RefusedError(run.error or "refused by a guard", remedy=f"fleetctl describe run {run.id}")
    if run.status.is_terminal and run.status is not RunStatus.SUCCEEDED:
        raise FleetctlError(run.error or f"run ended {run.status}", remedy=f"fleetctl describe run {run.id}")
    if not run.status.is_terminal and run.status is not RunStatus.PROPOSED:
        raise UnreachableError(f"run {run.id} is {run.status}", remedy=f"fleetctl describe run {run.id}")


def _step_line(step: StepRecord) -> str:
    mark = {"running": "…", "done": "✓", "failed": "✗", "skipped": "-"}.get(step.status, " ")
    took = ""
    if step.started_at is not None and step.ended_at is not None:
        took = f"  ({step.ended_at - step.started_at:.1f}s)"
    return f"  {mark} {step.title}: fleetctl {step.command}{took}".replace("[", r"\[")
