"""`runbook`: read pages, start runs, answer approvals."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fleetctl.cli.act import AsksNothing, DryRun, Override, Yes, confirm, follow, show_run, start_and_follow
from fleetctl.cli.completion import complete_run, complete_runbook
from fleetctl.cli.context import call, current, whoami
from fleetctl.cli.describe import print_page
from fleetctl.cli.kinds import VIEWS, Kind
from fleetctl.cli.output import (
    DATA,
    ListOutput,
    ListOutputOption,
    Output,
    OutputOption,
    print_data,
    print_rows,
    stdout,
    visible,
)
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.run import ApprovalRequest, Run, RunOrder, RunRequest
from fleetctl.wire.runbook import RunbookInfo

if TYPE_CHECKING:
    from fleetctl.client import ControllerClient

RunId = Annotated[
    str, typer.Argument(help="Id of the run; `fleetctl get runs` lists them.", autocompletion=complete_run)
]
RunbookName = Annotated[str, typer.Argument(help="Name of the runbook.", autocompletion=complete_runbook)]
Comment = Annotated[str, typer.Option("--comment", help="Why; kept with the run.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Runbooks: pages that people read and automation runs.", no_args_is_help=True)
    app.add_typer(group, name="runbook")

    @group.command("list")
    def list_runbooks(output: ListOutputOption = ListOutput.table) -> None:
        """List the runbooks and the causes they are for."""
        view = VIEWS[Kind.runbooks]
        print_rows(call(lambda c: c.runbooks()), view.columns, output, empty=view.empty)

    @group.command("show")
    def show(
        name: RunbookName,
        output: OutputOption = Output.table,
    ) -> None:
        """Print a runbook's page."""
        info: RunbookInfo = call(lambda c: c.runbook(name))
        if output in DATA:
            print_data(info.model_dump(mode="json"), output)
        else:
            print_page(info)

    @group.command("run")
    def run(
        name: RunbookName,
        inputs: Annotated[
            list[str] | None, typer.Argument(help="Its inputs, as key=value.", metavar="[KEY=VALUE]...")
        ] = None,
        incident: Annotated[str | None, typer.Option("--incident", help="The incident it is for.")] = None,
        override: Override = "",
        dry_run: DryRun = False,
        yes: Yes = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Run a runbook now, with your approval, and watch it to its end."""
        request = RunRequest(
            runbook=name,
            inputs=_pairs(inputs or []),
            incident_id=incident,
            reason="asked for on the command line",
            requested_by=whoami(),
            override=override[:2000],
            dry_run=dry_run,
            approve=True,
        )
        confirm(f"run {name} {' '.join(inputs or [])}".rstrip(), yes=yes or dry_run)
        show_run(call(lambda c: start_and_follow(c, request, output)), output)

    @group.command("approve")
    def approve(
        run_id: RunId,
        comment: Comment = "",
        override: Override = "",
        yes: AsksNothing = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Approve a proposed run, or answer yes to its question, and watch it to its end."""
        answer = ApprovalRequest(decision="approve", by=whoami(), comment=comment, override=override[:2000])
        show_run(call(lambda c: _decide(c, run_id, answer, output)), output)

    @group.command("deny")
    def deny(
        run_id: RunId, comment: Comment = "", yes: AsksNothing = False, output: OutputOption = Output.table
    ) -> None:
        """Deny a proposed run, or answer no to its question: what it did is undone. It ends there."""
        answer = ApprovalRequest(decision="deny", by=whoami(), comment=comment)
        _print_ended(call(lambda c: c.decide(run_id, answer)), output)

    @group.command("cancel")
    def cancel(run_id: RunId, yes: AsksNothing = False, output: OutputOption = Output.table) -> None:
        """Stop a run before its next step. The step in progress is finished first."""
        _print_ended(call(lambda c: c.cancel(run_id, whoami())), output)

    @group.command("pause")
    def pause(run_id: RunId, comment: Comment = "", output: OutputOption = Output.table) -> None:
        """Let a run begin no further step until it is resumed. The step in progress is finished first."""
        _order(run_id, "pause", comment, output)

    @group.command("resume")
    def resume(run_id: RunId, comment: Comment = "", output: OutputOption = Output.table) -> None:
        """Let a paused run go on."""
        _order(run_id, "resume", comment, output)

    @group.command("skip")
    def skip(run_id: RunId, comment: Comment = "", output: OutputOption = Output.table) -> None:
        """Skip the step of a run that comes next, or that asks, waits or is tried again; the run goes on behind it."""
        _order(run_id, "skip", comment, output)

    @group.command("history")
    def history(
        name: Annotated[
            str | None, typer.Argument(help="Name of the runbook; default: all.", autocompletion=complete_runbook)
        ] = None,
        output: ListOutputOption = ListOutput.table,
    ) -> None:
        """List the runs of a runbook, newest first, with who asked for each and how it ended."""
        view = VIEWS[Kind.runs]
        runs = [run for run in call(lambda c: c.runs()) if not run.dry_run and name in (None, run.runbook)]
        print_rows(runs, view.columns, output, empty=f"no run of {name}" if name else "no runs")

    @group.command("lint")
    def lint(
        files: Annotated[
            list[Path] | None,
            typer.Argument(metavar="[FILE]...", help="Pages; without one, ours and those of your content folders."),
        ] = None,
    ) -> None:
        """Check pages without a controller: commands, inputs, expressions, pages in pages, causes. Exit 2 on an error.

        They are laid over the built-in pages and those of the settings, by name.
        """
        problems = _lint(files or [], list(current().settings().content))
        for problem in problems:
            stdout().print(visible(problem), markup=False)
        if problems:
            raise typer.Exit(2)
        stdout().print(
            f"{len(files)} page{'s' * (len(files) > 1)}: no error" if files else "all pages: no error", markup=False
        )


def _lint(files: list[Path], folders: list[Path]) -> list[str]:
    """What is wrong with these pages, or with what a cause says of them."""
    from tempfile import TemporaryDirectory

    from fleetctl.controller.content.content import BadContentError
    from fleetctl.controller.content.load import load_content

    with TemporaryDirectory() as scratch:
        pages = Path(scratch) / "pages"
        pages.mkdir()
        where: dict[str, str] = {}
        for file in files:
            copy = pages / file.name
            if file.suffix != ".md":
                raise BadInputError(f"{file}: no page: its name does not end in .md", remedy="name Markdown files")
            if str(copy) in where:
                raise BadInputError(
                    f"{file} and {where[str(copy)]}: two pages of one name", remedy="give one at a time"
                )
            try:
                copy.write_bytes(file.read_bytes())
            except OSError as error:
                raise BadInputError(f"{file}: {error.strerror}", remedy="name files that can be read") from error
            where[str(copy)] = str(file)
        try:
            load_content([*folders, Path(scratch)] if files else folders)
        except BadContentError as error:
            told = [str(problem) for problem in error.problems if problem.severity == "error"]
            return [functools.reduce(lambda text, pair: text.replace(*pair), where.items(), text) for text in told]
    return []


def _order(run_id: str, what: Literal["pause", "resume", "skip"], comment: str, output: Output) -> None:
    order = RunOrder(by=whoami(), comment=comment[:2000])
    run = call(lambda c: c.order_run(run_id, what, order))
    if output in DATA:
        print_data(run.model_dump(mode="json"), output)
        return
    state = f"paused by {run.paused_by}" if run.paused_by else run.status.value
    stdout().print(f"run {run.id} {state}", markup=False)


def _print_ended(run: Run, output: Output) -> None:
    if output in DATA:
        print_data(run.model_dump(mode="json"), output)
    else:
        is_ending = run.cancelled_by and not run.status.is_terminal
        ends = f": it ends before its next step, as {run.cancelled_by} asked" if is_ending else ""
        stdout().print(f"run {run.id} {run.status.value}{ends}", markup=False)


async def _decide(client: ControllerClient, run_id: str, answer: ApprovalRequest, output: Output) -> Run:
    return await follow(client, await client.decide(run_id, answer), output)


def _pairs(words: list[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise BadInputError(f"{word!r}: expected key=value", remedy="`fleetctl runbook show NAME` lists the inputs")
        pairs[key] = value
    return pairs
