"""The table of verbs: what every declaration must hold, and that all who read it read the same."""

from __future__ import annotations

import inspect
import pkgutil
import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer.main

from fleetctl.cli.app import build
from fleetctl.tui.app import Cockpit
from fleetctl.wire.runbook import VerbInfo
from runbooks import rule_verb, verbs
from runbooks.command import parse_command
from runbooks.fleet_view import FleetView
from runbooks.plan import plan_command, resolve_plan
from runbooks.ports import Effects, NodeFacts, RevisionFacts, RolloutFacts, WayOut
from runbooks.run import ACTION
from runbooks.verb import Verb
from runbooks.verbs import VERBS

NODES = [
    NodeFacts(f"node-{i}", "decode", "demo", "r2" if i == 5 else "r1", float(i), host="gpu-7") for i in range(1, 6)
]
WAYS = (WayOut("far", frozenset({"demo"}), 0.5),)
ROLLOUTS = {
    "decode": RolloutFacts("r2", earlier="r1"),
    "chat": RolloutFacts("r2", "r1", "canary", (0.05, 0.5, 1.0), 0, "r2"),
}
REVISIONS = RevisionFacts(frozenset({"r1", "r2"}), ROLLOUTS)
VIEW = FleetView.of(NODES, [node.name for node in NODES], ways_out=WAYS, revisions=REVISIONS)


def test_every_file_of_the_folder_is_in_the_table() -> None:
    declared = {
        verb.name
        for module in pkgutil.iter_modules(verbs.__path__)
        for verb in sys.modules[f"{verbs.__name__}.{module.name}"].VERBS
    }
    assert declared == set(VERBS)


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_verb_says_all_that_its_readers_need(verb: Verb) -> None:
    assert verb.help.endswith(".")
    assert verb.idempotency
    assert verb.kinds
    assert all(option.name.startswith("--") and option.help for option in verb.options)
    assert parse_command(verb.example).verb is verb
    assert verb.usage.startswith(verb.name)


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_an_action_in_full_says_what_it_changes_and_reads_back_from_its_command(verb: Verb) -> None:
    plan = resolve_plan(plan_command(verb.example), VIEW, {})
    (action,) = plan.actions
    assert plan.runbook == ACTION
    assert action.change is not None
    assert action.predicted
    again = parse_command(action.command)
    assert (again.target, dict(again.args)) == (action.target, dict(action.args))
    if verb.mutates:
        assert plan.targets == (action.target,)


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_the_command_line_has_the_verb_with_its_options_and_defaults(verb: Verb) -> None:
    command: Any = typer.main.get_command(build())
    for word in verb.name.split():
        command = command.commands[word]
    assert command.help == verb.help
    flags = {flag: one for one in command.params for flag in one.opts}
    for option in verb.options:
        # A verb with verbs below it (`shed remove`) asks for its options by itself: click would ask them of those too.
        assert flags[option.name].required is (option.required and not hasattr(command, "commands"))
        assert option.help[1:] in flags[option.name].help
        assert (flags[option.name].default or None) == option.default_text
    assert {"--dry-run", "--yes", "-y", "--output", "-o"} <= flags.keys()
    words = shlex.split(verb.example)[len(verb.name.split()) :]
    command.make_context(command.name, words)  # exits with 2 when an option or argument does not fit


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_the_api_serves_the_verb_as_it_is_declared(verb: Verb) -> None:
    sent = VerbInfo.model_validate(verb.to_dict())
    assert set(VerbInfo.model_fields) == set(verb.to_dict())
    assert [option.name for option in sent.options] == [option.name for option in verb.options]
    assert sent.example == f"fleetctl {verb.example}"
    assert sent.has_undo == bool(verb.undo)


def test_the_cockpits_keys_are_the_verbs() -> None:
    keys = {binding.key for binding in Cockpit.BINDINGS if str(binding.action).startswith("verb(")}  # type: ignore[union-attr]
    declared = [shortcut.key for verb in VERBS.values() for shortcut in verb.shortcuts]
    assert keys == set(declared)
    assert len(keys) == len(declared), "a key means one thing"


def test_every_effect_has_a_verb() -> None:
    source = "".join(
        spec.loader.get_source(spec.name)  # type: ignore[union-attr,attr-defined]
        for module in pkgutil.iter_modules(verbs.__path__)
        if (spec := module.module_finder.find_spec(module.name, None)) is not None
    )
    source += inspect.getsource(rule_verb)  # what several of them share
    effects = [name for name in vars(Effects) if not name.startswith("_")]
    assert [name for name in effects if f".effects.{name}(" not in source] == []


def test_the_table_loads_nothing_heavy() -> None:
    code = (
        "import sys\nimport runbooks.verbs\n"
        "heavy = {'pydantic', 'yaml', 'sqlalchemy', 'structlog', 'markdown_it', 'httpx'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
