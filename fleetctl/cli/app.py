"""The `fleetctl` command: the list of verbs, and how errors become one line and an exit code.

Commands import what they need when they run, so that `fleetctl --help` and completion stay quick.
"""

from __future__ import annotations

import sys

import typer

from fleetctl.cli import (
    act,
    alerts,
    config,
    content,
    context,
    demo,
    diagnose,
    get,
    incident,
    lifecycle,
    logs,
    runbook,
    servers,
    silence,
    status,
    top,
)
from fleetctl.cli.output import stderr, visible
from fleetctl.kit.errors import FleetctlError

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
        logs,
        top,
        act,
        diagnose,
        runbook,
        incident,
        alerts,
        content,
        silence,
        config,
        servers,
    ):
        module.register(app)
    return app


def main(argv: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    sys.exit(run(argv))


def run(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit code; prints errors as one line with the next thing to do."""
    try:
        build()(args=argv, prog_name="fleetctl")
    except FleetctlError as error:
        _print_error(error.message, error.remedy)
        return error.exit_code
    except SystemExit as stop:  # help, usage errors (2) and interrupts, which typer prints itself
        return stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away (`| head`): not an error
        return 0
    return 0


def _print_error(message: str, remedy: str | None) -> None:
    console = stderr()
    console.print(f"[bold red]error:[/] {_plain(message)}")
    if remedy:
        console.print(f"  [dim]try:[/] {_plain(remedy)}")


def _plain(text: str) -> str:
    """Text from outside may hold square brackets, which are not markup, and control characters."""
    return visible(text).replace("[", r"\[")
