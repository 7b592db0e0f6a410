"""The `fleetctl` command: the list of verbs, and how errors become one line and an exit code.

Only the file of the command that is typed is read, and commands import what they need when they run, so that each of
them talks at once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING

import typer

from fleetctl.cli import context
from fleetctl.cli.alias import aliases_to_offer, completed_words, first_word, from_verb, with_alias
from fleetctl.cli.command_table import COMMANDS, MODULES, PANEL_OF
from fleetctl.cli.examples import EXAMPLES
from fleetctl.cli.output import DATA, ListOutput, emitted, print_data, stderr, visible
from fleetctl.cli.remedy import command_meant, kind_left_out, misplaced_option, with_command
from fleetctl.kit.errors import FleetctlError

if TYPE_CHECKING:
    from fleetctl.wire.base import Problem

# What typer raises for words that can't be parsed. It has them from click, in some versions its own copy of it.
USAGE_ERRORS: tuple[type[Exception], ...] = tuple(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException" and issubclass(base, Exception)
)

FIRST_GC_AFTER_OBJECTS, GC_AFTER_OBJECTS = 500_000, 50_000
"""Importing makes many objects and no garbage: looking for some after each 700 is a tenth of a short command's time.
Such a command ends before there are as many as the first says; what runs on looks as often as the second says."""

HELP = """Operate a fleet of LLM serving nodes: see it, find the cause, act safely.

Start with [bold]fleetctl up[/], look with [bold]fleetctl top[/], and read the story with [bold]fleetctl demo[/].

Exit codes: 0 done, 1 failed, 2 bad input, 3 refused by a guard, 4 unknown or unreachable.
"""

_PLAIN_WORDS = {
    "Value error, ": "",
    "Input should be a valid integer, unable to parse string as an integer": "expected a whole number",
    "Input should be a valid number, unable to parse string as a number": "expected a number",
}
"""What a library says of a value, and what people do."""

PAGED = (
    "Paged? [bold]fleetctl get incidents[/] says what is open, [bold]fleetctl diagnose[/] why, and"
    " [bold]fleetctl top[/] shows both and asks before it acts."
)
"""The last line of the help, which is longer than a terminal: what a person sees first."""


def build() -> typer.Typer:
    """The command with all its verbs."""
    return _build_of(MODULES, ())


def build_for(words: Sequence[str]) -> typer.Typer:
    """The command as these words need it: of the one verb they name, all that it has; of others its line of help.

    Reading every file of this folder takes longer than most commands.
    """
    name = first_word(words)
    entry = COMMANDS.get(name or "")
    if entry is None:
        return _build_of((), COMMANDS)
    return _build_of(entry.modules, [other for other in COMMANDS if other != name])


def _for_completion(words: Sequence[str]) -> typer.Typer:
    """As `build_for`; aliases stand beside the commands."""
    app = build_for(words)
    for name, meant in aliases_to_offer(words).items():
        if name not in COMMANDS:
            app.command(name, help=meant)(_stub)
    return app


def _build_of(modules: Sequence[str], stubs: Iterable[str]) -> typer.Typer:
    app = typer.Typer(
        name="fleetctl",
        help=HELP,
        epilog=PAGED,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(context.set_globals)
    for module in modules:
        import_module(f"fleetctl.cli.{module}").register(app)
    made = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    for group in app.registered_groups:
        if group.name is not None and group.name in COMMANDS and not group.help:
            group.help = COMMANDS[group.name].help
    _give_examples(app, "")
    for name in stubs:
        if name not in made:
            app.command(name, help=COMMANDS[name].help)(_stub)
    for command in app.registered_commands:
        command.rich_help_panel = PANEL_OF.get(command.name or "", "Commands")
    for group in app.registered_groups:
        group.rich_help_panel = PANEL_OF.get(group.name or "", "Commands")
    return app


def _give_examples(group: typer.Typer, path: str) -> None:
    """Each command its example, where it has none yet: verbs bring their own."""
    for command in group.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        command.epilog = command.epilog or _example(f"{path}{name}")
    for one in group.registered_groups:
        assert one.typer_instance is not None
        own = one.typer_instance.registered_callback
        if own is not None:
            own.epilog = own.epilog or _example(f"{path}{one.name}")
        _give_examples(one.typer_instance, f"{path}{one.name} ")


def _example(command: str) -> str | None:
    return f"Example: fleetctl {EXAMPLES[command]}" if command in EXAMPLES else None


def _stub() -> None:
    raise AssertionError("a command that was not read is not run")


def main(argv: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    gc.set_threshold(FIRST_GC_AFTER_OBJECTS)
    gc.callbacks.append(_collect_more_often)
    sys.exit(run(argv))


def _collect_more_often(phase: str, _: object) -> None:
    """At the end of the first collection, and then no more."""
    if phase == "stop":
        gc.set_threshold(GC_AFTER_OBJECTS)
        gc.callbacks.remove(_collect_more_often)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; prints errors as one line with the next thing to do.

    A script that asked for JSON or YAML gets the error as an object too, unless it was given its document already.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    emitted.clear()
    try:
        completed = completed_words()
        words = words if completed is not None else with_alias(words)
        app = build_for(words) if completed is None else _for_completion(completed)
        code = app(args=words, prog_name="fleetctl", standalone_mode=False)
    except FleetctlError as error:
        remedy = with_command(error.message, error.remedy, error.exit_code, from_verb(words))
        return _told(_problem(error.message, remedy, error.exit_code), words)
    except USAGE_ERRORS as error:
        return _told(_usage_problem(error, words), words)
    except typer.Abort:
        return _told(
            _problem(
                "not confirmed: nothing was done",
                f"add --yes, or --dry-run to see what it would do: fleetctl {first_word(words)} --help",
                1,
            ),
            words,
        )
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich's word for a reader that went away
            return 0
        return stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away (`| head`): not an error
        return 0
    return code if isinstance(code, int) else 0


def asked_for_data(words: Sequence[str]) -> ListOutput | None:
    """JSON or YAML when these words ask for it; None otherwise. Words that can't be parsed may ask for it too."""
    forms: list[str] = []
    for word, value in pairwise([*words, ""]):
        if word in ("-o", "--output"):
            forms.append(value)
        elif word.startswith(("-o", "--output=")):
            forms.append(word.removeprefix("--output=").removeprefix("-o").removeprefix("="))
    return ListOutput(forms[-1]) if forms and forms[-1] in DATA else None


def _usage_problem(error: Exception, words: Sequence[str]) -> Problem:
    """A command that can't be parsed: what is wrong with it, and where its help is."""
    meant = command_meant(from_verb(words), _kinds)
    if meant is not None:
        return _problem(f"No such command '{first_word(words)}'.", meant, 2)
    verb = from_verb(words)
    if (whole := kind_left_out(verb, _kinds)) is not None:
        return _problem(f"{visible(verb[1][:50])!r} is no kind of thing", whole, 2)
    misplaced = misplaced_option(words[: len(words) - len(verb)], verb)
    if misplaced is not None and f"No such option: {misplaced.option}" in str(error):
        return _problem(
            f"{misplaced.option} is an option of fleetctl: it is given before the command", misplaced.command, 2
        )
    context = getattr(error, "ctx", None)
    message = str(getattr(error, "message", error)) if context is None else error.format_message()  # type: ignore[attr-defined]
    path = context.command_path if context is not None else "fleetctl"
    for told, plain in _PLAIN_WORDS.items():
        message = message.replace(told, plain)
    return _problem(" ".join(message.split()), f"{path} --help", 2)


def _kinds() -> Iterable[str]:
    from fleetctl.cli.kinds import Kind

    return [kind.value for kind in Kind]


def _problem(error: str, remedy: str | None, exit_code: int) -> Problem:
    from fleetctl.wire.base import Problem

    return Problem(error=error, remedy=remedy, exit_code=exit_code)


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
