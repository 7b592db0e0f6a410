"""The `fleetctl` command: the list of verbs, and how errors become one line and an exit code.

Commands import what they need when they run, so that `fleetctl --help` and completion stay quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from fleetctl.cli import (
    act,
    alerts,
    audit,
    autoscale,
    config,
    content,
    context,
    demo,
    describe,
    diagnose,
    diff,
    discover,
    freeze,
    get,
    hosts,
    incident,
    lifecycle,
    logs,
    manifests,
    prefix,
    receipt,
    replay,
    rollout,
    route,
    runbook,
    servers,
    shadow,
    silence,
    status,
    token,
    top,
    tree,
)
from fleetctl.cli.output import DATA, ListOutput, emitted, print_data, stderr, visible
from fleetctl.kit.errors import FleetctlError
from fleetctl.wire import Problem

# What typer raises for words that can't be parsed. It has them from click, in some versions its own copy of it.
USAGE_ERRORS: tuple[type[Exception], ...] = tuple(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException" and issubclass(base, Exception)
)

HELP = """Operate a fleet of LLM serving nodes: see it, find the cause, act safely.

Start with [bold]fleetctl up[/], look with [bold]fleetctl top[/], and read the story with [bold]fleetctl demo[/].

Exit codes: 0 done, 1 failed, 2 bad input, 3 refused by a guard, 4 unknown or unreachable.
"""


def build() -> typer.Typer:
    """The command with all its verbs."""
    app = typer.Typer(
        name="fleetctl",
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(context.set_globals)
    for module in (
        lifecycle,
        demo,
        status,
        get,
        describe,
        diff,
        discover,
        hosts,
        logs,
        top,
        act,
        route,
        shadow,
        rollout,
        freeze,
        autoscale,
        audit,
        token,
        receipt,
        diagnose,
        runbook,
        incident,
        replay,
        tree,
        alerts,
        content,
        silence,
        prefix,
        config,
        manifests,
        servers,
    ):
        module.register(app)
    return app


def main(argv: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; prints errors as one line with the next thing to do.

    A script that asked for JSON or YAML gets the error as an object too, unless it was given its document already.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    emitted.data = False
    try:
        code = build()(args=words, prog_name="fleetctl", standalone_mode=False)
    except FleetctlError as error:
        return _told(Problem(error=error.message, remedy=error.remedy, exit_code=error.exit_code), words)
    except USAGE_ERRORS as error:
        return _told(_usage_problem(error), words)
    except typer.Abort:
        return _told(Problem(error="not confirmed: nothing was done", exit_code=1), words)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away (`| head`): not an error
        return 0
    return code if isinstance(code, int) else 0


def asked_for_data(words: Sequence[str]) -> ListOutput | None:
    """JSON or YAML when these words ask for it; None otherwise. Words that can't be parsed may ask for it too."""
    forms: list[str] = []
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word in ("-o", "--output"):
            forms.append(value)
        elif word.startswith(("-o", "--output=")):
            forms.append(word.removeprefix("--output=").removeprefix("-o").removeprefix("="))
    return ListOutput(forms[-1]) if forms and forms[-1] in DATA else None


def _usage_problem(error: Exception) -> Problem:
    """A command that can't be parsed: what is wrong with it, and where its help is."""
    context = getattr(error, "ctx", None)
    message = str(getattr(error, "message", error)) if context is None else error.format_message()  # type: ignore[attr-defined]
    path = context.command_path if context is not None else "fleetctl"
    return Problem(error=" ".join(message.split()), remedy=f"{path} --help", exit_code=2)


def _told(problem: Problem, words: Sequence[str]) -> int:
    form = asked_for_data(words)
    if form is not None and not emitted.data:
        print_data(problem.model_dump(mode="json"), form)
    console = stderr()
    if problem.error:  # typer printed the help of a group that was called without a command
        console.print(f"[bold red]error:[/] {_plain(problem.error)}")
    if problem.error and problem.remedy:
        console.print(f"  [dim]try:[/] {_plain(problem.remedy)}")
    return problem.exit_code


def _plain(text: str) -> str:
    """Text from outside may hold square brackets, which are not markup, and control characters."""
    return visible(text).replace("[", r"\[")
