"""Verbs that change something: each is a journaled run, guarded by the controller, watched here to its end.

The commands are made from the table of verbs, which needs no controller and loads nothing heavy.
"""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetctl.cli.completion import complete_node
from fleetctl.cli.context import call, command_group, whoami
from fleetctl.cli.output import Output, OutputOption, print_data, stderr, stdout, styled
from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError, UnreachableError
from fleetctl.wire.run import IN_COMMAND, ActionRequest, Run, RunRequest, RunStatus, StepRecord
from runbooks.node_selector import LABELS
from runbooks.target import TargetKind, written_forms
from runbooks.verb import Option, Verb
from runbooks.verbs import VERBS

if TYPE_CHECKING:
    from fleetctl.client import ControllerClient

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and what guards say; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")]
AsksNothing = Annotated[bool, typer.Option("--yes", "-y", help="It asks nothing: taken as where others ask.")]
"""Of a command that is an answer itself, or mends: at 03:00 nobody remembers which of them ask."""
Deadline = Annotated[str, typer.Option("--deadline", help="Let requests finish this long, then move the rest.")]

Reason = Annotated[str, typer.Option("--reason", help="Why; others will read it.")]
Override = Annotated[str, typer.Option("--override", help="Why to act although something is frozen; recorded.")]
ASKED_HERE = "asked for on the command line"
POLL_S = 0.25
HEADS_ELSEWHERE = frozenset({"notify"})  # verbs beside which another file has commands: `notify test`


def register(app: typer.Typer) -> None:
    """Add one command for each verb of the table, and `replace`, which is a page."""
    heads = {verb.name.split()[0] for verb in VERBS.values() if " " in verb.name} | HEADS_ELSEWHERE
    for verb in VERBS.values():
        *parents, name = verb.name.split()
        told: dict[str, Any] = {"help": verb.help, "epilog": f"Example: fleetctl {verb.example}"}
        if not parents and name in heads:
            # `shed --below ...` beside `shed remove`: the group does it itself when no command of it follows.
            command_group(app, name).callback(invoke_without_command=True, **told)(verb_command(verb, is_group=True))
        else:
            (command_group(app, parents[0]) if parents else app).command(name, **told)(verb_command(verb))

    @app.command()
    def replace(
        node: Annotated[
            str,
            typer.Argument(help="Name of the node; `fleetctl get nodes` lists them.", autocompletion=complete_node),
        ],
        deadline: Deadline = "2s",
        override: Override = "",
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
            override=override,
            dry_run=dry_run,
            approve=True,
        )
        show_run(call(lambda client: start_and_follow(client, request, output)), output)


def verb_command(verb: Verb, *, is_group: bool = False) -> Callable[..., None]:
    """A Typer command for a verb: its target, its options with their defaults, and what every verb takes.

    `is_group`: other commands may follow its name, so it takes no target but the one that is meant without.
    """

    def command(
        target: str = "",
        *,
        context: typer.Context | None = None,
        reason: str,
        override: str,
        dry_run: bool,
        yes: bool,
        output: Output,
        **given: Any,
    ) -> None:
        if context is not None and context.invoked_subcommand is not None:
            return
        words = [*verb.name.split(), *([target] if target else [])]
        selected = _selector_words(given)
        if verb.takes_selector and bool(target) is bool(selected):
            remedy = f"fleetctl {verb.name} NODE, or fleetctl {verb.name} --pool POOL"
            raise BadInputError(f"{verb.name}: name a node or labels" + (", not both" if target else ""), remedy=remedy)
        words += selected
        for option in verb.options:
            value = given[_parameter(option)]
            if value is True:
                words.append(option.name)
            elif value not in (None, False):
                words += [option.name, str(value)]
            elif option.required:  # of a group, whose commands must do without it; else the parser asks for it
                raise BadInputError(f"{verb.name}: {option.name} is missing", remedy=f"fleetctl {verb.example}")
        command_line = shlex.join(words)
        if selected and not (dry_run or yes):
            _tell_meant(command_line)
        perform(command_line, reason=reason, override=override, dry_run=dry_run, yes=yes, output=output)

    annotations, defaults = _parameters_of(verb, is_group=is_group)
    command.__annotations__ = dict(annotations)
    empty, keyword_only = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, keyword_only, default=defaults.get(name, empty), annotation=annotation)
            for name, annotation in annotations.items()
        ]
    )
    return command


def _parameters_of(verb: Verb, *, is_group: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Typer's annotations of what the verb takes, in the order of its help; defaults of what may be left out."""
    annotations: dict[str, Any] = {}
    defaults: dict[str, Any] = {
        "reason": ASKED_HERE,
        "override": "",
        "dry_run": False,
        "yes": False,
        "output": Output.table,
    }
    if is_group:
        annotations["context"] = typer.Context
    elif verb.kinds != (TargetKind.FLEET,):
        annotations["target"] = _target_of(verb)
        if verb.takes_selector or verb.default_target:
            defaults["target"] = verb.default_target
    if verb.takes_selector and not is_group:
        for name, (annotation, default) in _SELECTOR_OPTIONS.items():
            annotations[name], defaults[name] = annotation, default
    for option in verb.options:
        help_text = f"{option.help[0].upper()}{option.help[1:]}."
        is_flag = option.kind == "flag"
        annotations[_parameter(option)] = Annotated[
            bool if is_flag else str if option.required and not is_group else str | None,
            typer.Option(option.name, help=help_text, metavar=None if is_flag else option.kind.upper()),
        ]
        if is_group or not option.required:
            defaults[_parameter(option)] = option.default_text if not is_flag else False
    annotations |= {"reason": Reason, "override": Override, "dry_run": DryRun, "yes": Yes, "output": OutputOption}
    return annotations, defaults


def _target_of(verb: Verb) -> Any:
    what = " or ".join(kind.value for kind in verb.kinds)
    help_text = f"Name of the {what}" + ("; `fleetctl get nodes` lists them." if verb.needs_target else ".")
    if TargetKind.ROLLOUT in verb.kinds:
        help_text = "Name of the pool; `fleetctl get pools` lists them."
    if TargetKind.HOST in verb.kinds:
        help_text = "Name of the machine; `fleetctl describe node NAME` says on which one a node is."
    if TargetKind.ROUTE in verb.kinds:
        help_text = "Id of the traffic rule; `fleetctl get traffic-rules` lists them."
    completed = complete_node if TargetKind.NODE in verb.kinds else None
    return Annotated[str, typer.Argument(help=help_text, metavar=written_forms(verb.kinds), autocompletion=completed)]


_SELECTOR_OPTIONS: dict[str, tuple[Any, Any]] = {
    **{
        label: (Annotated[str | None, typer.Option(f"--{label}", help=f"All nodes of this {label}.")], None)
        for label in LABELS
    },
    "labels": (Annotated[list[str] | None, typer.Option("-l", help="All nodes with key=value or key!=value.")], None),
    "at_once": (Annotated[int | None, typer.Option("--at-once", help="How many at the same time.")], None),
    "limit": (Annotated[int | None, typer.Option("--limit", help="Refused when more are meant; 16.")], None),
}


def _selector_words(given: dict[str, Any]) -> list[str]:
    words = [word for label in LABELS if given.get(label) for word in (f"--{label}", given[label])]
    words += [word for text in given.get("labels") or () for word in ("-l", text)]
    counts = (("--at-once", given.get("at_once")), ("--limit", given.get("limit")))
    return words + [word for name, count in counts if count is not None for word in (name, str(count))]


def _tell_meant(command: str) -> None:
    """Say which nodes labels mean, before anybody is asked whether to go on."""
    request = ActionRequest(command=command, reason=ASKED_HERE, requested_by=whoami(), dry_run=True)
    run: Run = call(lambda client: client.act(request))
    stderr().print(f"means {', '.join(step.target for step in run.steps)}", markup=False)


def _parameter(option: Option) -> str:
    """Its name in Python, where `from` is a keyword."""
    return f"{option.key}_"


def perform(
    command: str, *, reason: str = ASKED_HERE, override: str = "", dry_run: bool, yes: bool, output: Output
) -> None:
    """Carry out one command through the controller and exit with its outcome."""
    confirm(command, yes=yes or dry_run)
    request = ActionRequest(
        command=command, reason=reason[:2000], override=override[:2000], requested_by=whoami(), dry_run=dry_run
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
            if run.question and told.get(("ask", 0)) != run.question:
                told["ask", 0] = run.question
                answers = f"fleetctl runbook approve {run.id}, or deny"
                console.print(f"  ? {run.question}  ({answers})", markup=False)
            if run.status.is_terminal or run.status is RunStatus.PROPOSED:
                return run
            await asyncio.sleep(POLL_S)
            run = await client.get_run(run.id)
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
        if run.prediction:
            stdout().print(f"  {run.prediction}", markup=False)
        for step in run.steps:
            counts = {
                name: number
                for name, number in step.receipt.items()
                if isinstance(number, int) and not isinstance(number, bool) and name not in IN_COMMAND
            }
            if (told := step.receipt.get("told")) and not run.dry_run:
                stdout().print(f"  {told}", markup=False)
            if counts and not run.dry_run and "summary" not in step.receipt:
                stdout().print(f"  {step.title}: " + ", ".join(f"{k} {v}" for k, v in counts.items()))
            if isinstance(summary := step.receipt.get("summary"), str):
                stdout().print(f"  {step.title}: {summary}; fleetctl describe receipt {step.receipt.get('receipt')}")
        told = styled("dry run: nothing was changed" if run.dry_run else run.status.value)
        stdout().print(f"run {run.id} ", told, f"  {run.error}" if run.error else "", sep="")
        if run.status is RunStatus.PROPOSED:
            if run.approval:
                stdout().print(f"  approvals: {run.approval}", markup=False)
            stdout().print(f"  to approve: fleetctl runbook approve {run.id}", markup=False)
    if run.status is RunStatus.REFUSED or (run.dry_run and run.error):
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
