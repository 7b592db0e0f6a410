"""The table of commands says what their files say, and so only the file of the command that is typed is read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fleetctl.cli import context
from fleetctl.cli.alias import first_word
from fleetctl.cli.app import build, build_for
from fleetctl.cli.command_table import COMMANDS
from fleetctl.cli.examples import EXAMPLES
from fleetctl.cli.kinds import Kind
from fleetctl.settings.document import default_text, field_of
from runbooks.verbs import VERBS
from tests.fixtures import ROOT
from tests.fixtures.cockpit import make_node
from tests.fixtures.recorded_controller import recorded_controller


@pytest.fixture(scope="module")
def whole() -> Any:
    return typer.main.get_command(build())


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that does something by itself, with its words."""
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*path, name))
    if path and (not hasattr(command, "commands") or command.invoke_without_command):
        yield " ".join(path), command


def test_the_table_has_every_command_with_its_own_first_line(whole: Any) -> None:
    made = {name: (command.help or "").partition("\n")[0] for name, command in whole.commands.items()}
    assert made == {name: entry.help for name, entry in COMMANDS.items()}


def test_a_command_read_alone_is_the_command_read_with_all(whole: Any) -> None:
    for name, command in whole.commands.items():
        alone: Any = typer.main.get_command(build_for([name]))
        assert set(alone.commands) == set(whole.commands), name
        known = [one.opts for one in command.params]
        assert [one.opts for one in alone.commands[name].params] == known, name
        assert list(getattr(alone.commands[name], "commands", ())) == list(getattr(command, "commands", ())), name


def test_flags_before_the_verb_say_what_their_settings_say(whole: Any) -> None:
    flags = {one.opts[0]: one for one in whole.params}
    for flag, key in (("--state-dir", "state_dir"), ("--controller", "controller.url"), ("--log-level", "log.level")):
        field = field_of(key)
        assert (flags[flag].help, flags[flag].show_default) == (field.description, default_text(field))
    with_value = {one.opts[0] for one in whole.params if not one.is_flag}
    assert with_value - {"--install-completion", "--show-completion"} == context.OPTIONS_WITH_VALUE


@pytest.mark.parametrize(
    ("line", "verb"),
    [
        ("get nodes", "get"),
        ("--config f.yaml --state-dir=/x drain node-1", "drain"),
        ("--controller http://a:1 get", "get"),
        ("--version", None),
        ("", None),
    ],
)
def test_the_verb_is_found_behind_the_options(line: str, verb: str | None) -> None:
    assert first_word(line.split()) == verb


def test_every_command_has_an_example_of_itself(whole: Any) -> None:
    commands = dict(leaves(whole))
    lacking = [name for name, command in commands.items() if not command.epilog]
    assert lacking == []
    assert set(EXAMPLES) <= set(commands), "an example of what there isn't"
    for name, command in commands.items():
        example = command.epilog.removeprefix("Example: fleetctl ")
        example = example.removeprefix("--config fleetctl.yaml ")
        assert example == name or example.startswith(f"{name} "), name


def test_every_command_that_changes_the_fleet_takes_dry_run(whole: Any) -> None:
    options = {name: {flag for one in command.params for flag in one.opts} for name, command in leaves(whole)}
    lacking = [name for name in ("replace", "runbook run", *VERBS) if "--dry-run" not in options[name]]
    assert lacking == []


def completed(shell: str, line: str, *more: str) -> list[str]:
    words = line.split(" ")
    variables = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    done = subprocess.run(
        [sys.executable, "-m", "fleetctl.cli"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "_FLEETCTL_COMPLETE": f"complete_{shell}", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return [word.strip("\"()'").partition("\t")[0] for word in done.stdout.split("\n")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_tab_offers_commands_kinds_and_names_that_there_are(shell: str) -> None:
    answers = {"/v1/nodes": [make_node("node-1"), make_node("node-2")], "/v1/incidents": []}
    with recorded_controller(answers) as controller:
        given = f"fleetctl --controller {controller.url}"
        for line, wanted in (
            ("fleetctl get no", Kind.nodes.value),
            ("fleetctl explain nodes.kv", "nodes.kv_ratio"),
            (f"{given} drain node-", "node-2"),
        ):
            assert any(wanted in word for word in completed(shell, line)), line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_tab_offers_aliases_and_what_comes_behind_one(shell: str, tmp_path: Path) -> None:
    config = tmp_path / "f.yaml"
    config.write_text(
        "aliases: {bad: get nodes -l phase!=ready, d: describe node, odd: frobnicate, half: get 'nodes}\n"
    )
    with recorded_controller({"/v1/nodes": [make_node("node-1"), make_node("node-2")]}) as controller:
        given = f"fleetctl --config {config} --controller {controller.url}"
        for line, wanted in (
            (f"{given} ba", "bad"),
            (f"{given} d node-", "node-2"),
            (f"{given} d ", "node-1"),
            (f"{given} bad --sort-b", "--sort-by"),
            (f"{given} ge", "get"),
        ):
            assert any(wanted in word for word in completed(shell, line)), line
        for line in (f"{given} odd ", f"{given} half ", f"{given} none "):
            assert not any("node-" in word or "Error" in word for word in completed(shell, line)), line


def test_a_command_reads_no_file_of_another_and_help_reads_no_settings() -> None:
    heavy = "{'fleetctl.settings.tree', 'fleetctl.wire', 'fleetctl.client', 'httpx', 'yaml', 'structlog'}"
    for words, wrong in (
        (["--help"], heavy),
        (["--version"], heavy),
        (
            ["token", "--help"],
            "{'fleetctl.cli.get', 'fleetctl.settings.tree', 'runbooks.verbs', 'fleetctl.cli.alerts'}",
        ),
    ):
        code = (
            f"import sys\nfrom fleetctl.cli.app import run\nrun({words!r})\n"
            f"read = {wrong} & set(sys.modules)\nsys.exit(f'read {{read}}' if read else 0)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
